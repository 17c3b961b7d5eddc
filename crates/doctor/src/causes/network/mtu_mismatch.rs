//! The two ends of a link disagree about how long a frame may be.

use super::ways::{groups_as_facts, name_of};
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Interface, Namespace};
use crate::finding::{Claim, Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "mtu-mismatch",
    title: "MTU differs between the two ends of a link",
    about: "All hosts on one link must agree on its MTU. If one sends frames that are longer than the other takes (jumbo \
            frames on one side only, a container's interface that was made with another MTU than its bridge, a tunnel), \
            the receiver drops the long ones below IP: no ICMP error is sent, and path MTU discovery cannot help. Ping and \
            small requests work.",
    must: &[
        "long packets are dropped as they are handed to the other end of a link (veth, bridge), or the receiving card counts rx_length_errors",
    ],
    should: &[
        "the MTUs of the two ends differ",
        "tx_dropped of one end and rx_dropped of the other grow by the same number",
    ],
    must_not: &["an ICMP error is sent"],
    lookalikes: &[
        ("fragmentation-needed", "a router knows that the next link is narrow, and reports it"),
        ("pmtu-blackhole-own", "a router reports it, and a firewall drops the report"),
        ("link-down", "everything that is sent there is lost, whatever its length"),
    ],
    yields_to: &["link-down"],
    remedy: "Give all interfaces of the link the same MTU: the smallest one on each, or the largest if every card and switch in between \
             takes it.",
    sources: &[
        "net/core/dev.c: __dev_forward_skb",
        "include/linux/netdevice.h: is_skb_forwardable",
        "drivers/net/veth.c",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

/// Bytes that a frame may have beyond the MTU: Ethernet header and one VLAN tag.
const BEYOND: u32 = 14 + 4;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| handed_on(view, n).into_iter().chain(too_long_for_card(view, n))).collect()
}

/// True if the drop happened while the kernel handed a frame from one virtual interface to the next; it checks only the length
/// there.
fn is_handing_on(drops: &DropGroup) -> bool {
    matches!(
        drops.location.as_str(),
        "__dev_forward_skb2"
            | "__dev_forward_skb"
            | "____dev_forward_skb"
            | "dev_forward_skb"
            | "veth_xmit"
            | "br_dev_queue_push_xmit"
            | "br_forward_finish"
            | "__br_forward"
            | "maybe_deliver"
    )
}

