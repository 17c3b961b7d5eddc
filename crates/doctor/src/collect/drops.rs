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

use weir_bpf::{Attached, Btf, Loader, Object, ProgramFd, count_run_time, possible_cpus};
use weir_sys::ProcRoot;

use super::{Options, hidden};
use crate::evidence::{Evidence, Plane, Sight};
use shared::{WEIR_NOWHERE, WeirWatch};

/// What `cargo build` made of `bpf/*.bpf.c`.
static DROPS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/drops.bpf.o"));
static PLAIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plain.bpf.o"));
static FLOWS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.o"));

/// Types of the running kernel.
const TYPES: &str = "sys/kernel/btf/vmlinux";

/// Groups that are told apart; 16 bytes of each by core. A port scan makes a handful.
const GROUPS: u32 = 4096;
/// Connections whose events are told apart, and groups of what is beyond them.
const CONNECTIONS: u32 = 4096;
const REST: u32 = 256;

/// How large the tables in the kernel are.
#[derive(Debug, Clone, Copy)]
struct Room {
    groups: u32,
    samples: u32,
    samples_per_core: u32,
    connections: u32,
}

impl Room {
    /// For a machine of that many cores. A core keeps at least four samples of a group, which is all there is of a group that
    /// one core alone drops; a sample takes about 240 bytes in the kernel.
    fn of(cores: usize) -> Self {
        let samples_per_core = (32 / cores.max(1)).clamp(4, 16) as u32;
        let samples = (cores.saturating_mul(1024)).clamp(8192, 32_768) as u32;
        Room { groups: GROUPS, samples, samples_per_core, connections: CONNECTIONS }
    }
}

/// Programs in the kernel that count drops and events of TCP until the window ends.
#[derive(Debug)]
pub(super) struct Tracer {
    root: ProcRoot,
    btf: Option<Btf>,
    drops: Option<Running>,
    flows: Option<Running>,
    /// Has the kernel count the programs' time for as long as it is held.
    _counting: Option<OwnedFd>,
    counted: bool,
}

/// A loaded object whose programs are attached.
#[derive(Debug)]
struct Running {
    object: Object,
    programs: Vec<ProgramFd>,
    links: Vec<Attached>,
}

impl Running {
    fn attach(object: Object, names: &[&str]) -> weir_bpf::Result<Self> {
        let programs = names.iter().map(|name| object.program(name)).collect::<Result<Vec<_>, _>>()?;
        let links = programs.iter().map(weir_bpf::attach_tracing).collect::<Result<Vec<_>, _>>()?;
        Ok(Running { object, programs, links })
    }

    /// As [`Self::attach`], of a program for the event of that number in tracefs.
    fn attach_event(object: Object, name: &str, event: u32) -> weir_bpf::Result<Self> {
        let program = object.program(name)?;
        let links = vec![weir_bpf::attach_tracepoint(&program, event)?];
        Ok(Running { object, programs: vec![program], links })
    }
}

impl Tracer {
    /// Attaches them. What could not be is blind, with the reason, and the rest works.
    pub(super) fn begin(options: &Options, planes: &mut BTreeMap<Plane, Sight>) -> Self {
        Self::with_room(options, planes, Room::of(possible_cpus()))
    }

    fn with_room(options: &Options, planes: &mut BTreeMap<Plane, Sight>, room: Room) -> Self {
        let root = options.root.clone();
        let btf = Btf::read(&root.path(TYPES));
        let mut look = |plane, start: &dyn Fn() -> Result<(Running, Sight), String>| {
            let (running, sight) = if options.hidden.contains(&plane) {
                (None, hidden())
            } else {
                match start() {
                    Ok((running, sight)) => (Some(running), sight),
                    Err(why) => (None, Sight::Blind(why)),
                }
            };
            planes.insert(plane, sight);
            running
        };
        let drops = look(Plane::Drops, &|| match &btf {
            Ok(btf) => groups::begin(btf, room),
            Err(missing) => format::begin(&root, room, &missing.to_string()),
        });
        let flows = look(Plane::Flows, &|| match &btf {
            Ok(btf) => flows::begin(btf, room),
            Err(missing) => Err(without_types(&missing.to_string())),
        });
        // It costs every program on the machine a look at the clock, so not where there is nothing to count.
        let counting = (drops.is_some() || flows.is_some()).then(count_run_time).and_then(Result::ok);
        Tracer { root, btf: btf.ok(), drops, flows, counted: counting.is_some(), _counting: counting }
    }

    /// Detaches them and adds what they counted.
    pub(super) fn end(mut self, evidence: &mut Evidence) {
        // Everything stops before anything is read.
        for running in [&mut self.drops, &mut self.flows].into_iter().flatten() {
            running.links.clear();
        }
        self.cost(evidence);
        if let Some(running) = &self.drops {
            let read = groups::read(&running.object, self.btf.as_ref(), &self.root, evidence);
            or_blind(read, Plane::Drops, evidence);
        }
        if let Some(running) = &self.flows {
            let read = flows::read(&running.object, evidence);
            or_blind(read, Plane::Flows, evidence);
        }
    }

    fn cost(&self, evidence: &mut Evidence) {
        let running = [&self.drops, &self.flows];
        let programs = running.into_iter().flatten().flat_map(|r| &r.programs);
        let statistics: Vec<_> = programs.filter_map(|p| p.statistics().ok()).collect();
        if self.counted && !statistics.is_empty() {
            evidence.cost.bpf_ns = Some(statistics.iter().map(|s| s.time_ns).sum());
            evidence.cost.bpf_runs = Some(statistics.iter().map(|s| s.runs).sum());
        }
        // A drop in an interrupt that came while another drop was being counted on the same core.
        evidence.cost.events_lost += statistics.iter().map(|s| s.missed).sum::<u64>();
    }
}

fn or_blind(read: Result<(), weir_bpf::Error>, plane: Plane, evidence: &mut Evidence) {
    if let Err(e) = read {
        evidence.planes.insert(plane, Sight::Blind(e.to_string()));
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
    let mut loader = Loader::open(name, bytes)?;
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
        reason_at: nowhere,
        location_at: nowhere,
        protocol_at: nowhere,
    }
}
