//! Readings of the samplers on a host during a trial: deltas over the measuring window, and series.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::series::Series;

/// CPU time by mode, in seconds (`/proc/stat`, proc_stat(5); `guest` is contained in `user`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// User mode, including nice and guest.
    pub user_s: f64,
    /// Kernel mode outside interrupts.
    pub system_s: f64,
    /// Hard interrupts.
    pub irq_s: f64,
    /// Soft interrupts: where forwarding happens.
    pub softirq_s: f64,
    /// Taken by the hypervisor.
    pub steal_s: f64,
    /// Idle, including waiting for I/O.
    pub idle_s: f64,
}

impl CpuTime {
    /// Seconds in which the core did something for this machine (neither idle nor stolen).
    pub fn busy_s(&self) -> f64 {
        self.user_s + self.system_s + self.irq_s + self.softirq_s
    }

    /// All seconds, idle and stolen ones included.
    pub fn total_s(&self) -> f64 {
        self.busy_s() + self.steal_s + self.idle_s
    }
}

/// Interface counters over the window (`/proc/net/dev`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceDelta {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets (skbs: a GSO super-packet is one) received.
    pub rx_packets: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Dropped on receive.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets (skbs) sent.
    pub tx_packets: u64,
    /// Transmit errors.
    pub tx_errors: u64,
    /// Dropped on transmit.
    pub tx_dropped: u64,
}

/// One host over the measuring window of one trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostSample {
    /// Length of the window in seconds.
    pub window_s: f64,
    /// Per core. In the lab all hosts share one machine and show the same cores.
    pub cpu: Vec<CpuTime>,
    /// Memory in use at the end of the window (MemTotal - MemAvailable), bytes.
    pub memory_used_bytes: u64,
    /// Per interface.
    pub interfaces: BTreeMap<String, InterfaceDelta>,
    /// Conntrack entries at the end of the window (`nf_conntrack_count`), if the host has conntrack.
    pub conntrack_count: Option<u64>,
    /// Other kernel counters that moved, by dotted name: `softnet.dropped`, `softnet.time_squeeze`,
    /// `conntrack.insert_failed`, `conntrack.drop`, `tcp.RetransSegs`, `udp.RcvbufErrors`, `ip.InDiscards`, ...
    pub counters: BTreeMap<String, u64>,
    /// Once-a-second series: `cpu_busy_cores`, `softirq_cores`, `steal_cores`, `rx_bps`, `tx_bps`, `memory_used_bytes`, `conntrack_count`.
    pub series: Vec<Series>,
}

impl HostSample {
    /// Share of all CPU time that the hypervisor took, 0..=1; 0 without CPU figures.
    pub fn steal_ratio(&self) -> f64 {
        let total: f64 = self.cpu.iter().map(CpuTime::total_s).sum();
        let steal: f64 = self.cpu.iter().map(|c| c.steal_s).sum();
        if total > 0.0 { steal / total } else { 0.0 }
    }

    /// Busy cores on average over the window.
    pub fn busy_cores(&self) -> f64 {
        let busy: f64 = self.cpu.iter().map(CpuTime::busy_s).sum();
        if self.window_s > 0.0 { busy / self.window_s } else { 0.0 }
    }
}
