//! The tables in the kernel, and the programs that use them.

use std::net::{IpAddr, Ipv6Addr};

use weir_bpf::{
    Attached, Direction as Hook, Loader, Map, MapKind, Mapped, Object, XdpMode, attach_tcx, attach_xdp,
};

use crate::compile::{Compiled, Width};
use crate::shared::{
    WEIR_ACTIONS, WEIR_BUCKETS, WEIR_CLASSES, WEIR_GENERATIONS, WEIR_REASONS, WeirAddress, WeirBoundary,
    WeirBucket, WeirControl, WeirCount, WeirDenied, WeirPolicy,
};

static FEW: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/few.bpf.o"));
static MANY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/many.bpf.o"));

/// What is done with the packets of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Let through.
    Allow,
    /// Thrown away.
    Drop,
    /// Let through, and its source remembered as a refused one's would be.
    Log,
    /// Let through with this mark (`skb->mark`); at XDP there is no mark, and it is let through.
    Mark(u32),
}

/// Which packets are looked at, and by which address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// What comes in, by its source.
    Ingress,
    /// What goes out, by its destination.
    Egress,
}

/// Why a packet was not looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It was.
    LookedUp,
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Shorter than its header.
    TooShort,
    /// An address without which the link itself would not work: 0.0.0.0, ::, fe80::/10.
    LinkLocal,
    /// No table is loaded.
    NoTable,
}

impl Reason {
    const ALL: [Reason; WEIR_REASONS as usize] =
        [Reason::LookedUp, Reason::NotIp, Reason::TooShort, Reason::LinkLocal, Reason::NoTable];
}

/// Packets and bytes, from the Ethernet header on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A source of packets that were refused or logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    /// Its address.
    pub source: IpAddr,
    /// Packets that were sampled.
    pub packets: u64,
    /// When the last one came, CLOCK_MONOTONIC, ns.
    pub last_ns: u64,
    /// Its class.
    pub class: u32,
}

/// What a filter has counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// By direction, class and what was done with them (by the name of the action); those with none are left out.
    pub classes: Vec<(Direction, u32, &'static str, Count)>,
    /// By direction and reason, likewise.
    pub reasons: Vec<(Direction, Reason, Count)>,
    /// Sources of refused packets, those with most packets first.
    pub denied: Vec<Denied>,
}

/// Names of the actions, in the order of their numbers.
const ACTIONS: [&str; WEIR_ACTIONS as usize] = ["allow", "drop", "log", "mark"];

/// The programs in the kernel, with their tables. Dropping it detaches what it attached.
#[derive(Debug)]
pub struct Filter {
    object: Object,
    width: Width,
    control: Mapped<WeirControl>,
    /// Kept: the kernel holds the maps that are in use, we those that we fill.
    generation: Option<u32>,
    attached: Vec<Attached>,
}

impl Filter {
    /// Loads the programs with these lists: what is in none is of class 0, list `n` of class `n + 1`; `actions[c]` is what is
    /// done with class `c`, and a class without one is dropped. One in `sample` refused packets is remembered with its source; 0:
    /// none.
    ///
    /// # Errors
    /// [`weir_bpf::Error::Missing`] without privilege, or where the kernel lacks something (it needs 5.17, TCX 6.6).
    pub fn load(tables: &Compiled, actions: &[Action], sample: u32) -> weir_bpf::Result<Self> {
        let bytes = match tables.width {
            Width::Few => FEW,
            Width::Many => MANY,
        };
        let object = Loader::open("the filter", bytes)?.load()?;
        let control = object.map(".data.control")?.share::<WeirControl>()?;
        let mut filter =
            Filter { object, width: tables.width, control, generation: None, attached: Vec::new() };
        let mut now = filter.control.get(0);
        now.sample = sample;
        now.generation = WEIR_GENERATIONS as u32;
        filter.control.set(0, now);
        filter.swap(tables, actions)?;
        Ok(filter)
    }

    /// Puts other lists into the place of those that are there. Every packet meets the old ones or the new ones.
    ///
    /// # Errors
    /// If the kernel refuses: memory. The old lists stay then.
    ///
    /// # Panics
    /// If the tables are of another width than those it was loaded with.
    pub fn swap(&mut self, tables: &Compiled, actions: &[Action]) -> weir_bpf::Result<()> {
        assert_eq!(tables.width, self.width, "tables of another width need other programs");
        let next = self.generation.map_or(0, |g| 1 - g);
        self.fill(next, tables)?;
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
        self.generation = Some(next);
        Ok(())
    }

