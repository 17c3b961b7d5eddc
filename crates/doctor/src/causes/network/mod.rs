//! Routes, MTU, fragments, neighbours.

mod blackhole_route;
#[cfg(test)]
mod fixture;
mod forwarding_off;
mod fragmentation_needed;
mod fragments_lost;
mod frames;
mod martian_source;
mod no_route;
mod pmtu_blackhole_own;
mod pmtu_blackhole_remote;
mod pmtu_cached;
mod policy_route;
mod reassembly_memory;
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
];
