//! Two hosts have the same address.

use super::ways::name_of;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{EvidenceSource, Moved, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "duplicate-address",
    title: "an address that two hosts claim",
    about: "If two hosts on a link answer for the same IP address, each of their answers moves it to another Ethernet \
            address. Packets to it reach sometimes one host, sometimes the other; connections break with resets or stall \
            for seconds. A host with two interfaces on the same link does it to itself, as Linux answers for every address \
            on every interface (ARP flux). A single move is something else: a failover, or a host that was replaced.",
    must: &["the Ethernet address of a neighbour changes more than once, back to one that it had"],
    should: &["connections to it are reset"],
    must_not: &["it changes once and stays"],
    lookalikes: &[
        ("martian-source", "the address is this host's own: packets with it as their source come in"),
        ("neighbour-unresolved", "no host answers"),
    ],
    remedy: "Look up both Ethernet addresses (the first three bytes name the vendor; the switch knows the port) and give \
             one of the hosts another address. If both belong to one host, set arp_ignore=1 and arp_announce=2 there.",
    sources: &[
        "RFC 5227",
        "net/ipv4/arp.c: arp_process",
        "Documentation/networking/ip-sysctl.rst: arp_ignore",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let moved =
        view.namespaces().flat_map(|n| n.neighbours.iter().flat_map(|o| &o.moved).map(move |m| (n, m)));
    moved.filter_map(|(namespace, moved)| claimed_twice(view, namespace, moved)).collect()
}

fn claimed_twice(view: &EvidenceView<'_>, namespace: &Namespace, moved: &Moved) -> Option<Finding> {
    // Twice to and fro; with each Ethernet address seen once, it only moved on.
    let returned = moved.times >= moved.seen.len() as u64;
    if moved.times < 2 || !returned {
        return None;
    }
    let name = name_of(namespace, moved.interface);
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence = if moved.times >= 3 { Confidence::High } else { Confidence::Medium };
    finding.object = moved.address.to_string();
    // When two hosts take turns with an address, the wrong one has it half of the time.
    finding.impact = 0.5;
    finding.summary = format!(
        "{} on {name} changed its Ethernet address {} times: {} claim it.",
        moved.address,
        moved.times,
        moved.seen.join(" and ")
    );
    let text = format!("Ethernet addresses seen for {}: {}", moved.address, moved.seen.join(", "));
    finding.seen(EvidenceSource::Neighbours, text);
    let dev = &name;
    finding.fixes = vec![Fix::new(
        "until one of them has another address: pin the right one",
        "when that host gets another card, it is out of reach until the entry is deleted",
        [sh!(
            "{} neigh replace {} lladdr ETHERNET_ADDRESS_OF_THE_RIGHT_ONE dev {} nud permanent",
            Words::of(super::ways::ip(moved.address)),
            moved.address,
            dev
        )],
        [sh!("{} neigh del {} dev {}", Words::of(super::ways::ip(moved.address)), moved.address, dev)],
    )];
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    // Both ends are on one bridge of the gateway, have the address, and announce it as their own, in turn: with arp_notify a
    // host does so when its Ethernet address is set, also to what it was (ip-sysctl.rst).
    let announce = |pause: &str| {
        format!(
            "sysctl -qw net.ipv4.conf.eth0.arp_notify=1; mac=$(ip -o link show eth0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'); \
             while :; do ip link set eth0 address $mac; sleep {pause}; done"
        )
    };
    let server = |on| Traffic::UdpServer { on, port: 7000, buffer: None, mode: UdpMode::Sink };
    vec![Recipe {
        setup: vec![
            Step::initiator("ip addr add $RESPONDER/24 dev eth0"),
            Step::gateway(
                "ip addr flush dev outside; ip link add br0 type bridge; ip link set br0 up; \
                 ip link set outside master br0; ip link set inside master br0; ip neigh flush dev outside nud permanent; ip neigh flush dev inside nud permanent; ip addr add $GATEWAY_OUTSIDE/24 dev br0",
            ),
        ],
        traffic: vec![
            server(LabHost::Responder),
            server(LabHost::Initiator),
            Traffic::udp_from(LabHost::Gateway, "198.19.0.2:7000", 100, 100, 2),
            Traffic::Script(LabHost::Responder, announce("0.5")),
            Traffic::Script(LabHost::Initiator, announce("0.37")),
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{OUTSIDE, healthy};
    use super::*;
    use crate::evidence::Evidence;

    fn case(seen: &[&str], times: u64) -> Evidence {
        let mut evidence = healthy();
        let moved = Moved {
            address: [198, 19, 0, 2].into(),
            interface: OUTSIDE,
            seen: seen.iter().map(|s| (*s).to_owned()).collect(),
            times,
        };
        evidence.namespaces[0].neighbours.as_mut().unwrap().moved.push(moved);
        evidence
    }

    #[test]
    fn to_and_fro_convicts() {
        let found = examine(&EvidenceView::of(&case(&["02:00:00:00:00:01", "02:00:00:00:00:02"], 5)));
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Warning, Confidence::High));
        assert!(found[0].summary.contains("02:00:00:00:00:01 and 02:00:00:00:00:02"));
    }

    #[test]
    fn a_failover_does_not() {
        assert_eq!(examine(&EvidenceView::of(&case(&["02:00:00:00:00:01", "02:00:00:00:00:02"], 1))), []);
        let on = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];
        assert_eq!(examine(&EvidenceView::of(&case(&on, 2))), []);
        assert_eq!(examine(&EvidenceView::of(&healthy())), []);
    }
}
