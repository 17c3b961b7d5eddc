//! A link has no carrier, or was switched off.

use super::neighbour_unresolved::{next_hop, waits_for_neighbour};
use super::ways::{groups_as_facts, is_missed, lookup};
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::{sh, sysctl};
use crate::evidence::{DropGroup, EvidenceSource, Interface, Namespace, RouteOutcome, Sample};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "link-down",
    title: "link down",
    about: "An interface that is switched on and has no carrier (cable, transceiver, switch port, the other end of a veth \
            pair) keeps its addresses and routes on Linux, so packets still go there: they wait for a neighbour that \
            cannot answer, or are dropped at the interface. One that is switched off loses its routes, and packets find \
            none, or take the default route. A link that goes up and down repeatedly loses the packets in flight each \
            time.",
    must: &[
        "packets dropped on an interface without carrier, or without a route because their interface is off",
    ],
    should: &["carrier_changes grew in the window"],
    must_not: &["the interface has a carrier and did not lose it in the window"],
    lookalikes: &[
        ("neighbour-unresolved", "the link is up, and one host on it does not answer"),
        ("no-route", "no interface that is off had the destination in its networks"),
        ("qdisc-full", "the link is up, and its queue is full"),
    ],
    yields_to: &["bridge-blocked"],
    remedy: "Switch the interface on, or look at cable, transceiver, switch port or the other end. With \
             `net.ipv4.conf.INTERFACE.ignore_routes_with_linkdown=1` routes over a link without carrier are passed over, so that \
             another route can take their place.",
    sources: &[
        "net/sched/sch_generic.c: noop_enqueue",
        "net/ipv4/fib_semantics.c: fib_sync_down_dev",
        "Documentation/networking/operstates.rst",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    let dead = all.filter(|(n, i)| i.name != "lo" && is_dead(i) && !has_live_port(n, i));
    dead.filter_map(|(namespace, interface)| on_interface(view, namespace, interface)).collect()
}

fn is_dead(interface: &Interface) -> bool {
    !interface.up || !interface.carrier || interface.carrier_changes.change() > 0
}

/// A bridge has no carrier if none of its ports is forwarding. With a port that has one, the bridge itself is the cause.
fn has_live_port(namespace: &Namespace, bridge: &Interface) -> bool {
    bridge.up && namespace.interfaces.iter().any(|p| p.master == Some(bridge.index) && p.up && p.carrier)
}

fn on_interface(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    let at_door = |d: &DropGroup| {
        d.interface == interface.index
            && (waits_for_neighbour(d)
                || matches!(d.reason.as_str(), "QDISC_DROP" | "DEV_READY" | "TX_DROP" | "NIC_DOWN")
                || matches!(d.location.as_str(), "noop_enqueue" | "validate_xmit_skb"))
    };
    let mut taken = view.take(namespace, at_door);
    if !interface.up {
        let unrouted = |d: &DropGroup| d.reason == "IP_INNOROUTES";
        let lost_route = |_: &DropGroup, s: &Sample| {
            let no_route = lookup(namespace, s).is_none_or(|l| l.outcome == RouteOutcome::NoRoute);
            no_route && next_hop(namespace, s).is_some_and(|to| interface.is_on_link(to))
        };
        taken = taken.and(view.take(namespace, unrouted).share(false, lost_route));
    }
    if taken.is_empty() {
        return None;
    }
    Some(told(view, namespace, interface, &taken))
}