fn handed_on(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Finding> {
    let by_interface = view.take(namespace, is_handing_on).by_interface();
    by_interface.iter().filter_map(|(index, taken)| at_link(view, namespace, *index, taken)).collect()
}

fn at_link(view: &EvidenceView<'_>, namespace: &Namespace, index: u32, taken: &Taken<'_>) -> Option<Finding> {
    let interface = namespace.interface(index)?;
    let lengths = || taken.samples().map(|s| s.length);
    let shortest = lengths().min()?;
    // A bridge looks at the port's own MTU; a veth at that of its other end.
    let is_port = taken.groups.iter().all(|g| g.location.contains("br_") || g.location == "maybe_deliver");
    let narrow = if is_port { Some(interface.mtu) } else { interface.peer_mtu };
    // An interface that is switched off takes nothing at all; here only the long ones are lost.
    if narrow.is_some_and(|mtu| shortest <= mtu) || (narrow.is_none() && shortest < 1280) {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.claims.clone_from(&taken.claims);
    finding.evidence = groups_as_facts(taken);
    finding.object = interface.name.clone();
    finding.missing = view.missing(namespace, &[EvidenceSource::Interfaces]);
    let (own, other) = if is_port { (None, Some(interface.mtu)) } else { (Some(interface.mtu), narrow) };
    let differs = is_port || other.zip(own).is_some_and(|(other, own)| other < own);
    finding.confidence = if differs { Confidence::High } else { Confidence::Medium };
    let sends = own.map_or("its bridge sends more".to_owned(), |own| format!("it sends up to {own} bytes"));
    let takes = other.map_or("takes less".to_owned(), |mtu| format!("takes {mtu}"));
    let whom = if is_port { "the port" } else { "the other end of the link" };
    finding.summary = format!(
        "{} packets of {shortest} bytes and more were lost on {}: {sends}, and {whom} {takes}.",
        taken.packets, interface.name
    );
    if interface.grew("tx_dropped") > 0 {
        let text = format!("tx_dropped of {} grew by {}", interface.name, interface.grew("tx_dropped"));
        finding.seen(EvidenceSource::Interfaces, text);
    }
    // If the interface is a bridge port, its bridge sends into it.
    let sender = if is_port { namespace.interface(interface.master.unwrap_or(0)) } else { Some(interface) };
    finding.fixes.extend(sender.zip(narrow).map(|(sender, mtu)| same(sender, mtu)));
    Some(finding)
}

fn same(interface: &Interface, mtu: u32) -> Fix {
    let set = |mtu: u32| sh!("ip link set dev {} mtu {}", interface.name, mtu);
    Fix::new(
        "send no more than the other end takes",
        "a router then sends ICMP errors for longer packets; see that they are not dropped",
        [set(mtu)],
        [set(interface.mtu)],
    )
}

/// A card that receives frames longer than its MTU counts them, and no event tells of it.
fn too_long_for_card(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let interface = namespace.interfaces.iter().max_by_key(|i| i.grew("rx_length_errors"))?;
    let lost = interface.grew("rx_length_errors");
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    let counter = format!("{}.rx_length_errors", interface.name);
    finding.claims =
        vec![Claim::Counter { namespace: namespace.id, counter: counter.clone(), packets: lost }];
    let delta = interface.counters["rx_length_errors"];
    finding.counter(EvidenceSource::Interfaces, &counter, delta, format!("{lost} frames of a wrong length"));
    finding.object = name_of(namespace, interface.index);
    finding.summary = format!(
        "{lost} frames came to {} that are longer than it takes (MTU {}, frames of {} bytes): hosts on its link send longer ones.",
        interface.name,
        interface.mtu,
        interface.mtu + BEYOND
    );
    finding.fixes.push(Fix::new("take longer frames, as long as the others send them", "many cards reset when their MTU changes; routes with a smaller next link need ICMP errors to get through", [sh!("ip link set dev {} mtu MTU_OF_THE_OTHERS", interface.name)], [sh!("ip link set dev {} mtu {}", interface.name, interface.mtu)]));
    Some(finding)
}

fn recipes() -> Vec<Recipe> {
    let udp = || Traffic::datagrams(7000, UdpMode::Sink, 1400, 300, 4);
    vec![
        Recipe::named("veth", vec![Step::responder("ip link set eth0 mtu 1280")], udp()),
        Recipe::named(
            "bridge",
            vec![
                Step::gateway(
                    "ip addr flush dev outside; ip link add br0 type bridge; ip link set br0 up; ip link set outside master br0; \
                     ip addr add $GATEWAY_OUTSIDE/24 dev br0; ip link set outside mtu 1280; ip link set br0 mtu 1500",
                ),
                Step::responder("ip neigh flush dev eth0 nud permanent"),
            ],
            udp(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{OUTSIDE, datagram, drops, healthy};
    use super::*;
    use crate::evidence::{Delta, Evidence};

    fn case(length: u32, peer: Option<u32>) -> Evidence {
        let mut evidence = healthy();
        let mut sample = datagram("198.18.0.2", "198.19.0.2", 2);
        sample.length = length;
        let mut group = drops("NOT_SPECIFIED", "__dev_forward_skb2", 300, &[sample]);
        group.interface = OUTSIDE;
        evidence.drops.push(group);
        evidence.namespaces[0].interfaces[1].peer_mtu = peer;
        evidence
    }

    #[test]
    fn both_mtus_are_told() {
        let found = examine(&EvidenceView::of(&case(1442, Some(1280))));
        assert_eq!((found[0].confidence, found[0].object.as_str()), (Confidence::High, "outside"));
        assert_eq!(found[0].fixes[0].commands, ["ip link set dev outside mtu 1280"]);
        assert_eq!(found[0].fixes[0].undo, ["ip link set dev outside mtu 1500"]);
        assert_eq!(examine(&EvidenceView::of(&case(1442, None))).len(), 1);
    }

    #[test]
    fn a_port_that_is_narrower_than_its_bridge_is_named() {
        let mut evidence = case(1442, Some(1500));
        evidence.drops[0].location = "br_dev_queue_push_xmit".into();
        let host = &mut evidence.namespaces[0];
        (host.interfaces[1].mtu, host.interfaces[1].master) = (1280, Some(9));
        host.interfaces.push(Interface { index: 9, name: "br0".into(), mtu: 1500, ..Interface::default() });
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found[0].confidence, found[0].object.as_str()), (Confidence::High, "outside"));
        assert_eq!(found[0].fixes[0].commands, ["ip link set dev br0 mtu 1280"]);
    }

    #[test]
    fn an_end_that_is_off_loses_short_packets_too() {
        assert_eq!(examine(&EvidenceView::of(&case(60, Some(1280)))), []);
        assert_eq!(examine(&EvidenceView::of(&case(60, None))), []);
    }

    #[test]
    fn a_card_that_counts_long_frames_is_named() {
        let mut evidence = healthy();
        let counters = &mut evidence.namespaces[0].interfaces[0].counters;
        counters.insert("rx_length_errors".into(), Delta { before: 1, after: 41 });
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].object.as_str()), (1, "inside"));
        assert!(found[0].summary.contains("1518"));
    }
}
