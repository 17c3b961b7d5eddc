//! A control group has no memory left for its sockets.

use weir_text::order;

use super::memory::Memory;
use super::tcp_memory::BY_SMALLER_WINDOWS;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{CgroupThrottle, EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "cgroup-memory",
    title: "a container has no memory left for its sockets",
    about: "The memory of a socket counts for the control group of its program (a container, a systemd unit). When the \
            group is at memory.max and the kernel finds nothing to reclaim, its sockets lose packets and its windows \
            shrink, while the machine has plenty of memory and tcp_mem and udp_mem are far from their limits.",
    must: &[
        "`max` in memory.events of a group grows",
        "sockets lose packets because memory is missing (PROTO_MEM, TCPRcvQDrop, MemErrors) or are pruned",
    ],
    should: &["tcp_mem and udp_mem are far from their limits"],
    must_not: &["the machine's own limit of TCP or UDP is reached"],
    lookalikes: &[
        ("tcp-memory", "the machine's limit of TCP is reached, and no group is at its own"),
        ("udp-memory", "the machine's limit of UDP is reached"),
        ("memory-pressure", "the machine as a whole has no memory"),
    ],
    remedy: "Give the group more memory, or see why its program holds so much in sockets: programs that do not read are the usual \
             reason.",
    sources: &[
        "mm/memcontrol.c: mem_cgroup_charge_skmem, mem_cgroup_under_socket_pressure",
        "Documentation/admin-guide/cgroup-v2.rst: memory.max, memory.stat `sock`",
    ],
    not_injected: Some(
        "it needs a control group of its own with the memory controller, which cgroup2 gives to the manager of the \
         machine, and not to a lab",
    ),
    ..Cause::of(Group::Sockets, examine)
};

/// Losses for want of memory, and what goes before them.
const SIGNS: [&str; 6] = [
    "tcpext.TCPRcvQDrop",
    "tcpext.PruneCalled",
    "tcpext.RcvPruned",
    "tcpext.OfoPruned",
    "udp.MemErrors",
    "udp6.MemErrors",
];

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let machine = &view.evidence.machine;
    let mut hit: Vec<&CgroupThrottle> =
        machine.throttled.iter().filter(|g| g.memory_max.change() > 0).collect();
    order::by_key(&mut hit, |g| std::cmp::Reverse(g.memory_max.change()));
    let Some(worst) = hit.first() else { return Vec::new() };
    view.namespaces().filter_map(|n| in_namespace(view, n, worst, hit.len())).collect()
}

fn in_namespace(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    group: &CgroupThrottle,
    groups: usize,
) -> Option<Finding> {
    // If the machine's own limit is near, that is the cause.
    let free = |protocol: u8| match protocol {
        6 => !Memory::of(view, namespace, "TCP").is_under_pressure(),
        17 | 136 => !Memory::of(view, namespace, "UDP").is_under_pressure(),
        _ => false,
    };
    let taken = view.take(namespace, |d| d.reason == "PROTO_MEM" && free(d.protocol));
    let signs = SIGNS.iter().filter(|name| free(if name.starts_with("udp") { 17 } else { 6 }));
    let moved: Vec<_> = signs
        .filter_map(|name| Some((*name, *namespace.counters.get(*name)?)))
        .filter(|(_, c)| c.change() > 0)
        .collect();
    if taken.is_empty() && moved.is_empty() {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.severity = finding.severity.max(Severity::Warning);
    finding.claims = taken.claims.clone();
    if free(6) {
        let cut =
            view.take(namespace, |d| d.protocol == 6 && BY_SMALLER_WINDOWS.contains(&d.reason.as_str()));
        finding.claims.extend(cut.claims);
    }
    finding.confidence = if taken.is_empty() || groups > 1 { Confidence::Low } else { Confidence::Medium };
    finding.object = group.path.clone();
    finding.summary =
        format!("The control group {} is at its limit of memory, and its sockets lose packets.", group.path);
    let times = group.memory_max.change();
    finding.counter(
        EvidenceSource::Pressure,
        "memory.events max",
        group.memory_max,
        format!("{}: limit hit {times} times", group.path),
    );
    for (name, counter) in moved {
        finding.counter(EvidenceSource::Counters, name, counter, format!("{name} by {}", counter.change()));
    }
    if !taken.is_empty() {
        finding.seen(EvidenceSource::Drops, format!("{} packets dropped as PROTO_MEM", taken.packets));
    }
    finding.not.push("not tcp_mem or udp_mem: the machine's own limits are far away".into());
    if groups > 1 {
        finding.not.push(format!("{groups} groups hit their limits in the window: this one did most often"));
    }
    finding.fixes = fixes(group);
    Some(finding)
}

fn fixes(group: &CgroupThrottle) -> Vec<Fix> {
    let folder = format!("/sys/fs/cgroup/{}", group.path.trim_start_matches('/'));
    let stat = format!("{folder}/memory.stat");
    let unit = group.path.rsplit('/').next().unwrap_or_default();
    let mut fixes =
        vec![Fix::look("see how much of it is sockets", [sh!("grep -E '^(anon|file|sock) ' {}", stat)])];
    if unit.ends_with(".service") || unit.ends_with(".scope") || unit.ends_with(".slice") {
        fixes.push(Fix::new(
            "give the unit more memory, until the next start of the machine",
            "that memory is taken from the others",
            [
                sh!("systemctl show -p MemoryMax -- {}", unit),
                sh!("systemctl set-property --runtime -- {} MemoryMax=BYTES", unit),
            ],
            [sh!("systemctl set-property --runtime -- {} MemoryMax=BYTES_BEFORE", unit)],
        ));
    }
    fixes
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{dropped, grew, host, seen};
    use super::*;
    use crate::evidence::{DropGroup, Evidence};

    fn evidence(used: u64, drops: Vec<DropGroup>) -> Evidence {
        let mut evidence = seen(host(&[]), drops);
        evidence.machine.settings.insert("net.ipv4.tcp_mem".into(), "100 200 300".into());
        evidence.namespaces[0].gauges.insert("sockstat.TCP.mem".into(), used);
        let group = CgroupThrottle {
            path: "/system.slice/web.service".into(),
            memory_max: grew(5),
            ..CgroupThrottle::default()
        };
        evidence.machine.throttled = vec![group];
        evidence
    }

    #[test]
    fn losses_far_from_the_machines_limit_are_the_groups() {
        let evidence = evidence(50, vec![dropped("PROTO_MEM", "tcp_data_queue", 6, 40)]);
        let found = crate::diagnosis::diagnose(&evidence);
        assert_eq!(found.findings[0].cause, CAUSE.id);
        assert_eq!(found.findings[0].object, "/system.slice/web.service");
        assert!(found.findings.iter().all(|f| f.cause != "tcp-memory"), "the general one gives way");
    }

    #[test]
    fn at_the_machines_limit_or_without_losses_it_is_not() {
        let drops = || vec![dropped("PROTO_MEM", "tcp_data_queue", 6, 40)];
        assert_eq!(examine(&EvidenceView::of(&evidence(250, drops()))), []);
        assert_eq!(examine(&EvidenceView::of(&evidence(50, Vec::new()))), []);
        let mut well = evidence(50, drops());
        well.machine.throttled[0].memory_max = grew(0);
        assert_eq!(examine(&EvidenceView::of(&well)), []);
    }
}
