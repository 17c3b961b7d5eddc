//! Programs and maps in the kernel, and lists put into them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use weir_bpf::{Loader, Map, Mapped, Plain, ProgramFd, cpu_numbers};

use crate::action::Action;
use crate::compile::{Compiled, Width};
use crate::shared::{
    WEIR_ACTIONS, WEIR_ALLOW, WEIR_DROP, WEIR_FORMAT, WEIR_LOG, WEIR_MARK, WeirConfig, WeirCount,
    WeirCounters, WeirPolicy,
};

/// By width, and then with established connections first.
static OBJECTS: [[&[u8]; 2]; 2] = [
    [
        include_bytes!(concat!(env!("OUT_DIR"), "/few.bpf.z")),
        include_bytes!(concat!(env!("OUT_DIR"), "/few_established.bpf.z")),
    ],
    [
        include_bytes!(concat!(env!("OUT_DIR"), "/many.bpf.z")),
        include_bytes!(concat!(env!("OUT_DIR"), "/many_established.bpf.z")),
    ],
];

/// The program for XDP.
pub(crate) const AT_XDP: &str = "allow_xdp";
/// All of them.
const PROGRAMS: [&str; 3] = ["allow_ingress", "allow_egress", AT_XDP];

/// Counters of a core, with those that are only padding.
pub(crate) const COUNTERS: usize = size_of::<WeirCounters>() / size_of::<WeirCount>();

/// Maps by the names that they are pinned with, and as libbpf calls them: sections by their own names. Those of the lists, which are
/// made anew with each list.
const TABLES: [(&str, &str); 4] = [
    ("level1", ".bss.level1"),
    ("blocks", ".bss.blocks"),
    ("buckets", ".bss.buckets"),
    ("boundaries", ".bss.boundaries"),
];
/// Maps of counts and records, which other lists take over; `follow` shows whether a reader reads the events.
const KEPT: [(&str, &str); 5] = [
    ("counts", ".bss.counts"),
    ("denied", "denied"),
    ("events", "events"),
    ("event_counts", "event_counts"),
    ("follow", ".data.follow"),
];
/// The constants. Every version pins a map of that name that begins with its format.
const CONTROL: (&str, &str) = ("control", ".rodata.config");

/// Why a pinned filter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refused.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// Another version of weir has loaded it.
    #[error(
        "the filter was loaded by another version of weir (its tables have format {found}, this version's have format {own}): apply the lists again, or remove them"
    )]
    Version {
        /// The format of its tables.
        found: u32,
        /// This version's own.
        own: u32,
    },
}

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
    pub(crate) options: Options,
    programs: BTreeMap<String, ProgramFd>,
    maps: BTreeMap<&'static str, Map>,
}

impl Loaded {
    /// Makes tables of the lists, and loads the programs bound to them. They go on counting where `before` has counted, if that is
    /// given.
    pub(crate) fn load(
        tables: &Compiled,
        actions: &[Action],
        options: Options,
        before: Option<&Loaded>,
    ) -> weir_bpf::Result<Self> {
        let bytes = OBJECTS[usize::from(tables.width == Width::Many)][usize::from(options.established_first)];
        let name = if options.established_first {
            "the filter with established connections first (it needs connection tracking for BPF: Linux 5.18 with \
             CONFIG_NF_CONNTRACK and BTF)"
        } else {
            "the filter"
        };
        let mut loader = Loader::unpack(name, bytes)?;
        let cpus = cpu_numbers()?;
        loader.config(&config(tables, actions, options, cpus))?;
        let mut maps = BTreeMap::from([
            ("level1", Map::of_values("level1", &tables.level1)?),
            ("blocks", Map::of_values("blocks", &in_octets(&tables.blocks))?),
            ("buckets", Map::of_values("buckets", &tables.buckets)?),
            ("boundaries", Map::of_values("boundaries", &tables.boundaries)?),
        ]);
        match before {
            Some(before) => {
                for (name, _) in KEPT {
                    maps.insert(name, before.map(name)?.try_clone()?);
                }
            }
            None => {
                maps.insert("counts", Map::of_values("counts", &vec![WeirCounters::zeroed(); cpus])?);
            }
        }
        let all = TABLES.into_iter().chain(KEPT).chain([CONTROL]);
        for (name, section) in all.clone() {
            if let Some(map) = maps.get(name) {
                loader.reuse(section, map)?;
            }
        }
        let object = loader.load()?;
        for (name, section) in all {
            if !maps.contains_key(name) {
                maps.insert(name, object.map(section)?);
            }
        }
        let mut programs = BTreeMap::new();
        for program in PROGRAMS {
            if program != AT_XDP || !options.established_first {
                programs.insert(program.to_owned(), object.program(program)?);
            }
        }
        Ok(Loaded { options, programs, maps })
    }

