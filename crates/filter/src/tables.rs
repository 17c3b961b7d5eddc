//! Programs and maps in the kernel, and lists put into them.

use std::collections::BTreeMap;
use std::path::Path;

use weir_bpf::{Loader, Map, MapKind, Mapped, ProgramFd};

use crate::compile::{Compiled, Width};
use crate::kernel::Action;
use crate::pinned::OpenError;
use crate::shared::{
    WEIR_BUCKETS, WEIR_CLASSES, WEIR_FORMAT, WEIR_GENERATIONS, WeirBoundary, WeirBucket, WeirControl,
    WeirGroup, WeirPolicy,
};

/// By width, and then with established connections first.
static OBJECTS: [[&[u8]; 2]; 2] = [
    [
        include_bytes!(concat!(env!("OUT_DIR"), "/few.bpf.o")),
        include_bytes!(concat!(env!("OUT_DIR"), "/few_established.bpf.o")),
    ],
    [
        include_bytes!(concat!(env!("OUT_DIR"), "/many.bpf.o")),
        include_bytes!(concat!(env!("OUT_DIR"), "/many_established.bpf.o")),
    ],
];

/// Maps of maps, one slot for each generation.
const OUTER: [&str; 4] = ["level1", "blocks", "buckets", "boundaries"];
/// Maps of what was counted and seen.
const COUNTERS: [&str; 5] = ["counts", "reasons", "denied", "events", "event_counts"];
/// The map of what changes while the programs run; libbpf calls it by its section.
const CONTROL: (&str, &str) = ("control", ".data.control");
/// Likewise the one that says whether somebody reads the events.
const FOLLOW: (&str, &str) = ("follow", ".data.follow");

/// How a filter is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// One in so many refused packets is remembered with its source; 0: none.
    pub sample: u32,
    /// Packets of connections that are there already pass before they are looked up, so that who is in no list may still
    /// answer. TCP and UDP only, with the ICMP errors about them; only at tc, and only where something in that network namespace
    /// has connections tracked (a rule with `ct`, or NAT). Fragments are always looked up.
    pub established_first: bool,
}

/// Programs and maps, held by their descriptors.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) width: Width,
    programs: BTreeMap<String, ProgramFd>,
    maps: BTreeMap<&'static str, Map>,
    control: Mapped<WeirControl>,
}

impl Loaded {
    /// Loads the programs, without a table.
    pub(crate) fn load(width: Width, options: Options) -> weir_bpf::Result<Self> {
        let bytes = OBJECTS[usize::from(width == Width::Many)][usize::from(options.established_first)];
        let name = if options.established_first {
            "the filter with established connections first (it needs connection tracking for BPF: Linux 5.18 with \
             CONFIG_NF_CONNTRACK and BTF)"
        } else {
            "the filter"
        };
        let object = Loader::open(name, bytes)?.load()?;
        let mut programs = BTreeMap::new();
        for program in ["allow_ingress", "allow_egress", "allow_xdp"] {
            if program != "allow_xdp" || !options.established_first {
                programs.insert(program.to_owned(), object.program(program)?);
            }
        }
        let mut maps = BTreeMap::new();
        for map in OUTER.into_iter().chain(COUNTERS) {
            maps.insert(map, object.map(map)?);
        }
        for (name, section) in [CONTROL, FOLLOW] {
            maps.insert(name, object.map(section)?);
        }
        let control = maps[CONTROL.0].share::<WeirControl>()?;
        let mut now = control.get(0);
        now.format = WEIR_FORMAT as u32;
        now.bits = width.bits();
        now.sample = options.sample;
        now.generation = WEIR_GENERATIONS as u32;
        control.set(0, now);
        Ok(Loaded { width, programs, maps, control })
    }

