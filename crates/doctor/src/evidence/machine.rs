//! Evidence that belongs to no namespace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Counters, Delta};

/// The machine as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Cores that are online.
    pub cores: Vec<Core>,
    /// Counters that are one for all namespaces: `rt_cache.in_martian_src`, `arp_cache.table_fulls`, `ndisc_cache.*` (the tables of
    /// `/proc/net/stat`).
    #[serde(default)]
    pub counters: Counters,
    /// Global settings by sysctl name: `net.netfilter.nf_conntrack_max`, `net.core.netdev_max_backlog`, `net.ipv4.tcp_mem`,
    /// `net.ipv4.neigh.default.gc_thresh3`, ...
    pub settings: BTreeMap<String, String>,
    /// Pressure: µs stalled by `cpu.some`, `memory.some`, `memory.full`, `io.some`, ... Empty without PSI.
    pub pressure_us: Counters,
    /// `MemTotal`, `MemAvailable`, `SUnreclaim`, ... of /proc/meminfo, bytes.
    pub memory_bytes: BTreeMap<String, u64>,
    /// Counters of /proc/vmstat that tell of memory running out (`allocstall_*`, `oom_kill`, `pgscan_direct`).
    pub memory_events: Counters,
    /// Control groups that were held back.
    pub throttled: Vec<CgroupThrottle>,
    /// Lines of the kernel's log that came in the window and are about packets, at most 500; text from outside.
    pub log: Vec<String>,
    /// All lines of the log that came in the window.
    #[serde(default)]
    pub log_lines: u64,
}

impl Machine {
    /// A setting as a number.
    pub fn setting(&self, name: &str) -> Option<u64> {
        #[cfg(test)]
        super::asked::note(name);
        self.settings.get(name)?.trim().parse().ok()
    }
}

/// One core.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Core {
    /// Number.
    pub number: usize,
    /// Ticks: `user`, `nice`, `system`, `idle`, `iowait`, `irq`, `softirq`, `steal`.
    pub ticks: Counters,
    /// Packets taken from the backlog or a card (softnet_stat, column 1).
    pub processed: Delta,
    /// Packets that the backlog had no room for (column 2).
    pub dropped: Delta,
    /// Times that the budget ended before the work (column 3).
    pub squeezed: Delta,
    /// Packets that the flow limit refused (column 11).
    pub flow_limited: Delta,
    /// Interrupts of network cards and virtio queues.
    pub interrupts: Delta,
}

/// Since this release the kernel says with a drop whether nftables did it (NF_DROP_REASON in nft_do_chain).
const TOLD_BY_PLACE: (u32, u32) = (6, 7);

/// True if a kernel of that release tells by the place of a drop whether nftables did it, and of one that is not understood.
pub(crate) fn told_by_place(kernel: &str) -> bool {
    let mut parts = kernel.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= TOLD_BY_PLACE,
        _ => true,
    }
}

impl Core {
    /// Share of its time that went to `what` (a name of [`Core::ticks`]), 0 to 1.
    pub fn share(&self, what: &str) -> f64 {
        let all: u64 = self.ticks.values().map(|d| d.change()).sum();
        if all == 0 {
            return 0.0;
        }
        self.ticks.get(what).map_or(0.0, |d| d.change() as f64 / all as f64)
    }
}

/// A control group that ran out of CPU or memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupThrottle {
    /// Path below the root of the hierarchy; text from outside.
    pub path: String,
    /// Periods in which it was held back (`cpu.stat` nr_throttled).
    pub throttled: Delta,
    /// For how long, µs.
    pub throttled_us: Delta,
    /// Times that its memory limit was hit (`memory.events` max; `memory.failcnt` of the old hierarchy).
    pub memory_max: Delta,
    /// Network sockets of the programs in it, as far as they were counted.
    #[serde(default)]
    pub sockets: u64,
}
