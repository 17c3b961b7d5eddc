//! A published service is called from its own network, and its answers do not come back through this host.

use std::net::IpAddr;

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::{self, nft, statement};
use crate::evidence::{ConnectionGroup, Connections, EvidenceSource, Interface, Namespace, is_within};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};
use weir_conntrack::names;

pub(super) const CAUSE: Cause = Cause {
    id: "hairpin-missing",
    title: "published service unreachable from its own network",
    about: "A rule translates the destination of connections to an outside address to a server inside (port forwarding). \
            When a client in the server's own network calls the outside address, the server gets the packet with the \
            client's address as source, and answers it directly, bypassing the NAT host. The client called another address \
            and resets the answer. From elsewhere the service works. RFC 4787 and RFC 5382 call the missing function \
            hairpinning.",
    must: &[
        "connections whose destination is translated to a server in the client's own network, and whose source is not",
        "none of them is ever answered",
    ],
    should: &["client and server are on the same interface of this host"],
    must_not: &[
        "such connections are answered (bridge-nf-call-iptables, or the server routes through this host)",
    ],
    lookalikes: &[
        ("masquerade-missing", "there clients call out, and nothing translates their destination"),
        ("no-listener", "there the server answers with a reset, which counts as an answer"),
    ],
    remedy: "Translate the source of such connections as well, so that the server answers to this host; or let names resolve to \
             the inside address for clients inside (split DNS).",
    sources: &["RFC 4787, REQ-9", "RFC 5382, REQ-8"],
    recipes,
    ..Cause::of(Group::Conntrack, examine)
};

/// Fewer may be a server that is away for a moment.
const FEW: u64 = 3;
/// So many make it sure that all of them fail.
const MANY: u64 = 20;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        let Some(table) = &namespace.connections else { continue };
        let mut seen = Vec::new();
        for group in table.groups.iter().filter(|g| is_turned_back(g) && !g.replied) {
            let service = (group.destination, group.destination_port, group.protocol, group.reply_source);
            if !seen.contains(&service) {
                seen.push(service);
                findings.extend(of(view, namespace, table, group));
            }
        }
    }
    findings
}

/// It comes from the server's own network, and the server sees from whom.
fn is_turned_back(group: &ConnectionGroup) -> bool {
    group.destination_nat && !group.source_nat && group.same_network
}

fn same_service(a: &ConnectionGroup, b: &ConnectionGroup) -> bool {
    (a.destination, a.destination_port, a.protocol, a.reply_source)
        == (b.destination, b.destination_port, b.protocol, b.reply_source)
}

fn of(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    table: &Connections,
    group: &ConnectionGroup,
) -> Option<Finding> {
    let alike = || table.groups.iter().filter(|g| is_turned_back(g) && same_service(g, group));
    if alike().any(|g| g.replied) {
        return None;
    }
    let entries: u64 = alike().map(|g| g.entries).sum();
    let client = group.example?.source;
    let interface = shared_interface(namespace, client, group.reply_source);
    // Two networks behind one another may share a prefix of 24 bits; then the server does answer through this host.
    let known = !namespace.interfaces.is_empty();
    if entries < FEW || known && interface.is_none() {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if entries >= MANY { Severity::Critical } else { Severity::Warning };
    finding.confidence = if known { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Interfaces]);
    let service = names::service(group.protocol, group.destination_port);
    finding.object = format!("{} {service}", group.destination);
    let to_it: u64 = table
        .groups
        .iter()
        .filter(|g| (g.destination, g.destination_port) == (group.destination, group.destination_port))
        .map(|g| g.entries)
        .sum();
    finding.impact = entries as f64 / to_it.max(1) as f64;
    finding.summary = format!(
        "Clients in the network of {} cannot reach it by {}: {entries} connections were never answered through this host.",
        group.reply_source, finding.object
    );
    let text = format!(
        "{entries} entries: {client} asks {} {service}, which is sent to {}, and keeps its source; none is answered",
        group.destination, group.reply_source
    );
    finding.seen(EvidenceSource::Connections, text);
    if let Some((interface, _)) = interface {
        finding.seen(
            EvidenceSource::Interfaces,
            format!("client and server are both behind {}", interface.name),
        );
    }
    finding.not.push("not a closed port: a reset would be an answer".into());
    finding.fixes.push(translate(group, interface));
    Some(finding)
}

