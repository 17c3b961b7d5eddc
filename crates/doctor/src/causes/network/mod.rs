//! Routes, MTU, fragments, neighbours.

mod asymmetric_path;
mod blackhole_route;
mod bridge_blocked;
mod duplicate_address;
#[cfg(test)]
mod fixture;
mod forwarding_off;
mod fragmentation_needed;
mod fragments_lost;
mod frames;
mod icmp_rate_limit;
mod ipv6;
mod link_down;
mod martian_source;
mod mtu_mismatch;
mod neighbour_queue_full;
mod neighbour_table_full;
mod neighbour_unresolved;
mod no_route;
mod pmtu_blackhole_own;
mod pmtu_blackhole_remote;
mod pmtu_cached;
mod policy_route;
mod reassembly_memory;
#[cfg(test)]
mod recorded;
mod reverse_path_filter;
mod routing_loop;
mod ways;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &forwarding_off::CAUSE,
    &no_route::CAUSE,
    &blackhole_route::CAUSE,
    &policy_route::CAUSE,
    &reverse_path_filter::CAUSE,
    &martian_source::CAUSE,
    &routing_loop::CAUSE,
    &pmtu_blackhole_own::CAUSE,
    &pmtu_blackhole_remote::CAUSE,
    &fragmentation_needed::CAUSE,
    &pmtu_cached::CAUSE,
    &fragments_lost::CAUSE,
    &reassembly_memory::CAUSE,
    &mtu_mismatch::CAUSE,
    &link_down::CAUSE,
    &neighbour_unresolved::CAUSE,
    &neighbour_queue_full::CAUSE,
    &neighbour_table_full::CAUSE,
    &duplicate_address::CAUSE,
    &bridge_blocked::CAUSE,
    &asymmetric_path::CAUSE,
    &icmp_rate_limit::CAUSE,
];
