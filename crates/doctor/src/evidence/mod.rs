//! The evidence of a host in a window. Plain values: a stored [`Evidence`] is as good as a fresh one.
//!
//! A collector fills one part, in one file of [`crate::collect`]. It names the parts that it could not see in
//! [`Evidence::evidence_sources`] or [`Namespace::blind`]; any other empty part means "looked, and nothing was there".

mod connections;
mod drops;
mod fastpath;
mod flows;
mod interfaces;
mod machine;
mod nat;
mod neighbours;
mod routes;
mod rules;
mod sockets;
mod transit;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use connections::{ConnectionGroup, Connections, Service};
pub use drops::{DropGroup, Sample, Tuple};
pub use fastpath::{FastPath, FastPathProcess};
pub use flows::{FlowEvent, FlowEventKind};
pub(crate) use interfaces::is_within;
pub use interfaces::{BpfProgram, Interface, Qdisc, TcFilter};
pub(crate) use machine::told_by_place;
pub use machine::{CgroupThrottle, Core, Machine};
pub use nat::{LARGEST_TABLE, NatHost, NatRow, NatRule, NatSource, NatTable, Refused, TimeoutRule};
pub use neighbours::{Moved, Neighbour, Neighbours};
pub use routes::{Lookup, RememberedMtu, RouteOutcome, Routes, UnusualRoute};
pub use rules::{Backend, Blame, Chain, Missed, Rule, RuleVerdict, Ruleset, SetState};
pub(crate) use sockets::{Earlier, TcpCounts};
pub use sockets::{FileLimit, Listener, PortsInUse, Sockets, TcpFlow, TcpTotals, UdpSocket};
pub use transit::{Moment, Queueing, Repeated, SilentPort, StuckHost, Transit, TransitNetwork};
pub use weir_conntrack::SnatPool;

/// Version of the stored layout.
pub const VERSION: u32 = 1;

/// Everything that was seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// See [`VERSION`].
    pub version: u32,
    /// Length of the window, s.
    pub window_s: f64,
    /// Its end, seconds since 1970, UTC.
    pub ended_unix_s: i64,
    /// Which evidence sources were in sight, of the machine as a whole.
    pub evidence_sources: BTreeMap<EvidenceSource, Sight>,
    /// Evidence that belongs to no namespace.
    pub machine: Machine,
    /// The namespaces looked at.
    pub namespaces: Vec<Namespace>,
    /// Packets that the kernel threw away, by where and why (`skb:kfree_skb`).
    pub drops: Vec<DropGroup>,
    /// Retransmissions and resets of TCP (`tcp:*`).
    pub flows: Vec<FlowEvent>,
    /// A table of `weir nat` that was brought to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat: Option<NatTable>,
    /// The cost of the examination.
    pub cost: Cost,
}

weir_text::listed! {
    /// A source of evidence that may be missing by itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum EvidenceSource {
        /// Protocol counters (snmp, netstat, snmp6) and gauges.
        Counters = "protocol counters",
        /// Interfaces: counters, features, addresses.
        Interfaces = "interfaces",
        /// Counters of the network card's driver (ethtool -S).
        Driver = "driver counters",
        /// Queueing disciplines.
        Qdiscs = "queueing disciplines",
        /// Cores: softnet, ticks, steal.
        Cores = "cores",
        /// Pressure (PSI), memory, control groups.
        Pressure = "pressure and memory",
        /// Packets thrown away, with reason and place.
        Drops = "dropped packets",
        /// TCP retransmissions and resets as they happen.
        Flows = "retransmissions and resets",
        /// Statistics of connection tracking (ctnetlink).
        ConntrackStatistics = "conntrack statistics",
        /// The table of connections.
        Connections = "connections",
        /// Rules of nftables and iptables.
        Rules = "rules",
        /// Sockets (sock_diag).
        Sockets = "sockets",
        /// Neighbours.
        Neighbours = "neighbours",
        /// Routes and policy.
        Routes = "routes",
        /// Programs on interfaces (XDP, tc).
        Programs = "BPF programs",
        /// Settings (sysctl).
        Settings = "settings",
        /// The fast path of weir.
        FastPath = "fast path",
        /// TCP connections of others that pass through (a BPF program at interfaces).
        Transit = "TCP in transit",
        /// The kernel's log.
        Log = "kernel log",
    }
}

/// Whether an evidence source was in sight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "sight", content = "why")]
pub enum Sight {
    /// Whole.
    Seen,
    /// With gaps: which, and what would close them.
    Partly(String),
    /// Not at all: why, and what provides it.
    Blind(String),
}

/// A counter at the two ends of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Delta {
    /// At the beginning.
    pub before: u64,
    /// At the end.
    pub after: u64,
}

impl Delta {
    /// A single reading.
    pub fn at(value: u64) -> Self {
        Delta { before: value, after: value }
    }

    /// Growth. A counter that went back was reset: then what it holds now.
    pub fn change(self) -> u64 {
        self.after.checked_sub(self.before).unwrap_or(self.after)
    }

    /// This reading as the end of a window that began with `earlier`.
    pub fn since(&mut self, earlier: Delta) {
        self.before = earlier.after;
    }
}

impl From<(u64, u64)> for Delta {
    fn from((before, after): (u64, u64)) -> Self {
        Delta { before, after }
    }
}

impl From<Delta> for (u64, u64) {
    fn from(delta: Delta) -> Self {
        (delta.before, delta.after)
    }
}

/// Counters by name.
pub type Counters = BTreeMap<String, Delta>;

