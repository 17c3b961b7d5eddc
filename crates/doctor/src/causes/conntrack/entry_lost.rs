//! The entry of a translated connection is gone while the connection goes on.

use std::collections::BTreeSet;

use weir_text::order;

use super::invalid_reset::{aftermath, is_no_socket};
use super::packet::{self, Step as Does};
use super::refused::{fact, sampled};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{sh, sysctl};
use crate::evidence::{Connections, EvidenceSource, Namespace, Sample, Tuple};
use crate::finding::{Confidence, Fact, Finding, Fix};
use crate::recipe::{LabHost, Recipe, Step, Traffic};
use weir_conntrack::names::TCP;

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-entry-lost",
    title: "tracking entries of open connections lost",
    about: "Behind source NAT a connection works only as long as its entry exists. An entry is lost when the table is \
            flushed, when this host takes over from another one, when the connection is idle for longer than the timeout, \
            or when an outside address changes. The server's next packet is then addressed to the NAT host itself, where \
            no socket knows it. The host answers with a reset and the connection ends.",
    must: &[
        "packets dropped as NO_SOCKET in tcp_v4_rcv or tcp_v6_rcv that are no openings of connections",
        "they come from servers that clients behind this host's source NAT talk to, or this host translates sources",
        "the table has no translated connection for them",
    ],
    should: &["resets are sent (Tcp.OutRsts)"],
    must_not: &["the packets are SYNs (a port scan)"],
    lookalikes: &[
        ("conntrack-invalid-reset", "there the table still has the connection"),
        ("no-listener", "there the packets are SYNs, or nothing is translated here"),
    ],
    yields_to: &["conntrack-invalid-reset", "conntrack-zone-split"],
    remedy: "Never flush the table on a host that translates; delete single entries. Let a second gateway share the table \
             (conntrackd) before it takes over. Make the timeout longer than the idle time of connections, or let clients \
             send keep-alives.",
    sources: &["RFC 5382, REQ-5", "net/netfilter/nf_conntrack_proto_tcp.c: tcp_timeouts", "conntrackd(8)"],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

const ESTABLISHED: &str = "net.netfilter.nf_conntrack_tcp_timeout_established";
/// RFC 5382, REQ-5, s.
const LEAST: u64 = 7440;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let table = namespace.connections.as_ref().filter(|t| translates(t))?;
    let servers = servers(table, TCP);
    let orphan = |s: &Sample| {
        let going_on = matches!(packet::step(s), Does::GoesOn | Does::Answers | Does::Ends);
        going_on && s.tuple().is_some_and(|t| is_orphan(table, &t))
    };
    let (claims, lost) = sampled(view, namespace, is_no_socket, orphan);
    if lost == 0 {
        return None;
    }
    let of_servers = sampled(view, namespace, is_no_socket, |s| {
        orphan(s) && s.tuple().is_some_and(|t| servers.contains(&(t.source, t.source_port)))
    });
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.confidence = if 2 * of_servers.1 >= lost { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Flows]);
    finding.claims = claims;
    finding.claims.extend(aftermath(view, namespace));
    finding.summary = format!(
        "{lost} packets came back for connections that are no longer in the table: this host answered with resets, which end \
         the connections."
    );
    let example = example(view, namespace, &orphan);
    finding.evidence.extend(example.map(|t| {
        let text = format!(
            "{}:{} sends to {}:{}, for which there is no translated connection",
            t.source, t.source_port, t.destination, t.destination_port
        );
        Fact::seen(EvidenceSource::Drops, text)
    }));
    let text = format!("{} of them come from servers that clients behind this host talk to", of_servers.1);
    finding.seen(EvidenceSource::Connections, text);
    if let Some(sent) = namespace.counters.get("tcp.OutRsts") {
        finding.counter(EvidenceSource::Counters, "tcp.OutRsts", *sent, "resets that this host sent");
    }
    fact(&mut finding, namespace, "invalid", "packets that were INVALID");
    finding.not.push("not a scan of ports: these are no openings of connections".into());
    finding.fixes = fixes(view, namespace);
    Some(finding)
}

/// True if sources are translated here.
pub(super) fn translates(table: &Connections) -> bool {
    table.source_nat_rules.is_some_and(|n| n > 0)
        || table.groups.iter().any(|g| g.source_nat)
        || !table.pools.is_empty()
}

/// Who answers connections whose source is translated: address and port.
pub(super) fn servers(table: &Connections, protocol: u8) -> BTreeSet<(std::net::IpAddr, u16)> {
    let translated = table.groups.iter().filter(|g| g.protocol == protocol && g.source_nat);
    order::set(translated.filter_map(|g| g.example_reply).map(|t| (t.source, t.source_port)))
}