/// The interface behind which both are, with its network.
fn shared_interface(namespace: &Namespace, a: IpAddr, b: IpAddr) -> Option<(&Interface, (IpAddr, u8))> {
    let holds = |(own, prefix): &(IpAddr, u8)| is_within(a, *own, *prefix) && is_within(b, *own, *prefix);
    namespace.interfaces.iter().find_map(|i| Some((i, *i.addresses.iter().find(|network| holds(network))?)))
}

fn translate(group: &ConnectionGroup, interface: Option<(&Interface, (IpAddr, u8))>) -> Fix {
    let family = if group.reply_source.is_ipv4() { "ip" } else { "ip6" };
    let server = group.reply_source;
    let network =
        interface.map_or_else(|| statement!("CLIENT_NETWORK/PREFIX"), |(_, (a, p))| Ok(nft::network(a, p)));
    Fix::new(
        "translate the source of such connections as well",
        "the server sees this host as the client of such connections",
        [
            nft!("add table {} weir_hairpin", family),
            nft!(
                "add chain {} weir_hairpin postrouting { type nat hook postrouting priority srcnat; }",
                family
            ),
            nft!(
                "add rule {} weir_hairpin postrouting {} saddr {} {} daddr {} \
                 ct status dnat masquerade",
                family,
                family,
                network,
                family,
                server
            ),
        ],
        [nft!("delete table {} weir_hairpin", family)],
    )
}

fn recipes() -> Vec<Recipe> {
    // Client and server in one network: both interfaces become ports of a bridge that has the inside address.
    let bridge = "mac=$(ip -br link show inside | awk '{print $3}')
ip link add br0 type bridge
ip address del \"$GATEWAY_INSIDE/24\" dev inside
ip link set br0 address \"$mac\" up
ip link set inside master br0
ip link set outside master br0
ip address add \"$GATEWAY_INSIDE/24\" dev br0
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br0.send_redirects=0
if [ -e /proc/sys/net/bridge ]; then sysctl -qw net.bridge.bridge-nf-call-iptables=0; fi
nft 'add table ip nat; add chain ip nat pre { type nat hook prerouting priority dstnat; }; \
     add rule ip nat pre ip daddr 198.18.0.1 tcp dport 8080 dnat to 198.18.0.3:7000'";
    vec![Recipe {
        setup: vec![
            Step::gateway(bridge),
            // Its way back is the network itself now, no longer the gateway.
            Step::responder("ip route flush root 198.18.0.0/24; ip address add 198.18.0.3/24 dev eth0"),
        ],
        traffic: Traffic::connects("198.18.0.1:8080", 20, 64, false),
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
            source: ip("192.168.1.20"),
            destination: ip("198.18.0.1"),
            protocol: 6,
            source_port: 4000,
            destination_port: 8080,
        };
        ConnectionGroup {
            protocol: 6,
            state: 1,
            replied,
            destination_nat: true,
            same_network: true,
            private_source: true,
            destination: ip("198.18.0.1"),
            destination_port: 8080,
            reply_source: ip("192.168.1.3"),
            entries,
            example: Some(example),
            ..ConnectionGroup::default()
        }
    }

    fn seen(groups: Vec<ConnectionGroup>) -> Evidence {
        let mut namespace = counted(&[]);
        let addresses = vec![(ip("192.168.1.1"), 24)];
        namespace.interfaces.push(Interface { name: "lan".into(), addresses, ..Interface::default() });
        namespace.connections = Some(Connections { groups, ..Connections::default() });
        evidence(namespace, vec![])
    }

    #[test]
    fn unanswered_connections_turned_back_are_it() {
        let evidence = seen(vec![group(false, 30)]);
        let [finding] = &examine(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!((finding.severity, finding.confidence), (Severity::Critical, Confidence::High));
        assert_eq!(finding.object, "198.18.0.1 tcp/8080");
        assert!(finding.fixes[0].commands[2].contains("ip saddr 192.168.1.1/24 ip daddr 192.168.1.3"));
    }

    #[test]
    fn look_alikes_are_not_it() {
        let with = |change: fn(&mut ConnectionGroup)| {
            let mut g = group(false, 30);
            change(&mut g);
            seen(vec![g])
        };
        for evidence in [
            // Answered (also if only some are), masqueraded, from elsewhere, no translation, a few.
            seen(vec![group(true, 30)]),
            seen(vec![group(false, 30), group(true, 1)]),
            with(|g| g.source_nat = true),
            with(|g| g.same_network = false),
            with(|g| g.destination_nat = false),
            with(|g| g.entries = 2),
            // Another network than that of the interface.
            with(|g| g.reply_source = "192.168.2.3".parse().unwrap()),
        ] {
            assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        }
    }
}