/// Turns a reading into the end of a window. A counter that did not exist at its beginning counts from zero: it was made in
/// between.
pub fn counters_since(now: &mut Counters, earlier: &Counters) {
    for (name, delta) in now {
        delta.since(earlier.get(name).copied().unwrap_or_default());
    }
}

/// One network namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Inode, as `lsns` shows it.
    pub id: u64,
    /// Its name for people: `host`, `netns blue`, `docker web`, `nginx (pid 312)`.
    pub name: String,
    /// True of the namespace that weir was started in.
    pub own: bool,
    /// Protocol counters by `proto.Name` (`tcpext.ListenDrops`, `ip.InAddrErrors`, `udp.RcvbufErrors`, `ip6.InDiscards`), and by the
    /// same rule `conntrack.drop` (names of ctnetlink: `insert_failed`, `early_drop`, `chain_toolong`, `clash_resolve`, ...),
    /// `xfrm.InNoStates`, `nfqueue.queue_dropped` (and of queue 3 alone `nfqueue.3.queue_dropped`). Those of routes and neighbours
    /// are the machine's ([`Machine::counters`]); its first namespace has them as well.
    pub counters: Counters,
    /// Values that go up and down, at the end of the window: `conntrack.count`, `sockstat.TCP.tw`, `sockstat.FRAG.memory`, ...
    pub gauges: BTreeMap<String, u64>,
    /// Settings that matter, by full sysctl name.
    pub settings: BTreeMap<String, String>,
    /// Interfaces.
    pub interfaces: Vec<Interface>,
    /// Connections that are tracked.
    pub connections: Option<Connections>,
    /// Rules.
    pub rules: Option<Ruleset>,
    /// Sockets.
    pub sockets: Option<Sockets>,
    /// Neighbours.
    pub neighbours: Option<Neighbours>,
    /// Routes.
    pub routes: Option<Routes>,
    /// The fast path, if there is one or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fastpath: Option<FastPath>,
    /// TCP that passed through, where packets are forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transit: Option<Transit>,
    /// The parts that a table of `weir nat` depends on, if one was brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat: Option<NatHost>,
    /// Evidence sources that were not in sight here though they were elsewhere, and why.
    pub blind: BTreeMap<EvidenceSource, String>,
}

impl Namespace {
    /// Growth of a counter in the window; 0 of one that this kernel lacks.
    pub fn grew(&self, counter: &str) -> u64 {
        #[cfg(test)]
        asked::note(counter);
        self.counters.get(counter).map_or(0, |d| d.change())
    }

    /// A setting as a number; `None` if it is not there or no number.
    pub fn setting(&self, name: &str) -> Option<u64> {
        #[cfg(test)]
        asked::note(name);
        self.settings.get(name)?.trim().parse().ok()
    }

    /// A gauge.
    pub fn gauge(&self, name: &str) -> Option<u64> {
        #[cfg(test)]
        asked::note(name);
        self.gauges.get(name).copied()
    }

    /// The interface of that number.
    pub fn interface(&self, index: u32) -> Option<&Interface> {
        self.interfaces.iter().find(|i| i.index == index)
    }
}

/// The cost of the examination on this machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// CPU of weir itself, ns.
    pub cpu_ns: u64,
    /// CPU of its programs in the kernel, ns, as far as it is known. The time of one run is measured at the window's beginning,
    /// if a program ran there, and holds for all runs. `None` if no program ran there, or the kernel does not report it.
    pub bpf_ns: Option<u64>,
    /// Runs of those programs.
    pub bpf_runs: Option<u64>,
    /// Drops that no longer fitted into the table in the kernel; they are counted, without reason and place.
    pub events_lost: u64,
    /// Time from the end of the window to the diagnosis, ms.
    pub analysis_ms: f64,
    /// Largest resident memory of weir, bytes.
    pub memory_bytes: u64,
}

impl Evidence {
    /// True if an evidence source was in sight, at least partly.
    pub fn sees(&self, source: EvidenceSource) -> bool {
        !matches!(self.evidence_sources.get(&source), None | Some(Sight::Blind(_)))
    }

    /// The namespace of that inode.
    pub fn namespace(&self, id: u64) -> Option<&Namespace> {
        self.namespaces.iter().find(|n| n.id == id)
    }
}

/// Names that were asked for, for the test that each of them is collected.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(name: &str) {
        NAMES.with(|names| names.borrow_mut().insert(name.to_owned()));
    }

    /// Those of this thread since the last time.
    pub(crate) fn take() -> BTreeSet<String> {
        NAMES.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_was_reset_counts_from_zero() {
        assert_eq!(Delta { before: 5, after: 9 }.change(), 4);
        assert_eq!(Delta { before: 9, after: 5 }.change(), 5);
        let mut now = Counters::from([("a".into(), Delta::at(9)), ("new".into(), Delta::at(3))]);
        counters_since(&mut now, &Counters::from([("a".into(), Delta::at(4))]));
        assert_eq!(now["a"], Delta { before: 4, after: 9 });
        assert_eq!(now["new"].change(), 3);
    }

    #[test]
    fn evidence_survives_storage() {
        let mut evidence = Evidence { version: VERSION, window_s: 10.0, ..Default::default() };
        evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("no BTF".into()));
        evidence.evidence_sources.insert(EvidenceSource::Counters, Sight::Seen);
        evidence.namespaces.push(Namespace { id: 1, name: "host".into(), ..Default::default() });
        let text = serde_json::to_string(&evidence).unwrap();
        assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), evidence);
        assert!(
            !evidence.sees(EvidenceSource::Drops)
                && !evidence.sees(EvidenceSource::Rules)
                && evidence.sees(EvidenceSource::Counters)
        );
    }
}
