//! Queues, drivers, cores.

mod bufferbloat;
mod checksum_offload;
mod cpu_throttled;
mod hot_core;
mod lost;
mod memory_pressure;
mod offloads_off;
mod programs;
mod qdisc_full;
#[cfg(test)]
mod recorded;
mod ring_overflow;
mod softnet_backlog;
mod softnet_squeeze;
mod steal;
mod tap_queue_full;
mod tc_drop;
mod tx_stall;
mod xdp_drop;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &qdisc_full::CAUSE,
    &tc_drop::CAUSE,
    &xdp_drop::CAUSE,
    &tx_stall::CAUSE,
    &softnet_backlog::CAUSE,
    &softnet_squeeze::CAUSE,
    &ring_overflow::CAUSE,
    &tap_queue_full::CAUSE,
    &hot_core::CAUSE,
    &steal::CAUSE,
    &cpu_throttled::CAUSE,
    &offloads_off::CAUSE,
    &checksum_offload::CAUSE,
    &memory_pressure::CAUSE,
    &bufferbloat::CAUSE,
];
