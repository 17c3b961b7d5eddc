//! Connections lose packets, and this host loses none.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_text::order;

use crate::causes::lost_here::{LOSES_HERE, lost_here};
use crate::causes::{Cause, EvidenceView, Group, transit};
use crate::command::sh;
use crate::evidence::{EvidenceSource, FlowEventKind, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "not-on-this-host",
    title: "packets are lost, and not on this host",
    about: "TCP retransmits segments that were not acknowledged. If it does so, and on this whole machine no packet was \
            dropped, no queue overflowed and no counter of loss moved, the loss is somewhere else: on the way there, on \
            the way back, or at the other end. The other end's answers show which. If it reports that it got segments \
            twice (DSACK, RFC 2883), they had arrived: late, out of order, or their acknowledgement was lost on the way \
            back. If it does not, they never came. Segments that come in out of order were preceded by one that was lost \
            on the way here.",
    must: &[
        "Tcp RetransSegs grows by a noticeable share of OutSegs, or segments come in out of order",
        "nothing was lost on this machine that could be them",
    ],
    should: &["one destination, or one interface, has most of them"],
    must_not: &[
        "any cause that loses packets here explains them",
        "connections that this host forwards show on which side of it they are lost",
    ],
    lookalikes: &[
        ("pmtu-blackhole-remote", "only full-size segments are sent again"),
        (
            "transit-loss-behind",
            "connections that pass through a gateway show on which side of it the loss is",
        ),
        ("bufferbloat", "the round trip is many times its minimum, and retransmissions are spurious"),
    ],
    yields_to: LOSES_HERE,
    remedy: "Measure the path from both ends: `mtr` with TCP to the port in question, a capture at the other end, the counters of \
             the switch or of the cloud's network. This host needs no change.",
    sources: &[
        "RFC 2883 (DSACK), RFC 8985 (RACK-TLP), RFC 5682 (F-RTO); net/ipv4/tcp_input.c: tcp_check_dsack",
        "Documentation/networking/snmp_counter.rst",
    ],
    recipes,
    ..Cause::of(Group::Sockets, examine)
};

/// Share of segments sent again from which on a transfer suffers (Mathis et al. 1997: half a per cent over 20 ms and 1,448
/// bytes are 10 Mbit/s).
const SUFFERS: f64 = 0.005;
/// Fewer are what any path has.
const FEW: u64 = 20;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let lost_here = lost_here(view.evidence);
    view.namespaces().filter_map(|n| in_namespace(view, n, lost_here)).collect()
}

/// The signs of loss in the TCP counters.
struct Signs {
    sent: u64,
    again: u64,
    /// Retransmitted segments that were not lost: the other side had them, or reported them before the timer's segment came.
    needless: u64,
    received: u64,
    out_of_order: u64,
}

impl Signs {
    fn of(namespace: &Namespace) -> Self {
        let grew = |name: &str| namespace.grew(name);
        Signs {
            sent: grew("tcp.OutSegs"),
            again: grew("tcp.RetransSegs"),
            needless: grew("tcpext.TCPDSACKRecv") + grew("tcpext.TCPDSACKOfoRecv"),
            received: grew("tcp.InSegs"),
            out_of_order: grew("tcpext.TCPOFOQueue"),
        }
    }

