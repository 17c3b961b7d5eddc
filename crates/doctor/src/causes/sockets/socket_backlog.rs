//! Segments come faster than a socket that is in use can take them.

use weir_text::order;

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix};

pub(super) const CAUSE: Cause = Cause {
    id: "socket-backlog",
    title: "backlog of a TCP socket full",
    about: "While a program is inside the kernel with a socket (a large read or write), segments for it wait in the \
            socket's backlog, which may hold as much as its receive and send buffer together. One connection that carries \
            very much, read by a core that is busy with other things, overflows it. TCP retransmits the lost segments, so \
            the cost is speed.",
    must: &["TcpExt TCPBacklogDrop grows, or segments are dropped as SOCKET_BACKLOG"],
    should: &["one connection with a very high rate, and a core that is busy"],
    lookalikes: &[
        ("softnet-backlog", "the queue of a core, before any socket: softnet_stat, CPU_BACKLOG"),
        ("tcp-memory", "memory of all sockets: PROTO_MEM"),
    ],
    remedy: "Read in other threads than those that do the work, in pieces of at most some 100 KB. Larger receive buffers \
             (net.ipv4.tcp_rmem) make the backlog larger as well.",
    sources: &["net/ipv4/tcp_ipv4.c: tcp_add_backlog; include/net/sock.h: sk_rcvqueues_full"],
    not_injected: Some(
        "segments must come while a program holds the socket inside the kernel for longer than its buffers last, which no \
         ordinary traffic in a lab brings about for certain",
    ),
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, |d| d.reason == "SOCKET_BACKLOG");
    let counted = namespace.grew("tcpext.TCPBacklogDrop");
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = view.claims(namespace, &taken, "tcpext.TCPBacklogDrop", counted);
    if !taken.is_empty() && counted > 0 {
        finding.confidence = Confidence::High;
    }
    finding.summary = format!(
        "{lost} segments came for sockets whose program was inside the kernel with them for too long."
    );
    finding.grew(namespace, "tcpext.TCPBacklogDrop", "segments dropped");
    if let Some(t) = taken.example() {
        finding.object = format!("{}:{}", t.destination, t.destination_port);
        let text = format!("for example from {} port {} to {}", t.source, t.source_port, finding.object);
        finding.seen(EvidenceSource::Drops, text);
    }
    let mut flows: Vec<_> = namespace.sockets.iter().flat_map(|s| &s.tcp).collect();
    order::by_key(&mut flows, |f| std::cmp::Reverse(f.bytes_received.change()));
    for flow in flows.iter().take(3).filter(|f| f.bytes_received.change() > 0) {
        let process = flow.process.as_deref().unwrap_or("a process that is not known");
        let text = format!("{process} received {} bytes on {}", flow.bytes_received.change(), flow.local);
        finding.seen(EvidenceSource::Sockets, text);
    }
    finding
        .fixes
        .push(Fix::look("see which threads are busy", [sh!("top -H -n1 -b | head -30"), sh!("ss -tmnp")]));
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{blind_to_drops, dropped, host, seen};
    use super::*;
    use crate::finding::{Claim, Severity};

    #[test]
    fn drops_and_counter_are_the_same_packets() {
        let drops = vec![dropped("SOCKET_BACKLOG", "tcp_add_backlog", 6, 200)];
        let found =
            &(CAUSE.examine)(&EvidenceView::of(&seen(host(&[("tcpext.TCPBacklogDrop", 200)]), drops)))[0];
        assert_eq!(found.claims, [Claim::Drops { group: 0, packets: 200 }]);
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        let blind = blind_to_drops(host(&[("tcpext.TCPBacklogDrop", 200)]));
        assert!(matches!(
            &(CAUSE.examine)(&EvidenceView::of(&blind))[0].claims[..],
            [Claim::Counter { packets: 200, .. }]
        ));
    }

    #[test]
    fn the_backlog_of_a_core_is_not() {
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&seen(
                host(&[]),
                vec![dropped("CPU_BACKLOG", "enqueue_to_backlog", 6, 9)]
            ))),
            []
        );
    }
}
