//! A protocol with a second connection has no helper.

use std::net::IpAddr;

use super::packet::{self, Step as Does};
use super::refused::sampled;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::{self, nft};
use crate::evidence::{ConnectionGroup, DropGroup, EvidenceSource, Namespace, Sample, Tuple};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, TcpMode, Traffic};
use weir_conntrack::names::{TCP, UDP};

pub(super) const CAUSE: Cause = Cause {
    id: "helper-missing",
    title: "no connection-tracking helper for a protocol with a second connection",
    about: "FTP, SIP, TFTP, PPTP and H.323 agree inside one connection on another one. A stateful firewall lets that pass \
            as `related` only if a helper reads the first connection and announces the second; behind NAT the helper also \
            rewrites the addresses inside. Kernels since 6.0 no longer assign helpers by port: a rule must do it. Without \
            it the login works, but listing a directory or hearing the other side does not.",
    must: &[
        "an open connection to a port of such a protocol, without a helper",
        "packets between the same two hosts to other ports are dropped by netfilter or find no socket",
    ],
    must_not: &["the connection has a helper"],
    lookalikes: &[
        ("policy-drop", "there no such first connection exists"),
        ("nft-rule-drop", "there a rule names what it drops"),
    ],
    remedy: "Assign the helper by rule to the first connection, and accept `ct state related`.",
    sources: &["net/netfilter/nf_conntrack_helper.c", "nft(8): CT HELPER", "RFC 959", "RFC 3261"],
    recipes,
    ..Cause::of(Group::Conntrack, examine)
};

/// Port and protocol of the first connection, and the kernel's name of the helper.
const HELPERS: &[(u16, u8, &str)] = &[
    (21, TCP, "ftp"),
    (69, UDP, "tftp"),
    (1720, TCP, "Q.931"),
    (1723, TCP, "pptp"),
    (5060, TCP, "sip"),
    (5060, UDP, "sip"),
];

/// A first connection without a helper.
#[derive(Debug, Clone, Copy)]
struct First {
    helper: &'static str,
    protocol: u8,
    port: u16,
    client: IpAddr,
    /// As the client knows it, and as it answers.
    server: (IpAddr, IpAddr),
    /// The client's address as the server sees it.
    outside: IpAddr,
}

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        let Some(table) = &namespace.connections else { continue };
        let mut seen: Vec<&str> = Vec::new();
        for first in table.groups.iter().filter_map(without_helper) {
            if !seen.contains(&first.helper)
                && let Some(finding) = of(view, namespace, first)
            {
                seen.push(first.helper);
                findings.push(finding);
            }
        }
    }
    findings
}

fn without_helper(group: &ConnectionGroup) -> Option<First> {
    if !group.replied || group.helper {
        return None;
    }
    let (port, protocol, helper) = *HELPERS
        .iter()
        .find(|(port, protocol, _)| *port == group.destination_port && *protocol == group.protocol)?;
    Some(First {
        helper,
        protocol,
        port,
        client: group.example?.source,
        server: (group.destination, group.reply_source),
        outside: group.example_reply?.destination,
    })
}

impl First {
    /// True if the packet opens another connection between the two.
    fn is_second(&self, packet: &Tuple) -> bool {
        let first = packet.protocol == self.protocol
            && (packet.destination_port == self.port || packet.source_port == self.port);
        let is_server = |a: IpAddr| a == self.server.0 || a == self.server.1;
        let is_client = |a: IpAddr| a == self.client || a == self.outside;
        let between = is_client(packet.source) && is_server(packet.destination)
            || is_server(packet.source) && is_client(packet.destination);
        between && !first && matches!(packet.protocol, TCP | UDP)
    }
}

fn of(view: &EvidenceView<'_>, namespace: &Namespace, first: First) -> Option<Finding> {
    let refused = |d: &DropGroup| matches!(d.reason.as_str(), "NETFILTER_DROP" | "NO_SOCKET");
    let second = |s: &Sample| {
        let opens = matches!(packet::step(s), Does::Opens | Does::Unknown);
        opens && s.tuple().is_some_and(|t| first.is_second(&t))
    };
    let (claims, lost) = sampled(view, namespace, refused, second);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.confidence = Confidence::Medium;
    finding.object = first.helper.to_owned();
    finding.claims = claims;
    finding.summary = format!(
        "{} of {} to {}: {lost} packets of their second connection were refused, and no {} helper watches the first one.",
        first.helper, first.client, first.server.0, first.helper
    );
    let text =
        format!("the connection of {} to {} port {} has no helper", first.client, first.server.0, first.port);
    finding.seen(EvidenceSource::Connections, text);
    let drops = view.evidence.drops.iter().filter(|d| d.namespace == namespace.id && refused(d));
    if let Some(t) = drops.flat_map(|d| &d.samples).find(|s| second(s)).and_then(Sample::tuple) {
        let text =
            format!("refused: {}:{} to {}:{}", t.source, t.source_port, t.destination, t.destination_port);
        finding.seen(EvidenceSource::Drops, text);
    }
    finding.not.push("not the first connection: that is open and answered".into());
    finding.fixes.push(assign(&first));
    Some(finding)
}

