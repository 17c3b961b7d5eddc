//! UDP is forgotten sooner than its applications speak again.

use super::entry_lost::{example, is_orphan, servers, translates};
use super::refused::sampled;
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Namespace, Sample};
use crate::finding::{Confidence, Fact, Finding, Fix, Setting};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};
use weir_conntrack::names::UDP;

pub(super) const CAUSE: Cause = Cause {
    id: "udp-timeout-short",
    title: "UDP connections forgotten too soon",
    about: "UDP does not signal the end of a connection, so connection tracking forgets a connection after a time without \
            packets: 30 s before the answer, 120 s for a stream. It also forgets applications that are silent for longer \
            (a VPN, a telephone, a game, a sensor). The server's next packet is then addressed to the NAT host itself, \
            which answers `port unreachable`. The client's next packet gets another outside port, and the server does not \
            recognise it.",
    must: &[
        "UDP dropped as NO_SOCKET that comes from servers which clients behind this host's source NAT talk to",
        "the table has no translated connection for it",
    ],
    should: &[
        "nf_conntrack_udp_timeout or nf_conntrack_udp_timeout_stream is below the two minutes of RFC 4787",
    ],
    must_not: &["nothing is translated here"],
    lookalikes: &[
        ("no-listener", "there the port was never given to a client"),
        ("conntrack-entry-lost", "there it is TCP, which ends with a reset"),
    ],
    yields_to: &["conntrack-zone-split"],
    remedy: "Make the timeouts at least as long as RFC 4787 asks for, or let the application send something more often \
             than they last.",
    sources: &["RFC 4787, REQ-5", "net/netfilter/nf_conntrack_proto_udp.c: udp_timeouts"],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

const SINGLE: &str = "net.netfilter.nf_conntrack_udp_timeout";
const STREAM: &str = "net.netfilter.nf_conntrack_udp_timeout_stream";
/// RFC 4787, REQ-5: not less than two minutes, five are recommended; s.
const LEAST: u64 = 120;
const RECOMMENDED: u64 = 300;

fn is_unwanted_udp(drops: &DropGroup) -> bool {
    drops.reason == "NO_SOCKET" && drops.protocol == UDP
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let table = namespace.connections.as_ref().filter(|t| translates(t))?;
    let servers = servers(table, UDP);
    let late = |s: &Sample| {
        s.tuple().is_some_and(|t| servers.contains(&(t.source, t.source_port)) && is_orphan(table, &t))
    };
    let (claims, lost) = sampled(view, namespace, is_unwanted_udp, late);
    if lost == 0 {
        return None;
    }
    let settings = longer(view, namespace);
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.confidence = if settings.is_empty() { Confidence::Medium } else { Confidence::High };
    finding.claims = claims;
    finding.summary = format!(
        "{lost} UDP packets came back after their connection was forgotten: clients behind this host no longer hear their \
         servers once they were silent for a while."
    );
    finding.evidence.extend(example(view, namespace, &late).map(|t| {
        let text = format!(
            "{}:{}, to which clients talk, sends to {}:{}, which belongs to no connection any more",
            t.source, t.source_port, t.destination, t.destination_port
        );
        Fact::seen(EvidenceSource::Drops, text)
    }));
    for name in [SINGLE, STREAM] {
        if let Some(seconds) = namespace.setting(name) {
            finding.seen(EvidenceSource::Settings, format!("{name} = {seconds} s"));
        }
    }
    finding.not.push(
        "not a scan of ports: the packets come from servers that clients behind this host talk to".into(),
    );
    if !settings.is_empty() {
        let risk =
            "entries live longer: the table needs more room where there are many short UDP exchanges (DNS)";
        finding.fixes.push(Fix::set("remember UDP for as long as RFC 4787 asks for", risk, settings));
    }
    finding.fixes.push(
        Fix::new(
            "let the application send something more often",
            "a few packets more; WireGuard as an example, others have a setting of their own",
            [sh!("wg set INTERFACE peer PUBLIC_KEY persistent-keepalive 25")],
            [sh!("wg set INTERFACE peer PUBLIC_KEY persistent-keepalive off")],
        )
        .elsewhere(),
    );
    Some(finding)
}

/// Timeouts that are shorter than the RFC allows.
fn longer(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Setting> {
    let below = |name: &str, proposed: u64| {
        let now = namespace.setting(name).filter(|now| *now < LEAST)?;
        let why = format!("UDP is forgotten after {now} s; RFC 4787 asks for no less than {LEAST}");
        relief::setting(view, namespace, name, proposed, &why)
    };
    // The first is also what an exchange of a question and an answer lives: no longer than it must.
    [below(SINGLE, LEAST), below(STREAM, RECOMMENDED)].into_iter().flatten().collect()
}

/// Ten clients' ports, each used once in two seconds.
fn questions(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    let to = ([198, 19, 0, 2].into(), 7000);
    (0..10)
        .map(|n| super::packet::frames::udp((own, peer), ([198, 18, 0, 2].into(), 41_000 + n), to))
        .collect()
}

/// Builds the datagrams that the server sends to the clients at other times.
fn news(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    let from = ([198, 19, 0, 2].into(), 7000);
    let to = |n: u16| ([198, 19, 0, 1].into(), 41_000 + n);
    (0..10).rev().map(|n| super::packet::frames::udp((own, peer), from, to(n))).collect()
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![
            Step::masquerade(),
            Step::gateway(
                "sysctl -qw net.netfilter.nf_conntrack_udp_timeout=1 net.netfilter.nf_conntrack_udp_timeout_stream=1",
            ),
        ],
        traffic: (41_000..41_010)
            .map(|port| (LabHost::Initiator, port))
            .chain([(LabHost::Responder, 7000)])
            .map(|(on, port)| Traffic::UdpServer { on, port, buffer: None, mode: UdpMode::Sink })
            .chain([
                Traffic::Frames { from: LabHost::Initiator, rate: 5, frames: questions },
                Traffic::Frames { from: LabHost::Responder, rate: 15, frames: news },
            ])
            .collect(),
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::packet::frames::udp;
    use super::super::packet::tests::sampled as sample_of;
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::{ConnectionGroup, Connections, Evidence, Tuple};
    use crate::finding::Claim;

    fn tuple(from: [u8; 4], to: [u8; 4], port: u16) -> Tuple {
        Tuple {
            source: from.into(),
            destination: to.into(),
            protocol: UDP,
            source_port: 7000,
            destination_port: port,
        }
    }

    fn seen(server: [u8; 4], timeout: &str) -> Evidence {
        let sample = sample_of(&udp(([2; 6], [4; 6]), (server.into(), 7000), ([198, 19, 0, 1].into(), 4000)));
        let drops = DropGroup {
            namespace: 1,
            reason: "NO_SOCKET".into(),
            location: "__udp4_lib_rcv".into(),
            protocol: UDP,
            packets: 30,
            samples: vec![sample],
            ..DropGroup::default()
        };
        let mut namespace = counted(&[]);
        namespace.settings.insert(SINGLE.into(), timeout.into());
        let group = ConnectionGroup {
            protocol: UDP,
            source_nat: true,
            example_reply: Some(tuple([198, 19, 0, 2], [198, 19, 0, 1], 5000)),
            ..ConnectionGroup::default()
        };
        let absent = vec![tuple(server, [198, 19, 0, 1], 4000)];
        namespace.connections = Some(Connections { groups: vec![group], absent, ..Connections::default() });
        evidence(namespace, vec![drops])
    }

    #[test]
    fn late_answers_of_known_servers_are_it() {
        let evidence = seen([198, 19, 0, 2], "30");
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 30 }]);
        assert_eq!(finding.confidence, Confidence::High);
        assert_eq!(finding.fixes[0].tune[0].proposed, "120");
        let long = seen([198, 19, 0, 2], "300");
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&long))[..] else { panic!() };
        assert_eq!((finding.confidence, finding.fixes.len()), (Confidence::Medium, 1));
    }

    #[test]
    fn strangers_who_try_ports_are_not_it() {
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen([198, 19, 0, 77], "30"))), []);
        let mut plain = seen([198, 19, 0, 2], "30");
        plain.namespaces[0].connections = Some(Connections::default());
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&plain)), []);
    }
}
