//! All TCP sockets together have used up their memory.

use super::memory::Memory;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "tcp-memory",
    title: "memory of TCP under pressure",
    about: "All TCP sockets of the machine share net.ipv4.tcp_mem, in pages. Above the second number the kernel shrinks \
            windows and drops segments that came out of order; at the third it refuses segments, and ends connections \
            without an owner. Every connection of the machine becomes slow then, no matter which program holds the memory: \
            usually many connections that send or receive into programs that do not keep up.",
    must: &["TcpExt TCPMemoryPressures grows, or TCPAbortOnMemory, or segments are dropped as PROTO_MEM"],
    should: &[
        "`TCP: mem` of /proc/net/sockstat is above the second number of net.ipv4.tcp_mem",
        "PruneCalled, RcvPruned or TCPRcvQDrop grow",
        "`TCP: out of memory -- consider tuning tcp_mem` in the kernel's log",
    ],
    must_not: &["a control group hit its own limit while tcp_mem is far away"],
    lookalikes: &[
        ("cgroup-memory", "the same signs, with memory.max of a control group reached"),
        (
            "receive-window-limited",
            "one connection whose program does not read; PruneCalled may grow by that alone",
        ),
    ],
    yields_to: &["cgroup-memory"],
    remedy: "Find who holds it: connections with long queues. Smaller upper limits of each socket (tcp_rmem, tcp_wmem) share it \
             better; a larger tcp_mem helps if the machine has the memory to spare.",
    sources: &[
        "net/core/sock.c: __sk_mem_raise_allocated; net/ipv4/tcp.c: tcp_enter_memory_pressure, tcp_check_oom; net/ipv4/tcp_input.c: tcp_prune_queue",
        "tcp(7): tcp_mem",
    ],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

/// Signs that a socket has no room; by itself each may also come from one socket's own limit.
const SIGNS: [&str; 4] = ["tcpext.PruneCalled", "tcpext.RcvPruned", "tcpext.OfoPruned", "tcpext.TCPRcvQDrop"];

/// Reasons of drops that come from windows cut while they were in use (net/ipv4/tcp_input.c, tcp_prune_queue, tcp_sequence).
pub(super) const BY_SMALLER_WINDOWS: [&str; 6] = [
    "TCP_OFO_QUEUE_PRUNE",
    "TCP_OFO_DROP",
    "TCP_ZEROWINDOW",
    "TCP_OVERWINDOW",
    "TCP_INVALID_SEQUENCE",
    "TCP_INVALID_END_SEQUENCE",
];

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = view.take(namespace, |d| d.reason == "PROTO_MEM" && d.protocol == 6);
    let grew = |name: &str| namespace.grew(name);
    let memory = Memory::of(view, namespace, "TCP");
    let signs: u64 = SIGNS.iter().map(|name| grew(name)).sum();
    // If pressure began before the window, its counter does not move.
    let lasting = memory.is_under_pressure() && signs > 0;
    let begun = grew("tcpext.TCPMemoryPressures") + grew("tcpext.TCPAbortOnMemory") > 0;
    if refused.is_empty() && !begun && !lasting {
        return None;
    }
    // Who sends into a window that was just made smaller sends outside of it.
    let cut = view.take(namespace, |d| d.protocol == 6 && BY_SMALLER_WINDOWS.contains(&d.reason.as_str()));
    let counted = if view.sees_drops() { 0 } else { grew("tcpext.TCPRcvQDrop") };
    let mut finding = view.finding(CAUSE.id, namespace, refused.packets + cut.packets + counted);
    finding.severity = finding.severity.max(Severity::Warning);
    finding.claims = [refused.claims.as_slice(), &cut.claims].concat();
    if counted > 0 {
        finding.claims.push(view.counted(namespace, "tcpext.TCPRcvQDrop", counted));
    }
    finding.impact = if memory.is_under_pressure() { 0.5 } else { 0.1 };
    finding.confidence = if memory.is_under_pressure() { Confidence::High } else { Confidence::Medium };
    finding.summary =
        "All TCP sockets together hold as much memory as they may, so that every connection is held back."
            .into();
    for taken in [&refused, &cut] {
        for group in &taken.groups {
            finding.seen(
                EvidenceSource::Drops,
                format!("{} segments dropped as {}", group.packets, group.reason),
            );
        }
    }
    describe(view, namespace, memory, &mut finding);
    Some(finding)
}

