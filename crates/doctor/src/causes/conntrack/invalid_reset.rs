//! Packets of translated connections that count as INVALID reach this host itself, which answers with resets.

use weir_text::order;

use super::refused::{Refused, fact, sampled};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::nft;
use crate::evidence::{ConnectionGroup, DropGroup, EvidenceSource, FlowEventKind, Namespace, Tuple};
use crate::finding::{Claim, Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic};
use weir_conntrack::names::TCP;

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-invalid-reset",
    title: "connections reset because their packets count as INVALID",
    about: "A packet that connection tracking marks INVALID is not translated. Behind source NAT the answer of a server \
            then stays addressed to the NAT host itself, where no socket knows it: the host answers with a reset, and the \
            server ends a healthy connection. Clients see `connection reset by peer`, mostly in long transfers over lossy \
            paths, where segments come late or outside the window that connection tracking expects.",
    must: &[
        "packets dropped as NO_SOCKET in tcp_v4_rcv or tcp_v6_rcv, or resets sent",
        "the table holds a translated connection for that very packet",
        "conntrack `invalid` grows",
    ],
    should: &["Tcp.OutRsts grows"],
    must_not: &["the table knows nothing of the packets"],
    lookalikes: &[
        ("conntrack-entry-lost", "there the table no longer has the connection"),
        ("conntrack-zone-split", "there the connection is in another zone"),
        ("no-listener", "there the port was never translated"),
    ],
    yields_to: &["conntrack-zone-split"],
    remedy: "Drop packets of state INVALID in the input and forward chains instead of letting the host answer them, and let \
             connection tracking be liberal about windows.",
    sources: &[
        "net/netfilter/nf_nat_core.c: nf_nat_inet_fn",
        "net/netfilter/nf_conntrack_proto_tcp.c: tcp_in_window",
        "kubernetes/kubernetes#74839",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

/// TCP that no socket took.
pub(super) fn is_no_socket(drops: &DropGroup) -> bool {
    drops.reason == "NO_SOCKET" && drops.protocol == TCP
}

/// Claims the consequences in other visible namespaces: segments that reach a listening socket. Their connection was reset, or
/// now comes from another port, or from the client's own address, since INVALID packets are not translated.
pub(super) fn aftermath(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Claim> {
    let Some(table) = &namespace.connections else { return Vec::new() };
    let translated = table.groups.iter().filter(|g| g.source_nat);
    let ends = translated.flat_map(|g| [g.example_reply.map(|t| t.destination), g.example.map(|t| t.source)]);
    let clients = order::set(ends.flatten());
    let others = view.namespaces().filter(|n| n.id != namespace.id);
    let meets_listener = |d: &DropGroup| d.protocol == TCP && d.reason == "TCP_FLAGS";
    let from_client = |s: &crate::evidence::Sample| s.tuple().is_some_and(|t| clients.contains(&t.source));
    others.flat_map(|n| sampled(view, n, meets_listener, from_client).0).collect()
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let table = namespace.connections.as_ref()?;
    let invalid = Refused::of(namespace).invalid;
    let answers = table.joined.iter().filter(|(packet, entry)| is_answer(packet, entry));
    let untranslated = order::set(answers.map(|(packet, _)| *packet));
    if invalid == 0 || untranslated.is_empty() {
        return None;
    }
    let mine = |t: &Tuple| untranslated.contains(t);
    let (claims, lost) = sampled(view, namespace, is_no_socket, |s| s.tuple().is_some_and(|t| mine(&t)));
    let resets: u64 = view
        .evidence
        .flows
        .iter()
        .filter(|f| f.namespace == namespace.id && f.kind == FlowEventKind::ResetSent)
        .filter(|f| f.tuple.as_ref().is_some_and(mine))
        .map(|f| f.times)
        .sum();
    if lost == 0 && resets == 0 {
        return None;
    }
    let lost = lost.max(resets).min(invalid);
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.confidence = if lost > 0 && resets > 0 { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Flows]);
    finding.claims =
        if claims.is_empty() { vec![view.counted(namespace, "conntrack.invalid", lost)] } else { claims };
    finding.claims.extend(aftermath(view, namespace));
    finding.summary = format!(
        "{lost} packets of translated connections counted as INVALID and stayed here untranslated: this host answered \
         them with resets, which end the connections."
    );
    fact(&mut finding, namespace, "invalid", format!("{invalid} packets were INVALID"));
    for (packet, entry) in table.joined.iter().filter(|(packet, _)| mine(packet)).take(3) {
        let whose = entry.example.map_or_else(String::new, |t| format!(" of {}:{}", t.source, t.source_port));
        let text = format!(
            "{}:{} to {}:{} is the answer to a connection{whose} that is in the table",
            packet.source, packet.source_port, packet.destination, packet.destination_port
        );
        finding.seen(EvidenceSource::Connections, text);
    }
    if let Some(sent) = namespace.counters.get("tcp.OutRsts") {
        finding.counter(EvidenceSource::Counters, "tcp.OutRsts", *sent, "resets that this host sent");
    }
    finding.not.push("not forgotten: the table still has these connections".into());
    finding.not.push(
        "not a scan of ports: the packets come from servers that clients behind this host talk to".into(),
    );
    finding.fixes = fixes(view, namespace);
    Some(finding)
}

/// True if the packet comes back on a translated connection.
fn is_answer(packet: &Tuple, entry: &ConnectionGroup) -> bool {
    entry.protocol == TCP
        && entry.source_nat
        && entry.replied
        && entry.example_reply.as_ref() == Some(packet)
        && entry.example.as_ref() != Some(packet)
}

fn fixes(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Fix> {
    let liberal = relief::setting(
        view,
        namespace,
        "net.netfilter.nf_conntrack_tcp_be_liberal",
        1,
        "packets of connections in the table count as INVALID",
    );
    let risk = "only resets are still checked against the window: less protection against forged segments";
    let chain = |name: &'static str| {
        nft!("add chain inet weir_invalid {} { type filter hook {} priority filter - 1; }", name, name)
    };
    let rule = |name: &'static str| nft!("add rule inet weir_invalid {} ct state invalid counter drop", name);
    let mut fixes: Vec<Fix> = liberal
        .map(|s| Fix::set("let segments be translated that are outside the window", risk, vec![s]))
        .into_iter()
        .collect();
    fixes.push(Fix::new(
        "drop INVALID packets instead of answering them",
        "traffic of which this host sees one direction only is dropped",
        [
            nft!("add table inet weir_invalid"),
            chain("input"),
            chain("forward"),
            rule("input"),
            rule("forward"),
        ],
        [nft!("delete table inet weir_invalid")],
    ));
    fixes
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![
            Step::masquerade(),
            // One segment in four comes from far outside the window, as after a middlebox that renumbers.
            Step::responder(
                "nft 'add table ip t; add chain ip t c { type filter hook output priority mangle; }; \
                 add rule ip t c tcp sport 7000 tcp flags & (syn | rst) == 0 numgen random mod 4 == 0 tcp sequence set 1'",
            ),
        ],
        traffic: Traffic::connects("198.19.0.2:7000", 100, 512, false),
        ..Recipe::default()
    }]
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::packet::frames::{End, tcp};
    use super::super::packet::tests::sampled;
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::Evidence;

    pub(crate) const SERVER: End = (std::net::Ipv4Addr::new(198, 19, 0, 2), 80);
    pub(crate) const OUTSIDE: End = (std::net::Ipv4Addr::new(198, 19, 0, 1), 4000);
    const CLIENT: End = (std::net::Ipv4Addr::new(198, 18, 0, 2), 4000);

    pub(crate) fn tuple(from: End, to: End) -> Tuple {
        Tuple {
            source: from.0.into(),
            destination: to.0.into(),
            protocol: TCP,
            source_port: from.1,
            destination_port: to.1,
        }
    }

    /// An answer to the outside address that no socket took, with these flags of TCP.
    pub(crate) fn no_socket(packets: u64, flags: u8) -> DropGroup {
        DropGroup {
            namespace: 1,
            reason: "NO_SOCKET".into(),
            location: "tcp_v4_rcv".into(),
            protocol: TCP,
            packets,
            samples: vec![sampled(&tcp(([2; 6], [4; 6]), SERVER, OUTSIDE, flags))],
            ..DropGroup::default()
        }
    }

    /// The entry that translates the client to the outside.
    pub(crate) fn entry() -> ConnectionGroup {
        ConnectionGroup {
            protocol: TCP,
            state: 3,
            replied: true,
            assured: true,
            source_nat: true,
            destination: SERVER.0.into(),
            destination_port: SERVER.1,
            reply_source: SERVER.0.into(),
            entries: 1,
            example: Some(tuple(CLIENT, SERVER)),
            example_reply: Some(tuple(SERVER, OUTSIDE)),
            ..ConnectionGroup::default()
        }
    }

    fn seen(invalid: u64, joined: Vec<(Tuple, ConnectionGroup)>) -> Evidence {
        let mut namespace = counted(&[("invalid", invalid)]);
        namespace.connections.as_mut().unwrap().joined = joined;
        evidence(namespace, vec![no_socket(40, weir_wire::Tcp::ACK)])
    }

    #[test]
    fn answers_of_a_known_connection_that_stayed_here_are_it() {
        let evidence = seen(40, vec![(tuple(SERVER, OUTSIDE), entry())]);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 40 }]);
        assert!(finding.evidence.iter().any(|f| f.text.contains("of 198.18.0.2:4000")));
    }

    /// The server's host is in sight as well, and so is what it throws away of the connection that was reset.
    #[test]
    fn what_comes_of_it_elsewhere_is_claimed_too() {
        let mut evidence = seen(40, vec![(tuple(SERVER, OUTSIDE), entry())]);
        evidence.namespaces[0].connections.as_mut().unwrap().groups.push(entry());
        evidence.namespaces.push(Namespace { id: 2, name: "server".into(), ..Namespace::default() });
        for (namespace, from) in [(2, OUTSIDE), (2, SERVER), (1, OUTSIDE)] {
            let frame = tcp(([2; 6], [4; 6]), from, SERVER, weir_wire::Tcp::ACK);
            let reason = "TCP_FLAGS".into();
            let samples = vec![sampled(&frame)];
            evidence.drops.push(DropGroup { namespace, reason, samples, ..no_socket(9, 0) });
        }
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims[1..], [Claim::Drops { group: 1, packets: 9 }]);
    }

    #[test]
    fn look_alikes_are_not_it() {
        let packet = tuple(SERVER, OUTSIDE);
        // Not translated; opened by the packet itself; nothing INVALID; not in the table.
        let plain = ConnectionGroup { source_nat: false, ..entry() };
        let own = ConnectionGroup { example: Some(packet), source_nat: false, ..entry() };
        for evidence in [
            seen(40, vec![(packet, plain)]),
            seen(40, vec![(packet, own)]),
            seen(0, vec![(packet, entry())]),
            seen(40, vec![]),
        ] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }
}
