//! Control groups that ran into their limits.

use std::collections::BTreeSet;

use weir_sys::ProcRoot;
use weir_sys::procfs::parse_pairs;
use weir_sys::socket_count::network_sockets;

use crate::evidence::{CgroupThrottle, Delta};

/// Groups that are looked at, and how deep: a host of Kubernetes has a few hundred, six deep.
const MOST: usize = 4096;
const DEPTH: usize = 10;
/// Processes of groups held back, and descriptors of each, that are asked about: whether there are sockets is the question.
const PROCESSES: usize = 2000;
const DESCRIPTORS: usize = 1000;

/// Paths of the hierarchies: cgroup2, cgroup2 beside the old ones, and the old ones with CPU and memory limits.
const UNIFIED: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
const CPU: [&str; 2] = ["sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"];
const MEMORY: &str = "sys/fs/cgroup/memory";

/// All that have ever been held back.
pub(super) fn read(root: &ProcRoot) -> Vec<CgroupThrottle> {
    let exists = |dir: &&&str| root.path(dir).join("cgroup.procs").exists();
    let mut found = Vec::new();
    if let Some(dir) = UNIFIED.iter().find(exists) {
        walk(root, dir, &mut found, &|text| {
            let counters = |file: &str| parse_pairs(&text(file).unwrap_or_default());
            let cpu = counters("cpu.stat");
            let value = |name: &str| cpu.get(name).copied().unwrap_or(0);
            let memory = counters("memory.events").get("max").copied().unwrap_or(0);
            (value("nr_throttled"), value("throttled_usec"), memory)
        });
    }
    if let Some(dir) = CPU.iter().find(exists) {
        walk(root, dir, &mut found, &|text| {
            let cpu = parse_pairs(&text("cpu.stat").unwrap_or_default());
            let value = |name: &str| cpu.get(name).copied().unwrap_or(0);
            // The old hierarchy counts nanoseconds (Documentation/scheduler/sched-bwc.rst).
            (value("nr_throttled"), value("throttled_time") / 1000, 0)
        });
    }
    if let Some(dir) = [MEMORY].iter().find(exists) {
        walk(root, dir, &mut found, &|text| {
            let failures = text("memory.failcnt").and_then(|t| t.parse().ok());
            (0, 0, failures.unwrap_or(0))
        });
    }
    found
}

/// Numbers of a group: periods throttled, us throttled, memory limit hit; read by file.
type Numbers<'a> = dyn Fn(&dyn Fn(&str) -> Option<String>) -> (u64, u64, u64) + 'a;

fn walk(root: &ProcRoot, top: &str, found: &mut Vec<CgroupThrottle>, numbers: &Numbers<'_>) {
    let mut left = MOST;
    let mut next = vec![(String::new(), 0)];
    while let Some((path, depth)) = next.pop() {
        let dir = format!("{top}{path}");
        let read = |file: &str| root.read_optional(&format!("{dir}/{file}"));
        let (throttled, throttled_us, memory_max) = numbers(&read);
        if (throttled, throttled_us, memory_max) != (0, 0, 0) {
            let name = if path.is_empty() { "/".to_owned() } else { path.clone() };
            found.push(CgroupThrottle {
                path: name,
                throttled: Delta::at(throttled),
                throttled_us: Delta::at(throttled_us),
                memory_max: Delta::at(memory_max),
                sockets: 0,
            });
        }
        if depth == DEPTH {
            continue;
        }
        let entries = std::fs::read_dir(root.path(&dir)).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).take(left) {
            left -= 1;
            next.push((format!("{path}/{}", entry.file_name().to_string_lossy()), depth + 1));
        }
    }
}

/// Keeps those that were held back since then, and counts their sockets.
pub(super) fn since(root: &ProcRoot, now: &mut Vec<CgroupThrottle>, earlier: &[CgroupThrottle]) {
    now.retain_mut(|group| {
        // The same path may stand in two of the old hierarchies, each of which has its own part.
        let cpu = |g: &CgroupThrottle| g.throttled.after != 0 || g.throttled_us.after != 0;
        let before = earlier.iter().find(|e| e.path == group.path && cpu(e) == cpu(group));
        let before = before.cloned().unwrap_or_default();
        group.throttled.since(before.throttled);
        group.throttled_us.since(before.throttled_us);
        group.memory_max.since(before.memory_max);
        group.throttled.change() + group.throttled_us.change() + group.memory_max.change() > 0
    });
    let mut left = PROCESSES;
    for group in now {
        group.sockets = sockets(root, &group.path, &mut left);
    }
}

/// Network sockets of the processes in a group and below it, wherever its hierarchy is.
fn sockets(root: &ProcRoot, path: &str, left: &mut usize) -> u64 {
    let tops = UNIFIED.iter().chain(&CPU).chain([&MEMORY]);
    let mut next: Vec<std::path::PathBuf> =
        tops.map(|top| root.path(&format!("{top}{}", path.trim_end_matches('/')))).collect();
    let mut pids = BTreeSet::new();
    while let Some(dir) = next.pop() {
        let listed = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        pids.extend(listed.lines().filter_map(|l| l.parse::<u32>().ok()));
        if pids.len() >= *left {
            break;
        }
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        next.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    let asked = pids.len().min(*left);
    *left -= asked;
    pids.into_iter().take(asked).map(|pid| network_sockets(root, pid, DESCRIPTORS)).sum()
}
