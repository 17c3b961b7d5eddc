//! Packets that the kernel throws away, and retransmissions and resets of TCP, counted as they happen.
//!
//! Programs in the kernel do the counting (`bpf/`), so that the number of drops costs nothing here; what they counted is read
//! once, when the window has ended.

mod flows;
mod format;
mod groups;
mod reasons;
mod shared {
    #![allow(
        dead_code,
        unreachable_pub,
        missing_docs,
        reason = "made from the C header, which both programs share"
    )]
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_bpf::{Attached, Btf, Loader, Object, ProgramFd, RunStatistics, count_run_time, possible_cpus};
use weir_sys::ProcRoot;

use super::{Options, hidden};
use crate::evidence::{Evidence, EvidenceSource, Sight};
use shared::{WEIR_NOWHERE, WeirWatch};

/// The code that `cargo build` made of `bpf/*.bpf.c`.
static DROPS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/drops.bpf.z"));
static PLAIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plain.bpf.z"));
static FLOWS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.z"));

/// Types of the running kernel.
const TYPES: &str = "sys/kernel/btf/vmlinux";

/// The number of groups with counts of their own; 40 bytes of each by core. A port scan makes a handful.
const GROUPS: u32 = 4096;
/// Places of groups that are found without hashing; 64 bytes of each by core. Several times the number of groups with many
/// drops, so that seldom two of those want the same.
const PLACES: u32 = 256;
/// The number of connections with events of their own, and of groups for those beyond them.
const CONNECTIONS: u32 = 4096;
const REST: u32 = 256;

/// How long the kernel takes the time of each run at most, and how many runs are enough for a mean. It looks at the clock twice for
/// that, which on a virtual machine costs several times as much as the run itself: over a whole window it made a gateway that
/// drops 120,000 packets a second 6 % slower.
const TIMED: Duration = Duration::from_millis(100);
const ENOUGH_RUNS: u64 = 1000;
/// Time between two looks at how many there were.
const TIMED_STEP: Duration = Duration::from_millis(5);

/// How large the tables in the kernel are.
#[derive(Debug, Clone, Copy)]
struct Room {
    places: u32,
    groups: u32,
    samples: u32,
    samples_per_core: u32,
    connections: u32,
}

impl Room {
    /// For a machine of that many cores. A core keeps at least four samples of a group: all samples of a group that
    /// one core alone drops; a sample takes about 240 bytes in the kernel.
    fn of(cores: usize) -> Self {
        let samples_per_core = (32 / cores.max(1)).clamp(4, 16) as u32;
        let samples = (cores.saturating_mul(1024)).clamp(8192, 32_768) as u32;
        Room { places: PLACES, groups: GROUPS, samples, samples_per_core, connections: CONNECTIONS }
    }
}

/// Programs in the kernel that count drops and events of TCP until the window ends.
#[derive(Debug)]
pub(super) struct Tracer {
    root: ProcRoot,
    btf: Option<Btf>,
    drops: Option<Running>,
    flows: Option<Running>,
    /// True if the programs' time is counted, over [`TIMED`].
    counted: bool,
}

/// A loaded object whose programs are attached.
#[derive(Debug)]
struct Running {
    object: Object,
    programs: Arc<[ProgramFd]>,
    links: Vec<Attached>,
}

impl Running {
    fn attach(object: Object, names: &[&str]) -> weir_bpf::Result<Self> {
        let programs = names.iter().map(|name| object.program(name)).collect::<Result<Vec<_>, _>>()?;
        let links = programs.iter().map(weir_bpf::attach_tracing).collect::<Result<Vec<_>, _>>()?;
        Ok(Running { object, programs: programs.into(), links })
    }

    /// As [`Self::attach`], of a program for the event of that number in tracefs.
    fn attach_event(object: Object, name: &str, event: u32) -> weir_bpf::Result<Self> {
        let program = object.program(name)?;
        let links = vec![weir_bpf::attach_tracepoint(&program, event)?];
        Ok(Running { object, programs: [program].into(), links })
    }
}

impl Tracer {
    /// Attaches them. A program that could not be attached is blind, with the reason, and the rest works.
    pub(super) fn begin(options: &Options, sources: &mut BTreeMap<EvidenceSource, Sight>) -> Self {
        Self::with_room(options, sources, Room::of(possible_cpus()))
    }

