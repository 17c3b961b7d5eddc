//! Evidence that belongs to no namespace.

mod cgroups;
mod cores;
mod log;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use weir_sys::procfs::{parse_pairs, parse_pressure};
use weir_sys::sched::process_cpu_time;
use weir_sys::{NetNs, ProcRoot, sysctl};
use weir_text::order;

use super::{Options, hidden};
use crate::evidence::{Cost, Counters, Delta, EvidenceSource, Machine, Sight, counters_since};
use log::Log;

/// Global settings that a cause asks for.
pub(super) const SETTINGS: &[&str] = &[
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_buckets",
    "net.netfilter.nf_log_all_netns",
    "net.core.netdev_max_backlog",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.dev_weight",
    "net.core.flow_limit_table_len",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.core.optmem_max",
    "net.core.default_qdisc",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.udp_mem",
    "net.ipv4.icmp_msgs_per_sec",
    "net.ipv4.icmp_msgs_burst",
    "net.ipv4.neigh.default.gc_thresh1",
    "net.ipv4.neigh.default.gc_thresh2",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv6.neigh.default.gc_thresh1",
    "net.ipv6.neigh.default.gc_thresh2",
    "net.ipv6.neigh.default.gc_thresh3",
    "net.ipv6.route.max_size",
    "fs.file-max",
    "fs.nr_open",
    "kernel.printk_ratelimit",
    "vm.min_free_kbytes",
];

/// True of a command about a setting that the whole machine has in common.
pub(crate) fn is_of_machine(command: &str) -> bool {
    SETTINGS.iter().any(|name| command.contains(name))
}

/// Counters of `/proc/vmstat` that tell of memory running out.
const MEMORY_EVENTS: &[&str] = &["oom_kill", "pgscan_direct", "pgsteal_direct", "compact_stall"];

/// Tables of `/proc/net/stat` whose counters are one for all namespaces (net/ipv4/route.c, net/core/neighbour.c).
const TABLES: &[&str] = &["rt_cache", "arp_cache", "ndisc_cache"];

/// The machine at the window's beginning.
#[derive(Debug)]
pub(super) struct Looking {
    earlier: Machine,
    log: Option<Log>,
    cpu: Duration,
}

/// Reads it for the first time.
pub(super) fn begin(options: &Options, sources: &mut BTreeMap<EvidenceSource, Sight>) -> Looking {
    let cpu = process_cpu_time();
    let log = match Log::begin(&options.root) {
        _ if options.hidden.contains(&EvidenceSource::Log) => {
            sources.insert(EvidenceSource::Log, hidden());
            None
        }
        Ok(log) => {
            sources.insert(EvidenceSource::Log, Sight::Seen);
            Some(log)
        }
        Err(e) => {
            sources.insert(EvidenceSource::Log, Sight::Blind(e.to_string()));
            None
        }
    };
    Looking { earlier: read(options, sources), log, cpu }
}

impl Looking {
    /// Reads it again: what counts up is the growth since then.
    pub(super) fn end(
        &mut self,
        options: &Options,
        sources: &mut BTreeMap<EvidenceSource, Sight>,
    ) -> Machine {
        let mut now = read(options, sources);
        let earlier = &self.earlier;
        counters_since(&mut now.counters, &earlier.counters);
        counters_since(&mut now.pressure_us, &earlier.pressure_us);
        counters_since(&mut now.memory_events, &earlier.memory_events);
        cores::since(&mut now.cores, &earlier.cores);
        cgroups::since(&options.root, &mut now.throttled, &earlier.throttled);
        if let Some(log) = &mut self.log {
            match log.end(&mut now) {
                Ok(None) => {}
                Ok(Some(gap)) => _ = sources.insert(EvidenceSource::Log, Sight::Partly(gap)),
                Err(e) => _ = sources.insert(EvidenceSource::Log, Sight::Blind(e.to_string())),
            }
        }
        now
    }

    /// The resources that weir itself has used since the beginning.
    pub(super) fn own_cost(&self, root: &ProcRoot, cost: &mut Cost) {
        cost.cpu_ns = process_cpu_time().saturating_sub(self.cpu).as_nanos() as u64;
        let status = root.read_optional("proc/self/status").unwrap_or_default();
        // VmHWM: the largest resident memory of the process's life (proc_pid_status(5)).
        let peak = status
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:")?.split_ascii_whitespace().next()?.parse().ok());
        cost.memory_bytes = peak.unwrap_or(0_u64).saturating_mul(1024);
    }
}

