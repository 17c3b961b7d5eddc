//! Signs in the counts of a network.

use crate::causes::EvidenceView;
use crate::causes::lost_here::{TcpLost, tcp_lost_here};
use crate::evidence::{Namespace, Repeated, StuckHost, TransitNetwork};

/// Share of lost segments from which on a transfer suffers (Mathis et al. 1997: half a per cent over 20 ms and 1,448 bytes are
/// 10 Mbit/s).
pub(super) const SUFFERS: f64 = 0.005;
/// Fewer lost segments are what any path has.
const FEW: u64 = 20;
/// A wait that people notice, ns: two thirds of what a call has (ITU-T G.114: 150 ms one way for the whole path). A radio link that stalls, or
/// a queue that manages itself, stays below.
const WORST_NS: u64 = 100_000_000;
/// Flows that wait have at least this share of the network's bytes.
const QUEUED_SHARE: f64 = 0.1;

/// Networks on either side of a namespace.
pub(super) fn networks(namespace: &Namespace) -> impl Iterator<Item = &TransitNetwork> {
    namespace.transit.iter().flat_map(|transit| &transit.networks)
}

/// Whether one direction loses segments.
pub(super) fn loses(part: &Repeated) -> bool {
    part.lost >= FEW && part.share() >= SUFFERS
}

/// Whether the way between this host and the network loses segments, without a queue or a size that explains it.
pub(super) fn is_lossy(network: &TransitNetwork) -> bool {
    (loses(&network.lost_to) || loses(&network.lost_from)) && !waits(network) && !is_black_hole(network)
}

/// Whether packets wait in a queue between this host and the network.
pub(super) fn waits(network: &TransitNetwork) -> bool {
    let queueing = &network.queueing;
    let share = queueing.bytes as f64 / network.bytes.max(1) as f64;
    share >= QUEUED_SHARE && queueing.longest_ns >= WORST_NS
}

/// A host that gets short packets and no long ones.
pub(super) fn swallows(host: &StuckHost) -> bool {
    host.long > host.short && host.carried < host.shortest && host.answers
}

/// Whether long segments to a host of the network vanish.
pub(super) fn is_black_hole(network: &TransitNetwork) -> bool {
    network.stuck.iter().any(swallows)
}

/// Packets of TCP that were lost on this machine.
pub(super) fn lost_here(view: &EvidenceView<'_>) -> TcpLost {
    tcp_lost_here(view.evidence, view.sees_drops())
}

/// True if losses here are enough to explain half of that many.
pub(super) fn explains(here: u64, lost: u64) -> bool {
    2 * here >= lost
}

/// Milliseconds.
pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