fn assign(first: &First) -> Fix {
    let protocol = if first.protocol == TCP { "tcp" } else { "udp" };
    let helper = nft::word(first.helper);
    let object = nft::word(&format!("weir-{}", first.helper.to_ascii_lowercase().replace('.', "")));
    Fix::new(
        format!("assign the {} helper by rule", first.helper),
        "the helper opens ports that the two hosts name: use it only for trusted servers and clients; open connections \
               continue without it",
        [
            nft!("add table inet weir_helper"),
            nft!("add ct helper inet weir_helper {} { type \"{}\" protocol {}; }", object, helper, protocol),
            nft!("add chain inet weir_helper prerouting { type filter hook prerouting priority filter; }"),
            nft!(
                "add rule inet weir_helper prerouting {} dport {} ct helper set \"{}\"",
                protocol,
                first.port,
                object
            ),
            nft!("add rule inet FILTER_TABLE FORWARD_CHAIN ct state related accept"),
        ],
        [nft!("delete table inet weir_helper")],
    )
}

fn recipes() -> Vec<Recipe> {
    let rules = "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; }; \
                 add rule inet f c ct state established,related accept; \
                 add rule inet f c tcp dport 21 accept; add rule inet f c icmp type echo-request accept'";
    let connects = |to: &str, rate, hold| Traffic::Connects { to: to.into(), rate, bytes: 16, hold };
    vec![Recipe {
        name: "ftp-passive",
        setup: vec![Step::gateway(rules)],
        traffic: vec![
            Traffic::TcpServer { port: 21, backlog: 64, mode: TcpMode::Echo },
            Traffic::TcpServer { port: 30_021, backlog: 64, mode: TcpMode::Echo },
            connects("198.19.0.2:21", 5, true),
            connects("198.19.0.2:30021", 50, false),
        ],
        also: vec!["policy-drop"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::packet::frames::tcp;
    use super::super::packet::tests::sampled as sample_of;
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::{Connections, Evidence};
    use crate::finding::Claim;

    const CLIENT: [u8; 4] = [198, 18, 0, 2];
    const SERVER: [u8; 4] = [198, 19, 0, 2];

    fn seen(helper: bool, to: [u8; 4], port: u16) -> Evidence {
        let frame = tcp(([2; 6], [4; 6]), (CLIENT.into(), 5000), (to.into(), port), weir_wire::Tcp::SYN);
        let drops = DropGroup {
            namespace: 1,
            reason: "NETFILTER_DROP".into(),
            location: "nft_do_chain".into(),
            protocol: TCP,
            packets: 90,
            samples: vec![sample_of(&frame)],
            ..DropGroup::default()
        };
        let way = |source: [u8; 4], source_port, destination: [u8; 4], destination_port| Tuple {
            source: source.into(),
            destination: destination.into(),
            protocol: TCP,
            source_port,
            destination_port,
        };
        let group = ConnectionGroup {
            protocol: TCP,
            state: 3,
            replied: true,
            helper,
            destination: SERVER.into(),
            destination_port: 21,
            reply_source: SERVER.into(),
            entries: 1,
            example: Some(way(CLIENT, 4000, SERVER, 21)),
            example_reply: Some(way(SERVER, 21, CLIENT, 4000)),
            ..ConnectionGroup::default()
        };
        let mut namespace = counted(&[]);
        namespace.connections = Some(Connections { groups: vec![group], ..Connections::default() });
        evidence(namespace, vec![drops])
    }

    #[test]
    fn a_refused_second_connection_between_the_same_hosts_is_it() {
        let evidence = seen(false, SERVER, 30_021);
        let [finding] = &examine(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 90 }]);
        assert_eq!(finding.object, "ftp");
        assert!(finding.fixes[0].commands[1].contains("type \"ftp\" protocol tcp"));
    }

    #[test]
    fn look_alikes_are_not_it() {
        // It has a helper; another server; the first connection itself.
        for evidence in
            [seen(true, SERVER, 30_021), seen(false, [198, 19, 0, 9], 30_021), seen(false, SERVER, 21)]
        {
            assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        }
    }
}
