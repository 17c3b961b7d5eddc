//! Private addresses leave untranslated, and nothing comes back.

use std::net::IpAddr;

use crate::causes::{Cause, EvidenceView, Group};
use crate::collect::is_private;
use crate::command::nft::{self, nft, statement};
use crate::evidence::{ConnectionGroup, Connections, EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};
use weir_conntrack::names::{TCP, UDP};

pub(super) const CAUSE: Cause = Cause {
    id: "masquerade-missing",
    title: "private addresses leave untranslated",
    about: "This host forwards connections from private to public addresses without translating their source. The other \
            side answers to an address that the Internet does not route, and the answer is lost far away; nothing is \
            dropped here. The rule for source NAT is missing, was flushed, names an interface that has been renamed, or \
            omits a network.",
    must: &[
        "connections from private to public addresses without source translation",
        "next to none of them is answered",
    ],
    should: &["other connections are translated, or rules for source NAT exist"],
    must_not: &["such connections are answered: a router further on translates or routes them"],
    lookalikes: &[
        ("hairpin-missing", "there the destination is translated to a server in the client's own network"),
        ("conntrack-entry-lost", "there the connection was translated until its entry was lost"),
    ],
    yields_to: &["hairpin-missing"],
    remedy: "Translate the source of packets that leave through the outside interface.",
    sources: &["RFC 1918, section 3", "RFC 6598", "nft(8): NAT STATEMENTS"],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

/// Fewer may be one server that is away.
const FEW: u64 = 5;
/// Share of answers up to which the way back is taken for broken.
const HARDLY_ANY: f64 = 0.02;
/// Ports of UDP services that always answer: DNS, NTP, QUIC.
const ANSWERING: [u16; 3] = [53, 123, 443];

/// From a private address to a public one, both elsewhere, untranslated.
fn leaves_as_it_is(group: &ConnectionGroup, namespace: &Namespace) -> bool {
    let own = |a: IpAddr| namespace.interfaces.iter().any(|i| i.addresses.iter().any(|(o, _)| *o == a));
    let to = group.reply_source;
    group.private_source
        && !group.source_nat
        && !group.destination_nat
        && !is_private(to)
        && !to.is_multicast()
        && !to.is_loopback()
        && !is_link_local(to)
        && !own(to)
        && group.example.is_some_and(|t| !own(t.source))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let table = namespace.connections.as_ref()?;
    let mine: Vec<&ConnectionGroup> = table.groups.iter().filter(|g| leaves_as_it_is(g, namespace)).collect();
    // Connections that expect an answer: TCP that waits for its SYN-ACK, services of UDP that always answer.
    let expects = |g: &ConnectionGroup| {
        g.protocol == TCP && matches!(g.state, 1 | 9)
            || g.protocol == UDP && ANSWERING.contains(&g.destination_port)
    };
    let silent: u64 = mine.iter().filter(|g| !g.replied && expects(g)).map(|g| g.entries).sum();
    let answered: u64 = mine.iter().filter(|g| g.replied).map(|g| g.entries).sum();
    if silent < FEW || answered as f64 > HARDLY_ANY * (silent + answered) as f64 {
        return None;
    }
    let translated: u64 = table.groups.iter().filter(|g| g.source_nat).map(|g| g.entries).sum();
    let rules = table.source_nat_rules.unwrap_or(0);
    let example = mine.iter().filter(|g| !g.replied && expects(g)).max_by_key(|g| g.entries)?.example?;
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Critical;
    finding.confidence = if translated > 0 || rules > 0 { Confidence::High } else { Confidence::Medium };
    finding.impact = silent as f64 / table.read.max(1) as f64;
    finding.summary = format!(
        "{silent} connections left with a private source address, such as {}, and none was answered: source NAT is missing.",
        example.source
    );
    let text = format!(
        "{} to {} port {} is not translated and not answered; of all such connections {answered} were",
        example.source, example.destination, example.destination_port
    );
    finding.seen(EvidenceSource::Connections, text);
    finding.seen(EvidenceSource::Connections, format!("{translated} other connections are translated"));
    finding.evidence.extend(about_rules(table));
    let way = outside(namespace, example.destination);
    if let Some(interface) = way {
        finding.evidence.extend(one_way(interface));
    }
    finding.not.push("nothing was dropped here: the packets left".into());
    finding.fixes.push(masquerade(example.source, way));
    Some(finding)
}

fn about_rules(table: &Connections) -> Option<Fact> {
    let text = match table.source_nat_rules? {
        0 => "no rule of nftables translates sources".to_owned(),
        n => format!("{n} rules translate sources, and none of them meets these connections"),
    };
    Some(Fact::seen(EvidenceSource::Rules, text))
}

/// Finds the interface by which such packets leave, if known: the one whose network contains the destination, or the one that the
/// kernel names for a lost packet.
fn outside(namespace: &Namespace, destination: IpAddr) -> Option<&Interface> {
    namespace.interfaces.iter().find(|i| i.is_on_link(destination)).or_else(|| {
        let routes = namespace.routes.as_ref()?;
        let lookup = routes.lookups.iter().find(|l| l.destination == destination)?;
        namespace.interface(lookup.interface)
    })
}

fn one_way(interface: &Interface) -> Option<Fact> {
    let grew = |name: &str| interface.counters.get(name).map(|d| d.change());
    let (sent, received) = (grew("tx_packets")?, grew("rx_packets")?);
    let text = format!("{}: {sent} packets sent, {received} received", interface.name);
    Some(Fact::seen(EvidenceSource::Interfaces, text))
}

fn masquerade(source: IpAddr, way: Option<&Interface>) -> Fix {
    let family = if source.is_ipv4() { "ip" } else { "ip6" };
    let device = way.map_or_else(|| statement!("OUTSIDE_INTERFACE"), |i| nft::interface(&i.name));
    let networks = match source {
        IpAddr::V4(_) => "{ 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 }",
        IpAddr::V6(_) => "fc00::/7",
    };
    Fix::new(
        "translate the source of packets that leave",
        "traffic to networks that are routed without NAT behind that interface is translated as well; open connections \
               stay untranslated",
        [
            nft!("add table {} weir_nat", family),
            nft!("add chain {} weir_nat postrouting { type nat hook postrouting priority srcnat; }", family),
            nft!(
                "add rule {} weir_nat postrouting oifname {} {} saddr {} masquerade",
                family,
                device,
                family,
                networks
            ),
        ],
        [nft!("delete table {} weir_nat", family)],
    )
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        name: "wrong-interface",
        setup: vec![
            // The rule names the interface as another machine calls it.
            Step::gateway(
                "ip address add 10.99.0.1/24 dev inside
nft 'add table ip nat; add chain ip nat post { type nat hook postrouting priority srcnat; }; \
     add rule ip nat post oifname eth0 masquerade'",
            ),
            Step::initiator(
                "ip address add 10.99.0.2/24 dev eth0
ip route add 198.19.0.2/32 via \"$GATEWAY_INSIDE\" src 10.99.0.2",
            ),
            // The Internet: answers to private addresses vanish in it.
            Step::responder(
                "ip link add internet type veth peer name nowhere
ip link set internet arp off up
ip link set nowhere up
ip route add 10.0.0.0/8 dev internet
for i in all eth0; do sysctl -qw net.ipv4.conf.$i.rp_filter=0; done",
            ),
        ],
        traffic: Traffic::connects("198.19.0.2:7000", 20, 64, false),
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::{Evidence, Tuple};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn group(replied: bool, entries: u64) -> ConnectionGroup {
        let example = Tuple {
            source: ip("10.0.0.7"),
            destination: ip("198.19.0.2"),
            protocol: TCP,
            source_port: 4000,
            destination_port: 443,
        };
        ConnectionGroup {
            protocol: TCP,
            state: if replied { 3 } else { 1 },
            replied,
            private_source: true,
            destination: example.destination,
            destination_port: 443,
            reply_source: example.destination,
            entries,
            example: Some(example),
            ..ConnectionGroup::default()
        }
    }

    fn seen(groups: Vec<ConnectionGroup>) -> Evidence {
        let mut namespace = counted(&[]);
        let addresses = vec![(ip("198.19.0.1"), 24)];
        let interface = Interface { name: "wan'0".into(), addresses, ..Interface::default() };
        namespace.interfaces.push(interface);
        namespace.connections =
            Some(Connections { groups, source_nat_rules: Some(1), ..Connections::default() });
        evidence(namespace, vec![])
    }

    #[test]
    fn silent_connections_with_a_private_source_are_it() {
        let evidence = seen(vec![group(false, 100), group(true, 1)]);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!((finding.severity, finding.confidence), (Severity::Critical, Confidence::High));
        assert!(finding.summary.contains("10.0.0.7"));
        // A name from outside ends neither the quotes of the shell nor those of nft.
        let command = &finding.fixes[0].commands[2];
        assert!(command.contains(r#"oifname "wan'\''0""#), "{command}");
    }

    #[test]
    fn look_alikes_are_not_it() {
        let with = |change: fn(&mut ConnectionGroup)| {
            let mut g = group(false, 100);
            change(&mut g);
            seen(vec![g])
        };
        for evidence in [
            // A router before another one that translates; one dead server; translated; public or private on both sides;
            // datagrams that need no answer; this host's own.
            seen(vec![group(false, 100), group(true, 10)]),
            with(|g| g.entries = 4),
            with(|g| g.source_nat = true),
            with(|g| g.private_source = false),
            with(|g| g.reply_source = "10.9.9.9".parse().unwrap()),
            with(|g| (g.protocol, g.destination_port) = (UDP, 514)),
            with(|g| g.reply_source = "198.19.0.1".parse().unwrap()),
            with(|g| g.reply_source = "224.0.0.251".parse().unwrap()),
        ] {
            assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        }
    }
}