    /// Those that were pinned in a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, OpenError> {
        let control_map = Map::open_pinned(&folder.join(CONTROL.0))?;
        // Of another version it may have another size; its format is first in all of them.
        let format = control_map.first_word(&0_u32)?;
        if format != WEIR_FORMAT as u32 {
            return Err(OpenError::Version { found: format, own: WEIR_FORMAT as u32 });
        }
        let control = control_map.share::<WeirControl>()?;
        let width = if control.get(0).bits == Width::Few.bits() { Width::Few } else { Width::Many };
        let mut maps = BTreeMap::from([(CONTROL.0, control_map)]);
        for map in OUTER.into_iter().chain(COUNTERS).chain([FOLLOW.0]) {
            maps.insert(map, Map::open_pinned(&folder.join(map))?);
        }
        let mut programs = BTreeMap::new();
        for program in ["allow_ingress", "allow_egress", "allow_xdp"] {
            let path = folder.join(program);
            // With established connections first there is none for XDP.
            if path.exists() {
                programs.insert(program.to_owned(), ProgramFd::open_pinned(&path)?);
            }
        }
        Ok(Loaded { width, programs, maps, control })
    }

    /// Gives everything a name in a folder of a BPF file system.
    pub(crate) fn pin(&self, folder: &Path) -> weir_bpf::Result<()> {
        for (name, map) in &self.maps {
            map.pin(&folder.join(name))?;
        }
        self.programs.iter().try_for_each(|(name, program)| program.pin(&folder.join(name)))
    }

    /// As it was loaded.
    pub(crate) fn options(&self) -> Options {
        let established_first = !self.programs.contains_key("allow_xdp");
        Options { sample: self.control.get(0).sample, established_first }
    }

    pub(crate) fn program(&self, name: &str) -> weir_bpf::Result<&ProgramFd> {
        self.programs.get(name).ok_or_else(|| {
            weir_bpf::Error::Absent(format!("program {name} (at XDP no connection can be looked up first)"))
        })
    }

    pub(crate) fn map(&self, name: &str) -> weir_bpf::Result<&Map> {
        self.maps.get(name).ok_or_else(|| weir_bpf::Error::Absent(format!("map {name}")))
    }

    /// The generation in use, if any.
    fn generation(&self) -> Option<u32> {
        Some(self.control.get(0).generation).filter(|g| u64::from(*g) < WEIR_GENERATIONS)
    }

    /// Puts lists of the same width into the place of those that are there. When it returns, no packet meets the old ones any
    /// more, and their memory is free.
    pub(crate) fn swap(&mut self, tables: &Compiled, actions: &[Action]) -> weir_bpf::Result<()> {
        let before = self.generation();
        let next = before.map_or(0, |g| 1 - g);
        let inner = self.fill(next, tables)?;
        let mut control = self.control.get(0);
        for class in 0..WEIR_CLASSES as usize {
            control.policies[next as usize * WEIR_CLASSES as usize + class] = match actions.get(class) {
                Some(Action::Allow) => WeirPolicy { action: 0, mark: 0 },
                Some(Action::Drop) | None => WeirPolicy { action: 1, mark: 0 },
                Some(Action::Log) => WeirPolicy { action: 2, mark: 0 },
                Some(Action::Mark(mark)) => WeirPolicy { action: 3, mark: *mark },
            };
        }
        self.control.set(0, control);
        // The policies are there before the number that makes them valid.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        control.generation = next;
        self.control.set(0, control);
        if let Some(before) = before {
            // Writing into a map of maps returns when every program that was running then has ended
            // (maybe_wait_bpf_programs, kernel/bpf/syscall.c): afterwards nobody reads the old tables.
            self.map(OUTER[0])?.put(next, &inner[0])?;
            side_by_side(OUTER, |outer| self.map(outer)?.take_out(before))?;
        }
        Ok(())
    }

    /// Makes the tables and puts them into the slots of a generation that is not in use.
    fn fill(&self, generation: u32, tables: &Compiled) -> weir_bpf::Result<[Map; 4]> {
        let level1 =
            Map::create::<u32, WeirGroup>(MapKind::SharedArray, "level1", tables.level1.len() as u32)?;
        level1.share()?.fill_new(&tables.level1);
        let blocks = match self.width {
            Width::Few => blocks::<{ Width::Few.block_words() }>(&tables.blocks)?,
            Width::Many => blocks::<{ Width::Many.block_words() }>(&tables.blocks)?,
        };
        let buckets = Map::create::<u32, WeirBucket>(MapKind::SharedArray, "buckets", WEIR_BUCKETS as u32)?;
        buckets.share()?.fill_new(&tables.buckets);
        let (kind, length) = (MapKind::SharedArrayOfAnyLength, tables.boundaries.len() as u32);
        let boundaries = Map::create::<u32, WeirBoundary>(kind, "boundaries", length)?;
        boundaries.share()?.fill_new(&tables.boundaries);
        let inner = [level1, blocks, buckets, boundaries];
        let pairs: Vec<(&str, &Map)> = OUTER.into_iter().zip(&inner).collect();
        side_by_side(pairs, |(outer, inner)| self.map(outer)?.put(generation, inner))?;
        Ok(inner)
    }

    /// Memory of all maps, those inside of maps among them.
    pub(crate) fn memory_bytes(&self) -> weir_bpf::Result<u64> {
        let mut bytes = 0;
        for map in self.maps.values() {
            bytes += map.memory_bytes()?;
        }
        for outer in OUTER {
            for slot in 0..WEIR_GENERATIONS as u32 {
                if let Some(inner) = self.map(outer)?.inner(slot)? {
                    bytes += inner.memory_bytes()?;
                }
            }
        }
        Ok(bytes)
    }
}

/// Writes into several maps of maps. Each writing waits until all programs that are running have ended; side by side they wait
/// once.
fn side_by_side<T: Send>(
    items: impl IntoIterator<Item = T>,
    write: impl Fn(T) -> weir_bpf::Result<()> + Sync,
) -> weir_bpf::Result<()> {
    let write = &write;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || write(item))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Blocks of that many words.
fn blocks<const N: usize>(words: &[u64]) -> weir_bpf::Result<Map> {
    let (blocks, _) = words.as_chunks::<N>();
    let map = Map::create::<u32, [u64; N]>(MapKind::SharedArrayOfAnyLength, "blocks", blocks.len() as u32)?;
    map.share()?.fill_new(blocks);
    Ok(map)
}
