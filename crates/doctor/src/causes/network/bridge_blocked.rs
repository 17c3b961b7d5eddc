//! A bridge lets nothing through one of its ports.

use super::ways::{groups_as_facts, is_missed, name_of};
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "bridge-blocked",
    title: "bridge port blocked (spanning tree, VLAN)",
    about: "A port of a bridge that is not in the state `forwarding` receives and sends no frames: the spanning tree \
            blocks it to break a loop, it is still learning (30 s after it came up with the usual forward delay), its \
            state was set by hand, or its VLANs do not include the frame's. The host itself sends into the bridge as \
            usual, but no port sends its frames out.",
    must: &[
        "packets dropped as BRIDGE_INGRESS_STP_STATE or by the VLAN filter, or a bridge with ports has none to send through",
    ],
    should: &["both directions at once"],
    must_not: &["the bridge has no port at all"],
    lookalikes: &[
        ("link-down", "the port has no carrier"),
        ("neighbour-unresolved", "its consequence: no host behind the port answers"),
    ],
    remedy: "Look at the port's state with `bridge -d link`. If the spanning tree blocks it, there is a loop, or a wrong root. For ports \
             to hosts, switch the spanning tree off or shorten the forward delay, so that a port works at once.",
    sources: &[
        "net/bridge/br_input.c: br_handle_frame",
        "net/bridge/br_forward.c",
        "IEEE 802.1D section 7.4",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    let bridges = all.filter(|(_, i)| i.kind == "bridge");
    bridges.filter_map(|(namespace, bridge)| on_bridge(view, namespace, bridge)).collect()
}

fn on_bridge(view: &EvidenceView<'_>, namespace: &Namespace, bridge: &Interface) -> Option<Finding> {
    let ports: Vec<&Interface> =
        namespace.interfaces.iter().filter(|i| i.master == Some(bridge.index)).collect();
    let is_port = |index| ports.iter().any(|p| p.index == index);
    let coming = view.take(namespace, |d| {
        is_port(d.interface)
            && (d.reason.starts_with("BRIDGE_INGRESS_STP")
                || matches!(d.location.as_str(), "br_allowed_ingress" | "__allowed_ingress"))
    });
    let works = |p: &&&Interface| p.up && p.carrier;
    // If no port is up, the bridge has no port to send to, and these drops do no harm.
    let going = if ports.iter().any(|p| works(&p)) {
        view.take(namespace, |d| has_no_port(d, bridge))
    } else {
        Taken::default()
    };
    let taken = coming.and(going);
    if taken.is_empty() {
        return None;
    }
    let blocked = taken.groups.iter().filter(|g| is_port(g.interface)).max_by_key(|g| g.packets);
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.claims.clone_from(&taken.claims);
    if !is_missed(&taken) {
        finding.severity = Severity::Note;
    }
    finding.evidence = groups_as_facts(&taken);
    finding.confidence = if blocked.is_some() { Confidence::High } else { Confidence::Medium };
    let port = blocked.map(|g| name_of(namespace, g.interface));
    finding.object = port.clone().unwrap_or_else(|| bridge.name.clone());
    let where_ = port.as_ref().map_or_else(
        || format!("none of the {} ports of {} let anything out", ports.len(), bridge.name),
        |p| format!("the port {p} of {} is blocked", bridge.name),
    );
    finding.summary = format!("{} packets were lost because {where_}.", taken.packets);
    finding.seen(EvidenceSource::Interfaces, format!("{} has {} ports", bridge.name, ports.len()));
    finding.fixes = fixes(bridge, port.as_deref().or(ports.first().map(|p| p.name.as_str())));
    Some(finding)
}

/// Sent into the bridge, and no port took it.
fn has_no_port(drops: &DropGroup, bridge: &Interface) -> bool {
    // Without a port that is forwarding a bridge has no carrier, and no queue.
    let at_door = drops.reason == "QDISC_DROP" && !bridge.carrier;
    drops.interface == bridge.index
        && (at_door
            || matches!(drops.reason.as_str(), "NO_TX_TARGET")
            || matches!(drops.location.as_str(), "br_dev_xmit" | "br_flood" | "br_forward"))
}

fn fixes(bridge: &Interface, port: Option<&str>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    let name = &bridge.name;
    if let Some(port) = port {
        fixes.push(Fix::new(
            "see the port's state, and set it to forwarding if no loop is behind it",
            "if it was blocked because of a loop, the network is flooded",
            [sh!("bridge -d link show dev {}", port), sh!("bridge link set dev {} state 3", port)],
            [sh!("bridge link set dev {} state 4", port)],
        ));
    }
    fixes.push(Fix::new(
        "no spanning tree on a bridge without loops",
        "a loop, if there is one, is no longer broken",
        [sh!("ip link set dev {} type bridge stp_state 0", name)],
        [sh!("ip link set dev {} type bridge stp_state 1", name)],
    ));
    fixes
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![
            Step::gateway(
                "ip addr flush dev outside; ip link add br0 type bridge; ip link set br0 up; \
                 ip link set outside master br0; ip addr add $GATEWAY_OUTSIDE/24 dev br0",
            ),
            // The gateway knows where the responder is, so that it sends into the bridge.
            Step::Before(vec![Traffic::udp_from(LabHost::Responder, "198.18.0.2:7000", 100, 50, 1)]),
            Step::gateway(
                "mac=$(ip -o neigh show $RESPONDER dev br0 | sed -n 's/.*lladdr \\([^ ]*\\).*/\\1/p'); \
                 ip neigh replace $RESPONDER lladdr $mac dev br0 nud permanent; bridge link set dev outside state 1",
            ),
        ],
        traffic: vec![
            Traffic::udp("198.19.0.2:7000", 100, 300, 4),
            Traffic::udp_from(LabHost::Responder, "198.18.0.2:7000", 100, 100, 2),
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{OUTSIDE, datagram, drops, healthy};
    use super::*;
    use crate::evidence::Evidence;

    const BRIDGE: u32 = 9;

    fn case(ports: bool, port_drops: bool) -> Evidence {
        let mut evidence = healthy();
        let host = &mut evidence.namespaces[0];
        host.interfaces.push(Interface {
            index: BRIDGE,
            name: "br0".into(),
            kind: "bridge".into(),
            ..Interface::default()
        });
        if ports {
            host.interfaces[1].master = Some(BRIDGE);
        }
        let sample = datagram("198.18.0.2", "198.19.0.2", BRIDGE);
        evidence.drops.push(drops("NOT_SPECIFIED", "br_dev_xmit", 200, &[sample]));
        if port_drops {
            let sample = datagram("198.19.0.2", "198.18.0.2", OUTSIDE);
            evidence.drops.push(drops("BRIDGE_INGRESS_STP_STATE", "br_handle_frame", 100, &[sample]));
        }
        evidence
    }

    #[test]
    fn the_blocked_port_is_named_and_both_directions_are_taken() {
        let found = examine(&EvidenceView::of(&case(true, true)));
        assert_eq!((found.len(), found[0].object.as_str()), (1, "outside"));
        assert_eq!((found[0].confidence, found[0].severity), (Confidence::High, Severity::Critical));
        assert_eq!(found[0].claims.len(), 2);
        assert_eq!(examine(&EvidenceView::of(&case(true, false)))[0].confidence, Confidence::Medium);
    }

    #[test]
    fn a_bridge_without_ports_loses_nothing_that_anybody_misses() {
        assert_eq!(examine(&EvidenceView::of(&case(false, false))), []);
        assert_eq!(examine(&EvidenceView::of(&healthy())), []);
    }
}