fn describe(view: &EvidenceView<'_>, namespace: &Namespace, memory: Memory, finding: &mut Finding) {
    finding.grew_by(namespace, &["tcpext.TCPMemoryPressures", "tcpext.TCPAbortOnMemory"]);
    finding.grew_by(namespace, &SIGNS);
    if let (Some(limits), Some(used)) = (memory.limits, memory.used) {
        let text = format!(
            "TCP holds {used} pages; net.ipv4.tcp_mem holds back from {} and refuses from {}",
            limits.pressure, limits.most
        );
        finding.seen(EvidenceSource::Counters, text);
    }
    finding.fixes.push(Fix::look(
        "see who holds it: connections with long queues",
        [sh!("ss -tmnp | sort -k3,3nr | head -40"), sh!("cat /proc/net/sockstat")],
    ));
    let setting = view.evidence.machine.settings.get("net.ipv4.tcp_mem");
    if let (Some(now), Some(limits)) = (setting, memory.limits) {
        let why = "TCP was under pressure in the window";
        finding.fixes.push(Fix::set(
            "allow TCP more memory",
            "sockets may take so much more of the machine's memory, and the kernel can swap none of it",
            vec![Setting::new("net.ipv4.tcp_mem", now.clone(), limits.times(2), why)],
        ));
    }
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Responder,
        traffic: vec![
            Traffic::TcpServer { port: 7083, backlog: 64, mode: TcpMode::Deaf },
            Traffic::Bulk { to: "198.19.0.2:7083".into(), streams: 16, rate_bps: None },
            Traffic::TcpServer { port: 7084, backlog: 64, mode: TcpMode::Sink },
            Traffic::Bulk { to: "198.19.0.2:7084".into(), streams: 4, rate_bps: None },
        ],
        // 8, 12 and 16 MiB: no harm to a machine with a few connections of its own.
        machine: vec![("net.ipv4.tcp_mem", "2048 3072 4096".into())],
        also: vec!["receive-window-limited"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{dropped, host, seen};
    use super::*;
    use crate::evidence::{DropGroup, Evidence};

    fn evidence(counters: &[(&str, u64)], used: u64, drops: Vec<DropGroup>) -> Evidence {
        let mut evidence = seen(host(counters), drops);
        evidence.machine.settings.insert("net.ipv4.tcp_mem".into(), "100\t200\t300".into());
        evidence.namespaces[0].gauges.insert("sockstat.TCP.mem".into(), used);
        evidence
    }

    #[test]
    fn pressure_that_begins_and_pressure_that_lasts_are_found() {
        let begun =
            evidence(&[("tcpext.TCPMemoryPressures", 1)], 150, vec![dropped("PROTO_MEM", "x", 6, 30)]);
        let found = &(CAUSE.examine)(&EvidenceView::of(&begun))[0];
        assert_eq!((found.claims.len(), found.confidence), (1, Confidence::Medium));
        let lasting = evidence(&[("tcpext.PruneCalled", 40)], 250, Vec::new());
        let found = &(CAUSE.examine)(&EvidenceView::of(&lasting))[0];
        assert_eq!((found.severity, found.confidence), (Severity::Warning, Confidence::High));
        assert_eq!(found.fixes[1].commands, ["sysctl -w net.ipv4.tcp_mem='200 400 600'"]);
    }

    #[test]
    fn what_smaller_windows_cost_is_claimed_with_it() {
        let drops = vec![
            dropped("PROTO_MEM", "tcp_rcv_established", 6, 365),
            dropped("TCP_INVALID_SEQUENCE", "tcp_validate_incoming", 6, 149),
            dropped("TCP_OFO_QUEUE_PRUNE", "tcp_prune_ofo_queue", 6, 5),
        ];
        let diagnosis =
            crate::diagnosis::diagnose(&evidence(&[("tcpext.TCPMemoryPressures", 18)], 250, drops));
        assert_eq!((diagnosis.findings.len(), diagnosis.findings[0].explains_packets), (1, 519));
        let alone = vec![dropped("TCP_INVALID_SEQUENCE", "tcp_validate_incoming", 6, 149)];
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence(&[], 50, alone))), []);
    }

    #[test]
    fn one_socket_that_has_no_room_is_not() {
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&evidence(
                &[("tcpext.PruneCalled", 40), ("tcpext.TCPRcvQDrop", 4)],
                50,
                Vec::new()
            ))),
            []
        );
    }
}
