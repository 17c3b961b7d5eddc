//! Sockets and the programs behind them, and what is not on this host.

mod accept_queue_full;
mod cgroup_bpf_drop;
mod cgroup_memory;
mod ephemeral_ports_exhausted;
mod file_limit;
mod fixes;
#[cfg(test)]
mod fixtures;
mod flows;
mod ipsec_policy;
mod memory;
mod mss_small;
mod no_listener;
mod not_on_this_host;
mod paws_behind_nat;
mod receive_window_limited;
mod send_buffer_limited;
mod socket_backlog;
mod syn_backlog_full;
mod tcp_memory;
mod time_wait_full;
mod tunnel_mismatch;
mod udp_buffer_full;
mod udp_memory;
mod window_scaling_stripped;

use super::Cause;

/// Those of this group.
pub(super) static CAUSES: &[&Cause] = &[
    &accept_queue_full::CAUSE,
    &file_limit::CAUSE,
    &syn_backlog_full::CAUSE,
    &udp_buffer_full::CAUSE,
    &udp_memory::CAUSE,
    &tcp_memory::CAUSE,
    &cgroup_memory::CAUSE,
    &receive_window_limited::CAUSE,
    &send_buffer_limited::CAUSE,
    &window_scaling_stripped::CAUSE,
    &mss_small::CAUSE,
    &ephemeral_ports_exhausted::CAUSE,
    &time_wait_full::CAUSE,
    &paws_behind_nat::CAUSE,
    &socket_backlog::CAUSE,
    &no_listener::CAUSE,
    &cgroup_bpf_drop::CAUSE,
    &ipsec_policy::CAUSE,
    &tunnel_mismatch::CAUSE,
    &not_on_this_host::CAUSE,
];
