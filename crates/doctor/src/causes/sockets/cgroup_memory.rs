//! A control group has no memory left for its sockets.

use super::fixes::look;
use super::memory::Limits;
use super::tcp_memory::BY_SMALLER_WINDOWS;
use crate::causes::shell::word;
use crate::causes::{Cause, Group, Scene};
use crate::evidence::{CgroupThrottle, Namespace, Plane};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "cgroup-memory",
    group: Group::Sockets,
    title: "a container has no memory left for its sockets",
    about: "What a socket holds counts as memory of the control group of its program (a container, a systemd unit). When the group \
            is at memory.max and the kernel finds nothing to reclaim, its sockets lose packets and its windows shrink, while the \
            machine has plenty of memory and tcp_mem and udp_mem are far from their limits.",
    must: &[
        "`max` in memory.events of a group grows",
        "sockets lose packets for want of memory (PROTO_MEM, TCPRcvQDrop, MemErrors) or are pruned",
    ],
    should: &["tcp_mem and udp_mem are far from their limits"],
    must_not: &["the machine's own limit of TCP or UDP is reached"],
    lookalikes: &[
        ("tcp-memory", "the machine's limit of TCP is reached, and no group is at its own"),
        ("udp-memory", "the machine's limit of UDP is reached"),
        ("memory-pressure", "the machine as a whole has no memory"),
    ],
    yields_to: &[],
    remedy: "Give the group more memory, or see why its program holds so much in sockets: programs that do not read are the usual \
             reason.",
    sources: &[
        "mm/memcontrol.c: mem_cgroup_charge_skmem, mem_cgroup_under_socket_pressure",
        "Documentation/admin-guide/cgroup-v2.rst: memory.max, memory.stat `sock`",
    ],
    examine,
    recipes: Vec::new,
    not_injected: Some(
        "it needs a control group of its own with the memory controller, which cgroup2 gives to whoever manages the machine, \
         and not to a lab",
    ),
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

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    let machine = &scene.evidence.machine;
    let mut hit: Vec<&CgroupThrottle> =
        machine.throttled.iter().filter(|g| g.memory_max.change() > 0).collect();
    hit.sort_by_key(|g| std::cmp::Reverse(g.memory_max.change()));
    let Some(worst) = hit.first() else { return Vec::new() };
    scene.namespaces().filter_map(|n| in_namespace(scene, n, worst, hit.len())).collect()
}

/// True if the machine's own limit is near: then that is the cause.
fn near_limit(scene: &Scene<'_>, namespace: &Namespace, protocol: &str) -> bool {
    let setting =
        scene.evidence.machine.settings.get(&format!("net.ipv4.{}_mem", protocol.to_ascii_lowercase()));
    let limits = setting.and_then(|text| Limits::parse(text));
    let used = namespace.gauge(&format!("sockstat.{protocol}.mem"));
    matches!((limits, used), (Some(limits), Some(used)) if used >= limits.pressure)
}

fn in_namespace(
    scene: &Scene<'_>,
    namespace: &Namespace,
    group: &CgroupThrottle,
    groups: usize,
) -> Option<Finding> {
    let free = |protocol: u8| match protocol {
        6 => !near_limit(scene, namespace, "TCP"),
        17 | 136 => !near_limit(scene, namespace, "UDP"),
        _ => false,
    };
    let taken = scene.take(namespace, |d| d.reason == "PROTO_MEM" && free(d.protocol));
    let signs = SIGNS.iter().filter(|name| free(if name.starts_with("udp") { 17 } else { 6 }));
    let moved: Vec<_> = signs
        .filter_map(|name| Some((*name, *namespace.counters.get(*name)?)))
        .filter(|(_, c)| c.change() > 0)
        .collect();
    if taken.is_empty() && moved.is_empty() {
        return None;
    }
    let mut finding = scene.finding(CAUSE.id, namespace, taken.packets);
    finding.severity = finding.severity.max(Severity::Warning);
    finding.claims = taken.claims.clone();
    if free(6) {
        let cut =
            scene.take(namespace, |d| d.protocol == 6 && BY_SMALLER_WINDOWS.contains(&d.reason.as_str()));
        finding.claims.extend(cut.claims);
    }
    finding.confidence = if taken.is_empty() || groups > 1 { Confidence::Low } else { Confidence::Medium };
    finding.object = group.path.clone();
    finding.summary = format!(
        "The control group {} is at its limit of memory, and sockets lose packets for want of it.",
        group.path
    );
    let times = group.memory_max.change();
    finding.evidence.push(Fact::counter(
        Plane::Pressure,
        "memory.events max",
        group.memory_max,
        format!("{}: limit hit {times} times", group.path),
    ));
    for (name, counter) in moved {
        let text = format!("{name} by {}", counter.change());
        finding.evidence.push(Fact::counter(Plane::Counters, name, counter, text));
    }
    if !taken.is_empty() {
        finding
            .evidence
            .push(Fact::seen(Plane::Drops, format!("{} packets dropped as PROTO_MEM", taken.packets)));
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
    let stat = word(&format!("{folder}/memory.stat"));
    let unit = group.path.rsplit('/').next().unwrap_or_default();
    let mut fixes =
        vec![look("see how much of it is sockets", vec![format!("grep -E '^(anon|file|sock) ' {stat}")])];
    if unit.ends_with(".service") || unit.ends_with(".scope") || unit.ends_with(".slice") {
        fixes.push(Fix {
            title: "give the unit more memory, until the next start of the machine".into(),
            commands: vec![
                format!("systemctl show -p MemoryMax {}", word(unit)),
                format!("systemctl set-property --runtime {} MemoryMax=BYTES", word(unit)),
            ],
            risk: "that memory is taken from the others".into(),
            undo: vec![format!("systemctl set-property --runtime {} MemoryMax=BYTES_BEFORE", word(unit))],
            tune: Vec::new(),
        });
    }
    fixes
}

#[cfg(test)]
mod tests {
    use super::super::given::{dropped, grew, host, seen};
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
        assert_eq!(examine(&Scene::of(&evidence(250, drops()))), []);
        assert_eq!(examine(&Scene::of(&evidence(50, Vec::new()))), []);
        let mut well = evidence(50, drops());
        well.machine.throttled[0].memory_max = grew(0);
        assert_eq!(examine(&Scene::of(&well)), []);
    }
}