    fn with_room(options: &Options, sources: &mut BTreeMap<EvidenceSource, Sight>, room: Room) -> Self {
        let root = options.root.clone();
        let btf = Btf::read(&root.path(TYPES));
        let mut look = |source, start: &dyn Fn() -> Result<(Running, Sight), String>| {
            let (running, sight) = if options.hidden.contains(&source) {
                (None, hidden())
            } else {
                match start() {
                    Ok((running, sight)) => (Some(running), sight),
                    Err(why) => (None, Sight::Blind(why)),
                }
            };
            sources.insert(source, sight);
            running
        };
        let drops = look(EvidenceSource::Drops, &|| match &btf {
            Ok(btf) => groups::begin(btf, room),
            Err(missing) => format::begin(&root, room, &missing.to_string()),
        });
        let flows = look(EvidenceSource::Flows, &|| match &btf {
            Ok(btf) => flows::begin(btf, room),
            Err(missing) => Err(without_types(&missing.to_string())),
        });
        let counting = (drops.is_some() || flows.is_some()).then(count_run_time).and_then(Result::ok);
        let programs = || [&drops, &flows].into_iter().flatten().map(|r| r.programs.clone()).collect();
        let counted = counting.is_some_and(|counting| stop_later(counting, programs()).is_ok());
        Tracer { root, btf: btf.ok(), drops, flows, counted }
    }

    /// Detaches them and adds what they counted.
    pub(super) fn end(mut self, evidence: &mut Evidence) {
        // Everything stops before anything is read.
        for running in [&mut self.drops, &mut self.flows].into_iter().flatten() {
            running.links.clear();
        }
        let timed = self.timed(evidence);
        if let Some(running) = &self.drops {
            let read = groups::read(&running.object, self.btf.as_ref(), &self.root, evidence);
            or_blind(read, EvidenceSource::Drops, evidence);
        }
        if let Some(running) = &self.flows {
            let read = flows::read(&running.object, evidence);
            or_blind(read, EvidenceSource::Flows, evidence);
        }
        let packets: u64 = evidence.drops.iter().map(|d| d.packets).sum();
        let runs = packets + evidence.flows.iter().map(|f| f.times).sum::<u64>();
        if self.counted {
            evidence.cost.bpf_runs = Some(runs);
            evidence.cost.bpf_ns = match timed {
                _ if runs == 0 => Some(0),
                RunStatistics { runs: 0, .. } => None,
                timed => Some((timed.time_ns as f64 / timed.runs as f64 * runs as f64) as u64),
            };
        }
    }

    /// The runs of which the time was taken, all programs' together.
    fn timed(&self, evidence: &mut Evidence) -> RunStatistics {
        let running = [&self.drops, &self.flows];
        let all = statistics(running.into_iter().flatten().flat_map(|r| r.programs.iter()));
        // A drop in an interrupt that came while another drop was being counted on the same core.
        evidence.cost.events_lost += all.missed;
        all
    }
}

/// The cost of all these programs together.
fn statistics<'a>(programs: impl Iterator<Item = &'a ProgramFd>) -> RunStatistics {
    programs.filter_map(|p| p.statistics().ok()).fold(RunStatistics::default(), |sum, s| RunStatistics {
        time_ns: sum.time_ns + s.time_ns,
        runs: sum.runs + s.runs,
        missed: sum.missed + s.missed,
    })
}

/// Lets the kernel stop counting run time after [`ENOUGH_RUNS`], or [`TIMED`].
pub(super) fn stop_later(counting: OwnedFd, programs: Vec<Arc<[ProgramFd]>>) -> std::io::Result<()> {
    let wait = move || {
        let began = Instant::now();
        let runs = || statistics(programs.iter().flat_map(|p| p.iter())).runs;
        while began.elapsed() < TIMED && runs() < ENOUGH_RUNS {
            std::thread::sleep(TIMED_STEP);
        }
        drop(counting);
    };
    std::thread::Builder::new().name("bpf-time".into()).spawn(wait).map(drop)
}

fn or_blind(read: Result<(), weir_bpf::Error>, source: EvidenceSource, evidence: &mut Evidence) {
    if let Err(e) = read {
        evidence.evidence_sources.insert(source, Sight::Blind(e.to_string()));
    }
}

/// Why there is nothing without types, and what brings them.
fn without_types(missing: &str) -> String {
    format!("{missing}: this needs the kernel's type information (CONFIG_DEBUG_INFO_BTF, Linux 5.5)")
}

/// Loads an object with its configuration.
fn load(
    name: &'static str,
    bytes: &'static [u8],
    watch: Option<&WeirWatch>,
    entries: &[(&str, u32)],
) -> Result<Object, weir_bpf::Error> {
    let mut loader = Loader::unpack(name, bytes)?;
    if let Some(watch) = watch {
        loader.config(watch)?;
    }
    for (map, count) in entries {
        loader.entries(map, *count)?;
    }
    loader.load()
}

/// A configuration for programs that read types.
fn watch(arguments: usize, room: Room) -> WeirWatch {
    let nowhere = WEIR_NOWHERE as u32;
    WeirWatch {
        arguments: arguments as u32,
        samples: room.samples_per_core,
        places: room.places,
        reason_at: nowhere,
        location_at: nowhere,
        protocol_at: nowhere,
    }
}
