//! The table of connections, summed up.
//!
//! The collector reads it once, at the window's end, entry by entry; it keeps only counts and a few examples. The kernel has all
//! tables of the machine in one hash, so every reading walks over the entries of all namespaces. The time for all of them is
//! bounded, and the evidence reports entries that were not read.

mod tally;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_netlink::conntrack::{Conntrack, Filter, dump};
use weir_sys::slab::Slab;
use weir_sys::{Error, ProcRoot, Result, modules, sysctl};

use super::Asked;
use crate::evidence::{Connections, FlowEventKind, Tuple};
use weir_conntrack::nat_ports::NatPorts;

pub(crate) use tally::is_private;
use tally::{ConnectionCounts, group};

/// Time for the tables of all namespaces together.
const TIME: Duration = Duration::from_millis(2500);
/// The least that a table gets while time is left.
const LEAST: Duration = Duration::from_millis(300);
/// The most that one table gets of the time that is left.
const MOST_OF_LEFT: f64 = 0.9;
/// Time beyond that, for namespaces that lost something.
const RESERVE: Duration = Duration::from_millis(500);
/// Entries that no cause would conclude anything from, where nothing was lost. Each reading walks the hash of all namespaces,
/// some milliseconds, and idle containers are many.
const TOO_FEW: u64 = 3;
/// Entries between two looks at the clock.
const STRIDE: u64 = 4096;
/// Tuples of packets that are asked for.
const ASKED: usize = 512;

/// Shared by the readings of all namespaces.
#[derive(Debug)]
pub(super) struct Common {
    ends: Instant,
    /// Entries, as the window began, of the tables that have had no time yet.
    waiting: AtomicU64,
    memory: OnceLock<(Option<u64>, Option<u64>)>,
}

impl Common {
    /// From now on, for tables that had so many entries together as the window began.
    pub(super) fn new(entries: u64) -> Self {
        Common { ends: Instant::now() + TIME, waiting: AtomicU64::new(entries), memory: OnceLock::new() }
    }

    /// When a reading that begins now must end, if it may begin. A table of `count` entries, `before` as the window began, gets
    /// as much of what is left as it has of the entries that are left to read, so that one table of a million is read whole, and
    /// four of a quarter alike; but never all, since others may have grown.
    fn end_of(&self, now: Instant, count: u64, before: u64, explains: bool) -> Option<Instant> {
        let waiting = self.waiting.load(Ordering::Relaxed).saturating_sub(before);
        self.waiting.store(waiting, Ordering::Relaxed);
        let ends = if explains { self.ends + RESERVE } else { self.ends };
        let left = ends.saturating_duration_since(now);
        let part = (count as f64 / count.saturating_add(waiting).max(1) as f64).min(MOST_OF_LEFT);
        (left > Duration::ZERO).then(|| now + left.mul_f64(part).max(LEAST).min(left))
    }

    /// Bytes of an entry with its block of extensions (NF_CT_EXT_PREALLOC: a kmalloc of 128), and of all entries there are.
    fn memory(&self, root: &ProcRoot) -> (Option<u64>, Option<u64>) {
        *self.memory.get_or_init(|| {
            let entries = Slab::read(root, "nf_conntrack");
            let extensions = Slab::read(root, "kmalloc-128");
            let each = entries.zip(extensions).map(|(e, x)| e.bytes_each() + x.bytes_each());
            (each, entries.map(|s| s.bytes()))
        })
    }
}

/// The table of the calling thread's namespace, which had `before` entries as the window began; `None` where nothing is tracked.
pub(super) fn read(
    root: &ProcRoot,
    asked: &Asked<'_>,
    common: &Common,
    before: u64,
) -> Result<Option<Connections>> {
    let Some(count) = root.conntrack_count() else { return Ok(None) };
    let number = |name: &str| sysctl::get_optional(root, name).ok().flatten()?.trim().parse::<u64>().ok();
    let (entry_bytes, slab_bytes) = common.memory(root);
    let mut table = Connections {
        count,
        max: number("net.netfilter.nf_conntrack_max"),
        buckets: number("net.netfilter.nf_conntrack_buckets"),
        entry_bytes,
        slab_bytes,
        ..Connections::default()
    };
    let packets = packets(asked);
    if count == 0 {
        table.absent = packets;
        table.source_nat_rules = rules(&NatPorts::find(root, None));
        return Ok(Some(table));
    }
    // Asking would load it.
    if !modules::is_loaded(root, "nf_conntrack_netlink") {
        let why = "the kernel has no ctnetlink now (module nf_conntrack_netlink, CONFIG_NF_CT_NETLINK)";
        return Err(Error::other("read the conntrack table", why));
    }
    let given = NatPorts::find(root, None);
    table.source_nat_rules = rules(&given);
    table.least_ports = given.least();
    join(&mut table, &packets)?;
    if count < TOO_FEW && packets.is_empty() {
        table.partial = Some("a table of one or two entries, in which nothing was lost, is not read".into());
        return Ok(Some(table));
    }
    let Some(ends) = common.end_of(Instant::now(), count, before, !packets.is_empty()) else {
        table.partial = Some("the time for the tables of all namespaces was over".into());
        return Ok(Some(table));
    };
    let mut tally = ConnectionCounts::new(table.absent.clone(), given);
    let dumped = dump(&Filter::default(), |entry| {
        tally.add(entry);
        let over = tally.read().is_multiple_of(STRIDE) && Instant::now() >= ends;
        if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if dumped.stopped {
        table.partial =
            Some(format!("only {} of {count} entries were read in the time there was", tally.read()));
    }
    tally.finish(&mut table);
    Ok(Some(table))
}

/// Rules that translate sources, where all of them could be read.
fn rules(given: &NatPorts) -> Option<u64> {
    given.count().map(|n| n as u64)
}

/// Packets that an entry may explain: those refused by netfilter, and those that no socket took.
fn packets(asked: &Asked<'_>) -> Vec<Tuple> {
    let mut packets = BTreeSet::new();
    let resets = asked.flows.iter().filter(|f| f.kind == FlowEventKind::ResetSent);
    packets.extend(resets.filter_map(|f| f.tuple));
    for reason in ["NO_SOCKET", "NETFILTER_DROP"] {
        let samples = asked.drops.iter().filter(|d| d.reason == reason).flat_map(|d| &d.samples);
        let room = ASKED.saturating_sub(packets.len());
        packets.extend(samples.filter_map(|s| s.tuple()).take(room));
    }
    // Without ports a packet says too little of its entry.
    packets.retain(|t| t.source_port != 0 && t.destination_port != 0);
    packets.into_iter().take(ASKED).collect()
}

/// Asks the kernel for the entry of each packet.
fn join(table: &mut Connections, packets: &[Tuple]) -> Result<()> {
    if packets.is_empty() {
        return Ok(());
    }
    let mut conntrack = Conntrack::open()?;
    for packet in packets {
        match conntrack.get(&to_kernel(packet))? {
            Some(entry) => table.joined.push((*packet, group(&entry))),
            None => table.absent.push(*packet),
        }
    }
    Ok(())
}

fn to_kernel(packet: &Tuple) -> weir_netlink::conntrack::Tuple {
    weir_netlink::conntrack::Tuple {
        source: packet.source.into(),
        destination: packet.destination.into(),
        protocol: packet.protocol,
        source_port: packet.source_port,
        destination_port: packet.destination_port,
    }
}