/// True if no translated connection is known for the packet: none at all, or one that it made itself by coming in.
pub(super) fn is_orphan(table: &Connections, packet: &Tuple) -> bool {
    let mut entries = table.joined.iter().filter(|(t, _)| t == packet).map(|(_, entry)| entry).peekable();
    let known = entries.peek().is_some() || table.absent.contains(packet);
    known && entries.all(|entry| entry.example.as_ref() == Some(packet) && !entry.source_nat)
}

/// The packet that was seen most often.
pub(super) fn example(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    meant: &impl Fn(&Sample) -> bool,
) -> Option<Tuple> {
    let drops = view.evidence.drops.iter().filter(|d| d.namespace == namespace.id && d.reason == "NO_SOCKET");
    drops.flat_map(|d| &d.samples).find(|s| meant(s)).and_then(Sample::tuple)
}

fn fixes(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Fix> {
    let mut fixes = vec![Fix::new(
        "find what empties the table",
        "none, it only shows",
        [
            sh!("conntrack -E -e DESTROY -p tcp"),
            sh!("grep -rnE 'conntrack +(-F|--flush)' /etc /usr/local 2>/dev/null"),
        ],
        [],
    )];
    let short = namespace.setting(ESTABLISHED).filter(|now| *now < LEAST);
    if let Some(now) = short {
        let why = format!("idle connections are forgotten after {now} s; RFC 5382 asks for {LEAST}");
        let setting = relief::setting(view, namespace, ESTABLISHED, LEAST, &why);
        let risk = "connections that died silently stay in the table for longer";
        fixes.extend(setting.map(|s| Fix::set("remember idle connections for longer", risk, vec![s])));
    }
    fixes.push(
        Fix::new(
            "let clients send keep-alives (on the clients)",
            "only for sockets that ask for keep-alives",
            [sysctl::set("net.ipv4.tcp_keepalive_time", "300")],
            [sysctl::set("net.ipv4.tcp_keepalive_time", "7200")],
        )
        .elsewhere(),
    );
    fixes
}

/// Builds a server's replies for connections that another gateway had.
fn taken_over(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    use weir_wire::Tcp;
    let from = ([198, 19, 0, 2].into(), 443);
    (0..50)
        .map(|n| {
            packet::frames::tcp((own, peer), from, ([198, 19, 0, 1].into(), 40_000 + n), Tcp::ACK | Tcp::PSH)
        })
        .collect()
}

fn recipes() -> Vec<Recipe> {
    let case = |name, rate, cause| {
        let mut traffic = Traffic::connects("198.19.0.2:7000", rate, 2000, false);
        traffic.push(cause);
        Recipe::named(name, vec![Step::masquerade()], traffic)
    };
    let flush = "while :; do conntrack -F >/dev/null 2>&1; sleep 0.02; done";
    let flush = Traffic::Script(LabHost::Gateway, flush.into());
    let replies = Traffic::Frames { from: LabHost::Responder, rate: 100, frames: taken_over };
    vec![Recipe { needs: vec!["conntrack"], ..case("flushed", 500, flush) }, case("taken-over", 20, replies)]
}

#[cfg(test)]
mod tests {
    use weir_wire::Tcp;

    use super::super::invalid_reset::tests::{OUTSIDE, SERVER, entry, no_socket, tuple};
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::{ConnectionGroup, DropGroup, Evidence};
    use crate::finding::Claim;

    fn seen(drops: DropGroup, table: Connections) -> Evidence {
        let mut namespace = counted(&[]);
        namespace.connections = Some(table);
        evidence(namespace, vec![drops])
    }

    fn table() -> Connections {
        let other = ConnectionGroup { example_reply: Some(tuple(SERVER, (OUTSIDE.0, 9999))), ..entry() };
        Connections { groups: vec![other], absent: vec![tuple(SERVER, OUTSIDE)], ..Connections::default() }
    }

    #[test]
    fn answers_without_an_entry_are_it() {
        let evidence = seen(no_socket(40, Tcp::ACK | Tcp::PSH), table());
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 40 }]);
        assert_eq!(finding.confidence, Confidence::High);
    }

    /// The packet itself made an entry when it came in, as a connection of the server to this host.
    #[test]
    fn an_entry_that_the_packet_made_is_not_the_connections() {
        let packet = tuple(SERVER, OUTSIDE);
        let own = ConnectionGroup { source_nat: false, example: Some(packet), ..entry() };
        let table = Connections { joined: vec![(packet, own)], absent: vec![], ..table() };
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(no_socket(40, Tcp::ACK), table))).len(), 1);
    }

    #[test]
    fn look_alikes_are_not_it() {
        // A host tries ports; the connection is known; nothing is translated here.
        let packet = tuple(SERVER, OUTSIDE);
        let known = Connections { joined: vec![(packet, entry())], absent: vec![], ..table() };
        for evidence in [
            seen(no_socket(40, Tcp::SYN), table()),
            seen(no_socket(40, Tcp::ACK), known),
            seen(no_socket(40, Tcp::ACK), Connections::default()),
        ] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }
}