    fn lost(&self) -> u64 {
        self.again.saturating_sub(self.needless)
    }
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace, lost_here: u64) -> Option<Finding> {
    let signs = Signs::of(namespace);
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let out = signs.again >= FEW && share(signs.again, signs.sent) >= SUFFERS;
    // GRO hands over many segments as one, so a gap is seen less often than it is made.
    let gaps = signs.out_of_order >= FEW && share(signs.out_of_order, signs.received) >= SUFFERS;
    let inward = gaps && !senders_are_here(view, namespace);
    let found = signs.again.max(signs.out_of_order);
    // Connections that pass through say on which side the loss is.
    if !(out || inward) || lost_here * 10 >= found || transit::shows_where(namespace) {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    let needless = out && signs.needless * 2 >= signs.again;
    finding.severity = if needless && !inward { Severity::Note } else { Severity::Warning };
    finding.impact = share(signs.lost(), signs.sent)
        .max(if inward { share(signs.out_of_order, signs.received) } else { 0.0 })
        .min(1.0);
    finding.missing = view.missing(
        namespace,
        &[EvidenceSource::Drops, EvidenceSource::Interfaces, EvidenceSource::Qdiscs, EvidenceSource::Sockets],
    );
    finding.confidence = if finding.missing.is_empty() { Confidence::High } else { Confidence::Low };
    finding.summary = match (out, needless, inward) {
        (true, true, _) => format!(
            "{} segments were sent again though the other side had them: they came late or out of order, or its answers were lost.",
            signs.needless
        ),
        (true, false, false) => {
            format!("{} of {} segments sent were lost after they left this host.", signs.lost(), signs.sent)
        }
        (true, false, true) => format!(
            "Packets are lost outside this host, both ways: {} segments had to be sent again, {} came in out of order.",
            signs.again, signs.out_of_order
        ),
        _ => format!(
            "{} segments came in out of order: packets were lost or overtaken before they reached this host.",
            signs.out_of_order
        ),
    };
    describe(namespace, lost_here, &mut finding);
    let remotes = remotes(view, namespace);
    if let Some((worst, times)) = remotes.first() {
        let all: u64 = remotes.iter().map(|(_, n)| n).sum();
        finding.object =
            if times * 2 >= all { worst.to_string() } else { format!("{} destinations", remotes.len()) };
        for (remote, times) in remotes.iter().take(5) {
            finding.seen(EvidenceSource::Flows, format!("{times} segments sent again to {remote}"));
        }
        finding.fixes.push(Fix::look(
            "measure the path, and at the other end",
            [sh!("mtr -n -T -P 443 -c 100 -r {}", worst), sh!("ss -tin dst {}", worst)],
        ));
    }
    Some(finding)
}

/// True if all that came out of order was sent from this machine, by another namespace: who sends knows exactly what was lost.
fn senders_are_here(view: &EvidenceView<'_>, namespace: &Namespace) -> bool {
    let others = view.namespaces().filter(|n| n.id != namespace.id);
    let addresses: Vec<IpAddr> =
        others.flat_map(|n| &n.interfaces).flat_map(|i| &i.addresses).map(|(a, _)| *a).collect();
    let flows = namespace.sockets.iter().flat_map(|s| &s.tcp).filter(|f| f.out_of_order.change() > 0);
    let mut remotes = flows.map(|f| f.remote.ip()).peekable();
    remotes.peek().is_some() && remotes.all(|remote| addresses.contains(&remote))
}

fn describe(namespace: &Namespace, lost_here: u64, finding: &mut Finding) {
    for (name, words) in [
        ("tcp.RetransSegs", "segments sent again"),
        ("tcp.OutSegs", "segments sent"),
        ("tcpext.TCPLostRetransmit", "of those sent again were lost again"),
        ("tcpext.TCPSynRetrans", "of them SYNs"),
        ("tcpext.TCPTimeouts", "timers that ran out"),
        ("tcpext.TCPDSACKRecv", "reported by the other side as come twice"),
        ("tcpext.TCPSpuriousRTOs", "timers that ran out too early"),
        ("tcpext.TCPOFOQueue", "segments that came in out of order"),
    ] {
        finding.grew(namespace, name, words);
    }
    finding.not.push(format!(
        "not on this machine: {lost_here} packets were lost on it in the window, of whatever kind"
    ));
}

/// To whom most was sent again: by events as they happened, else by the connections that are there still.
fn remotes(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<(IpAddr, u64)> {
    let mut by_remote: BTreeMap<IpAddr, u64> = BTreeMap::new();
    let events = view.evidence.flows.iter().filter(|f| f.namespace == namespace.id);
    for event in events.filter(|f| f.kind == FlowEventKind::Retransmit) {
        if let Some(tuple) = event.tuple {
            *by_remote.entry(tuple.destination).or_default() += event.times;
        }
    }
    if by_remote.is_empty() {
        for flow in namespace.sockets.iter().flat_map(|s| &s.tcp).filter(|f| f.retransmits.change() > 0) {
            *by_remote.entry(flow.remote.ip()).or_default() += flow.retransmits.change();
        }
    }
    let mut remotes: Vec<_> = by_remote.into_iter().collect();
    order::by_key(&mut remotes, |(_, times)| std::cmp::Reverse(*times));
    remotes
}

fn recipes() -> Vec<Recipe> {
    // One packet in 25 leaves for an Ethernet address that no host has: to this machine it looks lost on the wire.
    let lose = |device: &str| {
        format!(
            "nft 'add table netdev w; add chain netdev w e {{ type filter hook egress device {device} priority 0; }}; \
             add rule netdev w e meta l4proto tcp numgen random mod 25 == 0 ether daddr set 02:00:00:00:00:99'"
        )
    };
    vec![Recipe {
        at: LabHost::Initiator,
        // A gateway would say on which side of it.
        alone: true,
        setup: vec![Step::gateway(lose("outside"))],
        traffic: Traffic::bulk(7093, TcpMode::Sink, 8, Some(40_000_000)),
        needs: vec!["nft"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{dropped, grew, host, seen};
    use super::*;
    use crate::evidence::{FlowEvent, TcpFlow, Tuple};

    const LOSSY: &[(&str, u64)] = &[("tcp.OutSegs", 10_000), ("tcp.RetransSegs", 200), ("tcp.InSegs", 5000)];

    fn found(counters: &[(&str, u64)], drops: Vec<crate::evidence::DropGroup>) -> Vec<Finding> {
        let mut evidence = seen(host(counters), drops);
        evidence.evidence_sources.insert(EvidenceSource::Qdiscs, crate::evidence::Sight::Seen);
        let tuple = Tuple {
            source: "198.18.0.1".parse().unwrap(),
            destination: "198.19.0.2".parse().unwrap(),
            protocol: 6,
            source_port: 1,
            destination_port: 443,
        };
        evidence.flows.push(FlowEvent {
            namespace: 1,
            kind: FlowEventKind::Retransmit,
            tuple: Some(tuple),
            state: 1,
            times: 200,
            largest_bytes: 1448,
            smallest_bytes: 1448,
        });
        examine(&EvidenceView::of(&evidence))
    }

    #[test]
    fn loss_after_it_left_is_told_with_the_destination() {
        let found = &found(LOSSY, Vec::new())[0];
        assert_eq!((found.severity, found.confidence), (Severity::Warning, Confidence::High));
        assert_eq!(found.object, "198.19.0.2");
        assert!(found.summary.starts_with("200 of 10000 segments sent were lost"), "{}", found.summary);
    }

    #[test]
    fn direction_follows_from_what_the_other_side_reports() {
        let late = [LOSSY, &[("tcpext.TCPDSACKRecv", 180)]].concat();
        let late = &found(&late, Vec::new())[0];
        assert!(late.severity == Severity::Note && late.summary.contains("though the other side had them"));
        let inward = [("tcp.OutSegs", 5000), ("tcp.InSegs", 9000), ("tcpext.TCPOFOQueue", 300)];
        assert!(found(&inward, Vec::new())[0].summary.contains("before they reached this host"));
    }

    #[test]
    fn a_sender_on_the_same_machine_tells_it_alone() {
        let inward = [("tcp.OutSegs", 5000), ("tcp.InSegs", 9000), ("tcpext.TCPOFOQueue", 300)];
        let mut receiver = host(&inward);
        let flow = TcpFlow { out_of_order: grew(300), ..super::super::fixtures::flow() };
        receiver.sockets.as_mut().unwrap().tcp = vec![flow];
        let mut sender = Namespace { id: 2, ..Namespace::default() };
        let mut evidence = seen(receiver, Vec::new());
        assert_eq!(examine(&EvidenceView::of(&evidence)).len(), 1);
        let addresses = vec![("198.19.0.2".parse().unwrap(), 24)];
        sender.interfaces = vec![crate::evidence::Interface { addresses, ..Default::default() }];
        evidence.namespaces.push(sender);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
    }

    #[test]
    fn what_was_lost_here_explains_it() {
        assert_eq!(found(LOSSY, vec![dropped("QDISC_DROP", "__dev_queue_xmit", 6, 150)]), []);
        let listen = [LOSSY, &[("tcpext.ListenDrops", 150)]].concat();
        assert_eq!(found(&listen, Vec::new()), []);
        // Multicast that no socket wants explains nothing.
        assert_eq!(found(LOSSY, vec![dropped("UNHANDLED_PROTO", "x", 0, 5000)]).len(), 1);
    }

    #[test]
    fn a_few_on_any_path_are_not() {
        assert_eq!(found(&[("tcp.OutSegs", 1_000_000), ("tcp.RetransSegs", 400)], Vec::new()), []);
        assert_eq!(found(&[("tcp.OutSegs", 100), ("tcp.RetransSegs", 9)], Vec::new()), []);
    }

    #[test]
    fn who_knows_better_goes_first() {
        let mut host = host(&[LOSSY, &[("tcpext.TCPToZeroWindowAdv", 1)]].concat());
        host.sockets.as_mut().unwrap().tcp =
            vec![TcpFlow { mss: 288, segments_out: grew(9000), ..super::super::fixtures::flow() }];
        let causes: Vec<_> = crate::diagnosis::diagnose(&seen(host, Vec::new()))
            .findings
            .into_iter()
            .map(|f| f.cause)
            .collect();
        assert_eq!(causes, ["mss-small"]);
    }
}