    /// Those that were pinned in a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, OpenError> {
        let control = Map::open_pinned(&folder.join(CONTROL.0))?;
        // The map of another version may have another size; its format is first in all of them.
        let format = control.first_word(&0_u32)?;
        if format != WEIR_FORMAT as u32 {
            return Err(OpenError::Version { found: format, own: WEIR_FORMAT as u32 });
        }
        let config = control.get::<u32, WeirConfig>(&0)?;
        let sample = config.ok_or_else(|| weir_bpf::Error::Absent("entry in map control".into()))?.sample;
        let mut maps = BTreeMap::from([(CONTROL.0, control)]);
        for (name, _) in TABLES.into_iter().chain(KEPT) {
            maps.insert(name, Map::open_pinned(&folder.join(name))?);
        }
        let mut programs = BTreeMap::new();
        for program in PROGRAMS {
            let path = folder.join(program);
            // With established connections first there is none for XDP.
            if path.exists() {
                programs.insert(program.to_owned(), ProgramFd::open_pinned(&path)?);
            }
        }
        let established_first = !programs.contains_key(AT_XDP);
        Ok(Loaded { options: Options { sample, established_first }, programs, maps })
    }

    /// Gives everything a name in a folder of a BPF file system.
    pub(crate) fn pin(&self, folder: &Path) -> weir_bpf::Result<()> {
        for (name, map) in &self.maps {
            map.pin(&folder.join(name))?;
        }
        self.programs.iter().try_for_each(|(name, program)| program.pin(&folder.join(name)))
    }

    pub(crate) fn program(&self, name: &str) -> weir_bpf::Result<&ProgramFd> {
        self.programs.get(name).ok_or_else(|| {
            weir_bpf::Error::Absent(format!("program {name} (at XDP no connection can be looked up first)"))
        })
    }

    pub(crate) fn map(&self, name: &str) -> weir_bpf::Result<&Map> {
        self.maps.get(name).ok_or_else(|| weir_bpf::Error::Absent(format!("map {name}")))
    }

    /// The counters of all cores, those of a core behind each other: [`COUNTERS`] of them.
    pub(crate) fn counters(&self) -> weir_bpf::Result<Mapped<WeirCount>> {
        self.map("counts")?.share()
    }

    /// Memory of all maps.
    pub(crate) fn memory_bytes(&self) -> weir_bpf::Result<u64> {
        self.maps.values().map(Map::memory_bytes).sum()
    }
}

/// As the programs read them, octet by octet from the lowest.
fn in_octets(words: &[u64]) -> Cow<'_, [u64]> {
    if cfg!(target_endian = "little") {
        return words.into();
    }
    words.iter().map(|word| word.to_le()).collect()
}

/// Builds the constants of the programs.
fn config(tables: &Compiled, actions: &[Action], options: Options, cpus: usize) -> WeirConfig {
    let policy = |class: usize| {
        let (action, mark) = match actions.get(class) {
            Some(Action::Allow) => (WEIR_ALLOW, 0),
            Some(Action::Drop) | None => (WEIR_DROP, 0),
            Some(Action::Log) => (WEIR_LOG, 0),
            Some(Action::Mark(mark)) => (WEIR_MARK, *mark),
        };
        WeirPolicy { count: class as u32 * WEIR_ACTIONS as u32 + action as u32, mark }
    };
    WeirConfig {
        format: WEIR_FORMAT as u32,
        bits: tables.width.bits(),
        cpus: cpus as u32,
        blocks: (tables.blocks.len() / tables.width.block_words()) as u32,
        policies: std::array::from_fn(policy),
        boundaries: tables.boundaries.len() as u32,
        sample: options.sample,
    }
}