fn told(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface, taken: &Taken<'_>) -> Finding {
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.claims.clone_from(&taken.claims);
    if !is_missed(taken) {
        finding.severity = Severity::Note;
    }
    finding.object = interface.name.clone();
    finding.evidence = groups_as_facts(taken);
    let (state, confidence) = match (interface.up, interface.carrier) {
        (false, _) => ("is switched off", Confidence::High),
        (true, false) => ("has no carrier", Confidence::High),
        (true, true) => ("lost its carrier for a while", Confidence::Medium),
    };
    finding.confidence = confidence;
    let example = taken.example().map_or(String::new(), |t| format!(", such as to {}", t.destination));
    finding.summary = format!(
        "{} {state}: {} packets that were to leave through it{example} were lost.",
        interface.name, taken.packets
    );
    finding.seen(EvidenceSource::Interfaces, format!("{} {state}", interface.name));
    let changes = interface.carrier_changes;
    if changes.change() > 0 {
        let text = format!("its carrier changed {} times in the window", changes.change());
        let name = format!("{}.carrier_changes", interface.name);
        finding.counter(EvidenceSource::Interfaces, &name, changes, text);
    }
    let dev = &interface.name;
    let setting = format!("net.ipv4.conf.{}.ignore_routes_with_linkdown", super::ways::in_sysctl(dev));
    finding.fixes.push(if interface.up {
        Fix::new(
            "let another route take over while the link is down",
            "without another route the senders get `network unreachable` instead of silence",
            [sysctl::set(&setting, 1)],
            [sysctl::set(&setting, namespace.setting(&setting).unwrap_or(0))],
        )
    } else {
        Fix::new(
            "switch it on",
            "routes that were set by hand do not come back; the interface may be off on purpose",
            [sh!("ip link set dev {} up", dev)],
            [sh!("ip link set dev {} down", dev)],
        )
    });
    finding
}

fn recipes() -> Vec<Recipe> {
    let udp = Traffic::udp("198.19.0.2:7000", 100, 300, 4);
    vec![
        Recipe::named(
            "carrier",
            vec![
                Step::responder("ip link set eth0 down"),
                Step::gateway("sysctl -qw net.ipv4.neigh.outside.retrans_time_ms=300"),
            ],
            vec![udp.clone()],
        ),
        Recipe::named("off", vec![Step::gateway("ip link set outside down")], vec![udp]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, OUTSIDE, answer, answered, datagram, drops, healthy};
    use super::*;
    use crate::evidence::Evidence;

    fn case(reason: &str, location: &str, interface: u32) -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        let mut group = drops(reason, location, 200, std::slice::from_ref(&sample));
        group.interface = interface;
        evidence.drops.push(group);
        answered(&mut evidence, answer(&sample, RouteOutcome::NoRoute, 0));
        evidence
    }

    #[test]
    fn without_carrier_what_waits_is_lost_at_its_door() {
        let mut evidence = case("NEIGH_FAILED", "neigh_invalidate", OUTSIDE);
        assert_eq!(examine(&EvidenceView::of(&evidence)), [], "the link is up");
        evidence.namespaces[0].interfaces[1].carrier = false;
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::High));
        assert!(found[0].summary.starts_with("outside has no carrier: 200 packets"), "{}", found[0].summary);
        evidence.namespaces[0].interfaces[1].carrier = true;
        evidence.namespaces[0].interfaces[1].carrier_changes.after = 4;
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].confidence, Confidence::Medium);
    }

    #[test]
    fn switched_off_it_takes_what_has_no_route_to_its_networks() {
        let mut evidence = case("IP_INNOROUTES", "ip_error", INSIDE);
        evidence.namespaces[0].interfaces[1].up = false;
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(found[0].fixes[0].commands, ["ip link set dev outside up"]);
        evidence.namespaces[0].interfaces[1].addresses.clear();
        assert_eq!(examine(&EvidenceView::of(&evidence)), [], "another network");
    }

    #[test]
    fn what_an_interface_tells_of_itself_as_it_comes_up_is_a_note() {
        let mut evidence = healthy();
        let group = datagram("2001:2:0:1::1", "ff02::16", OUTSIDE);
        evidence.drops.push(drops("QDISC_DROP", "__dev_queue_xmit", 200, &[group]));
        evidence.namespaces[0].interfaces[1].carrier_changes.after = 2;
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].severity, Severity::Note);
        let missed = datagram("198.18.0.2", "198.19.0.2", OUTSIDE);
        evidence.drops[0].samples.push(missed);
        assert!(examine(&EvidenceView::of(&evidence))[0].severity > Severity::Note);
    }

    #[test]
    fn a_port_that_nobody_plugged_in_harms_nobody() {
        let mut evidence = healthy();
        evidence.namespaces[0].interfaces[1].carrier = false;
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
    }
}