/// The machine now.
fn read(options: &Options, sources: &mut BTreeMap<EvidenceSource, Sight>) -> Machine {
    let root = &options.root;
    let kernel = root.read_optional("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut machine = Machine { kernel, ..Machine::default() };
    (machine.settings, machine.counters) = global(root);
    let mut look = |source: EvidenceSource, read: &mut dyn FnMut() -> Sight| {
        let sight = if options.hidden.contains(&source) { hidden() } else { read() };
        // A counter that was not in sight at the beginning stays so: half of it says nothing.
        let blind = matches!(sources.get(&source), Some(Sight::Blind(_)));
        if !blind {
            sources.insert(source, sight);
        }
    };
    look(EvidenceSource::Cores, &mut || match cores::read(root) {
        Ok((cores, sight)) => {
            machine.cores = cores;
            sight
        }
        Err(e) => Sight::Blind(e.to_string()),
    });
    look(EvidenceSource::Pressure, &mut || {
        machine.pressure_us = pressure(root);
        machine.memory_bytes = memory(root);
        machine.memory_events = memory_events(root);
        machine.throttled = cgroups::read(root);
        match machine.pressure_us.is_empty() {
            false => Sight::Seen,
            true => Sight::Partly(
                "no pressure (PSI): the kernel lacks CONFIG_PSI, or was booted without psi=1".into(),
            ),
        }
    });
    machine
}

/// Settings and counters of which there is one for all namespaces. Some are to be seen in the machine's own namespace alone.
fn global(root: &ProcRoot) -> (BTreeMap<String, String>, Counters) {
    let here = || {
        let setting = |name: &&str| Some(((*name).to_owned(), sysctl::get_optional(root, name).ok()??));
        (order::map(SETTINGS.iter().filter_map(setting)), tables(root))
    };
    // Process 2 is the kernel's own, which no process namespace but the first has.
    let first = [1, 2].iter().find_map(|pid| NetNs::open(root.path(&format!("proc/{pid}/ns/net"))).ok());
    let elsewhere = first.and_then(|namespace| namespace.run(here).ok());
    elsewhere.unwrap_or_else(here)
}

/// Counters of the [`TABLES`] that the calling thread's namespace shows.
pub(super) fn tables(root: &ProcRoot) -> Counters {
    let table = |name: &&'static str| Some((*name, root.net_stat(name)?));
    let counters = TABLES.iter().filter_map(table).flat_map(|(table, columns)| {
        let counter = move |(name, value)| (format!("{table}.{name}"), Delta::at(value));
        columns.into_iter().filter(|(name, _)| name != "entries").map(counter)
    });
    order::map(counters)
}

/// `cpu.some`, `memory.full`, ...: time stalled, us.
fn pressure(root: &ProcRoot) -> Counters {
    let mut counters = Counters::new();
    for resource in ["cpu", "memory", "io", "irq"] {
        let text = root.read_optional(&format!("proc/pressure/{resource}")).unwrap_or_default();
        let named = |(kind, us)| (format!("{resource}.{kind}"), Delta::at(us));
        counters.extend(parse_pressure(&text).into_iter().map(named));
    }
    counters
}

/// Lines `MemTotal:  1000 kB` of /proc/meminfo; kB there are KiB (proc_meminfo(5)).
fn memory(root: &ProcRoot) -> BTreeMap<String, u64> {
    let text = root.read_optional("proc/meminfo").unwrap_or_default();
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some((name.to_owned(), kib.checked_mul(1024)?))
    };
    order::map(text.lines().filter_map(line))
}

fn memory_events(root: &ProcRoot) -> Counters {
    let text = root.read_optional("proc/vmstat").unwrap_or_default();
    let wanted = |name: &str| MEMORY_EVENTS.contains(&name) || name.starts_with("allocstall");
    let counters = parse_pairs(&text).into_iter().filter(|(name, _)| wanted(name));
    order::map(counters.map(|(name, value)| (name, Delta::at(value))))
}
