//! Losses on this machine, of any owner: what they explain was not lost beyond it.

use super::is_noise;
use crate::evidence::{DropGroup, Evidence, Namespace};

/// Causes that lose packets on this host. If one of them was found, the loss is not looked for elsewhere.
pub(super) const LOSES_HERE: &[&str] = &[
    "accept-queue-full",
    "file-limit",
    "syn-backlog-full",
    "udp-buffer-full",
    "udp-memory",
    "tcp-memory",
    "cgroup-memory",
    "receive-window-limited",
    "window-scaling-stripped",
    "mss-small",
    "paws-behind-nat",
    "socket-backlog",
    "no-listener",
    "cgroup-bpf-drop",
    "ipsec-policy",
    "tunnel-mismatch",
    "conntrack-full",
    "conntrack-early-drop",
    "snat-ports-exhausted",
    "conntrack-insert-race",
    "conntrack-invalid-dropped",
    "conntrack-invalid-reset",
    "conntrack-entry-lost",
    "hairpin-missing",
    "masquerade-missing",
    "conntrack-zone-split",
    "nft-rule-drop",
    "iptables-legacy-drop",
    "policy-drop",
    "bridge-netfilter",
    "set-limit",
    "rule-limit",
    "nfqueue-full",
    "rule-random",
    "forwarding-off",
    "no-route",
    "blackhole-route",
    "reverse-path-filter",
    "martian-source",
    "routing-loop",
    "pmtu-blackhole-own",
    "pmtu-blackhole-remote",
    "fragmentation-needed",
    "fragments-lost",
    "reassembly-memory",
    "mtu-mismatch",
    "neighbour-unresolved",
    "neighbour-queue-full",
    "neighbour-table-full",
    "duplicate-address",
    "asymmetric-path",
    "policy-route",
    "link-down",
    "bridge-blocked",
    "qdisc-full",
    "tc-drop",
    "xdp-drop",
    "tx-stall",
    "softnet-backlog",
    "ring-overflow",
    "cpu-throttled",
    "checksum-offload",
    "memory-pressure",
    "bufferbloat",
];

/// Counts all losses on this machine, of any owner: the most that could explain anything.
pub(super) fn lost_here(evidence: &Evidence) -> u64 {
    let dropped: u64 = evidence.drops.iter().filter(|d| !is_noise(d)).map(|d| d.packets).sum();
    // Counters of losses that raise no drop event, or for hosts without drop events.
    const COUNTERS: [&str; 12] = [
        "tcpext.ListenDrops",
        "tcpext.TCPBacklogDrop",
        "tcpext.TCPRcvQDrop",
        "ip.InDiscards",
        "ip.OutDiscards",
        "ip.OutNoRoutes",
        "ip.InAddrErrors",
        "ip.ReasmFails",
        "ip.FragFails",
        "conntrack.drop",
        "conntrack.insert_failed",
        "tcp.InErrs",
    ];
    let counted = |n: &Namespace| {
        let protocols: u64 = COUNTERS.iter().map(|name| n.grew(name)).sum();
        let of_interface = |i: &crate::evidence::Interface| {
            let counters =
                ["rx_dropped", "tx_dropped", "rx_missed_errors", "rx_errors", "tx_errors", "rx_over_errors"];
            let own: u64 = counters.iter().filter_map(|name| i.counters.get(*name)).map(|c| c.change()).sum();
            let queues: u64 = i.qdiscs.iter().map(|q| q.dropped.change()).sum();
            let filters: u64 = i.filters.iter().map(|f| f.dropped.change()).sum();
            own + queues + filters
        };
        protocols + n.interfaces.iter().map(of_interface).sum::<u64>()
    };
    let cores: u64 =
        evidence.machine.cores.iter().map(|c| c.dropped.change() + c.flow_limited.change()).sum();
    // An event and a counter may tell of the same packet: the larger is enough.
    dropped.max(evidence.namespaces.iter().map(counted).sum::<u64>() + cores)
}

/// The same of TCP alone, by events: segments that carry something, and those that set up a connection. Events tell of every packet; where
/// they are out of sight, counters count for both.
pub(super) fn tcp_lost_here(evidence: &Evidence, sees_drops: bool) -> TcpLost {
    if !sees_drops {
        let all = lost_here(evidence);
        return TcpLost { segments: all, opening: all };
    }
    let mut lost = TcpLost { segments: evidence.cost.events_lost, opening: evidence.cost.events_lost };
    for drops in evidence.drops.iter().filter(|d| d.protocol == weir_wire::protocol::TCP && !is_noise(d)) {
        let opening = (opening_share(drops) * drops.packets as f64).round() as u64;
        // The stack puts segments together, and drops them as one packet.
        let segments = drops.packets.max(drops.bytes / SEGMENT);
        lost.opening += opening;
        lost.segments += segments.saturating_sub(opening);
    }
    let counted = |n: &Namespace| -> u64 {
        let of = |i: &crate::evidence::Interface| {
            let names = ["rx_missed_errors", "rx_errors", "tx_errors", "rx_over_errors"];
            names.iter().filter_map(|name| i.counters.get(*name)).map(|c| c.change()).sum::<u64>()
        };
        n.interfaces.iter().map(of).sum()
    };
    // Losses of a card raise no event, and can be anything.
    let cards: u64 = evidence.namespaces.iter().map(counted).sum();
    // A listener that is full also drops the acknowledgement that ends a handshake.
    let listeners = |n: &Namespace| n.grew("tcpext.ListenDrops");
    lost.segments += cards;
    lost.opening += cards + evidence.namespaces.iter().map(listeners).sum::<u64>();
    lost
}

/// Bytes of a full segment on Ethernet.
const SEGMENT: u64 = 1500;

/// Packets of TCP that this machine lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TcpLost {
    /// Segments of connections that are set up, at most.
    pub(super) segments: u64,
    /// SYNs and their answers, at most.
    pub(super) opening: u64,
}

/// The share of a group that sets up connections, by its samples. Without any it may be all.
fn opening_share(drops: &DropGroup) -> f64 {
    let flags: Vec<u8> = drops.samples.iter().filter_map(crate::evidence::Sample::tcp_flags).collect();
    let opening = flags.iter().filter(|flags| **flags & weir_wire::Tcp::SYN != 0).count();
    if flags.is_empty() { 0.0 } else { opening as f64 / flags.len() as f64 }
}