    fn fill(&self, generation: u32, tables: &Compiled) -> weir_bpf::Result<()> {
        let level1 = Map::create::<u32, u64>(MapKind::SharedArray, "level1", tables.level1.len() as u32)?;
        copy(&level1, &tables.level1)?;
        let buckets = Map::create::<u32, WeirBucket>(MapKind::SharedArray, "buckets", WEIR_BUCKETS as u32)?;
        copy(&buckets, &tables.buckets)?;
        let kind = MapKind::SharedArrayOfAnyLength;
        let boundaries =
            Map::create::<u32, WeirBoundary>(kind, "boundaries", tables.boundaries.len() as u32)?;
        copy(&boundaries, &tables.boundaries)?;
        let entries = tables.mixed.len() as u32;
        let mixed = match self.width {
            Width::Few => {
                let map = Map::create::<u32, [u64; 8]>(MapKind::Hash, "mixed", entries)?;
                map.insert(tables.mixed.iter().map(|(net, words)| (*net, of_words::<8>(words))))?;
                map
            }
            Width::Many => {
                let map = Map::create::<u32, [u64; 32]>(MapKind::Hash, "mixed", entries)?;
                map.insert(tables.mixed.iter().map(|(net, words)| (*net, of_words::<32>(words))))?;
                map
            }
        };
        for (outer, inner) in
            [("level1", &level1), ("mixed", &mixed), ("buckets", &buckets), ("boundaries", &boundaries)]
        {
            self.object.map(outer)?.put(generation, inner)?;
        }
        Ok(())
    }

    /// Attaches it at tc (TCX) to the interface of that number in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(&mut self, interface: u32, direction: Direction) -> weir_bpf::Result<()> {
        let (name, hook) = match direction {
            Direction::Ingress => ("allow_ingress", Hook::Ingress),
            Direction::Egress => ("allow_egress", Hook::Egress),
        };
        self.attached.push(attach_tcx(&self.object.program(name)?, interface, hook)?);
        Ok(())
    }

    /// Attaches it at XDP, for what comes in.
    ///
    /// # Errors
    /// If the driver has no XDP, or the kernel refuses.
    pub fn attach_xdp(&mut self, interface: u32, mode: XdpMode) -> weir_bpf::Result<()> {
        self.attached.push(attach_xdp(&self.object.program("allow_xdp")?, interface, mode)?);
        Ok(())
    }

    /// What it has counted so far.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn status(&self) -> weir_bpf::Result<Status> {
        let mut status = Status::default();
        let classes = WEIR_CLASSES as usize;
        for (at, count) in self.counts("counts")? {
            let (class, action) = (at / ACTIONS.len(), at % ACTIONS.len());
            let direction = if class < classes { Direction::Ingress } else { Direction::Egress };
            status.classes.push((direction, (class % classes) as u32, ACTIONS[action], count));
        }
        for (at, count) in self.counts("reasons")? {
            let direction = if at < Reason::ALL.len() { Direction::Ingress } else { Direction::Egress };
            status.reasons.push((direction, Reason::ALL[at % Reason::ALL.len()], count));
        }
        for (address, denied) in self.object.map("denied")?.all::<WeirAddress, WeirDenied>()? {
            let v6 = Ipv6Addr::from(address.bytes);
            let source = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
            let WeirDenied { packets, last_ns, class_number } = denied;
            status.denied.push(Denied { source, packets, last_ns, class: class_number as u32 });
        }
        status.denied.sort_by_key(|d| std::cmp::Reverse(d.packets));
        Ok(status)
    }

    /// Entries of a map of counters that are not zero, summed over the cores.
    fn counts(&self, map: &str) -> weir_bpf::Result<Vec<(usize, Count)>> {
        let sums = self.object.map(map)?.all_by_cpu::<u32, WeirCount>()?.into_iter().map(|(at, by_cpu)| {
            let add = |sum: Count, c: &WeirCount| Count {
                packets: sum.packets + c.packets,
                bytes: sum.bytes + c.bytes,
            };
            (at as usize, by_cpu.iter().fold(Count::default(), add))
        });
        Ok(sums.filter(|(_, count)| count.packets > 0).collect())
    }

    /// A program by its name, to be run on given packets.
    #[cfg(test)]
    pub(crate) fn program(&self, name: &str) -> weir_bpf::ProgramFd {
        self.object.program(name).unwrap()
    }
}

fn copy<T: weir_bpf::Plain>(map: &Map, values: &[T]) -> weir_bpf::Result<()> {
    let shared = map.share::<T>()?;
    for (at, value) in values.iter().enumerate() {
        shared.set(at, *value);
    }
    Ok(())
}

/// The compiled tables have just as many words.
fn of_words<const N: usize>(words: &[u64]) -> [u64; N] {
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(0))
}
