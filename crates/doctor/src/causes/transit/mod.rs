//! TCP that passes through, and what happens to it beyond this host: where packets are lost or wait, and who does not answer.

mod ceiling;
mod excess;
#[cfg(test)]
mod fixture;
mod half_open;
mod loss_before;
mod loss_behind;
mod losses;
mod mtu;
mod policing;
mod queue;
mod receiver;
mod recipes;
mod resets;
mod signs;
mod unanswered;

use super::Cause;
use crate::evidence::Namespace;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &policing::CAUSE,
    &loss_behind::CAUSE,
    &loss_before::CAUSE,
    &queue::CAUSE,
    &mtu::CAUSE,
    &unanswered::CAUSE,
    &half_open::CAUSE,
    &resets::CAUSE,
    &receiver::CAUSE,
];

/// True if the connections that pass through this namespace show where packets are lost.
pub(super) fn shows_where(namespace: &Namespace) -> bool {
    signs::networks(namespace).any(|n| signs::is_lossy(n) || signs::is_black_hole(n))
}

/// Causes on this host that raise no event for the packets that they lose, or that delay or change them: their effect on connections looks
/// like one beyond this host.
const HERE: &[&str] = &[
    "asymmetric-path",
    "bridge-blocked",
    "bufferbloat",
    "checksum-offload",
    "cpu-throttled",
    "duplicate-address",
    "hairpin-missing",
    "link-down",
    "masquerade-missing",
    "qdisc-full",
    "ring-overflow",
    "routing-loop",
    "snat-ports-exhausted",
    "softnet-backlog",
    "tx-stall",
    "xdp-drop",
];
