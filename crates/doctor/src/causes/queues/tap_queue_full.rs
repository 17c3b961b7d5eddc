//! A program that has a tap or tun interface does not take packets off fast enough.

use super::lost::{grew, on};
use crate::causes::shell::word;
use crate::causes::{Cause, Group, Scene};
use crate::evidence::{Interface, Namespace, Plane};
use crate::finding::{Confidence, Fact, Finding, Fix};
use crate::recipe::{Place, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "tap-queue-full",
    group: Group::Queues,
    title: "a virtual machine or VPN takes packets off its tap too slowly",
    about: "What leaves by a tun or tap interface waits in a ring of txqueuelen packets (1,000 by default) until the program behind \
            it reads: a virtual machine, OpenVPN, a container network in user space. Where that program is too slow, or has no \
            CPU, the ring is full, and packets are thrown away on their way to it. The guest sees nothing of it; on this host \
            tx_dropped of the interface grows.",
    must: &["tx_dropped of a tun or tap interface grows"],
    should: &["packets dropped as FULL_RING in tun_net_xmit"],
    must_not: &[],
    lookalikes: &[
        ("qdisc-full", "the queue before the interface drops: QDISC_DROP, and its `dropped` grows"),
        ("ring-overflow", "the ring of a card or a veth pair"),
        ("cpu-throttled", "the program behind it has no time because of its limit"),
    ],
    yields_to: &[],
    remedy: "Find out what the program behind it is short of: CPU (steal in the guest, a limit of its control group), or queues \
             (multiqueue, vhost-net). A longer ring helps with bursts alone.",
    sources: &["drivers/net/tun.c: tun_net_xmit", "Documentation/networking/tuntap.rst"],
    examine,
    recipes,
    not_injected: None,
};

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    let all = scene.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    all.filter(|(_, i)| i.kind == "tun").filter_map(|(n, i)| on_tap(scene, n, i)).collect()
}

fn on_tap(scene: &Scene<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    // Filters of the program itself (TAP_FILTER, TAP_TXFILTER) count there, too, and are no lack of room.
    let taken = on(scene, namespace, interface, |d| {
        d.reason == "FULL_RING"
            || matches!(d.reason.as_str(), "UNKNOWN" | "NOT_SPECIFIED") && d.location == "tun_net_xmit"
    });
    let counted = grew(interface, "tx_dropped");
    let lost = if scene.sees_drops() { taken.packets } else { counted };
    if lost == 0 {
        return None;
    }
    let mut finding = scene.finding(CAUSE.id, namespace, lost);
    finding.object.clone_from(&interface.name);
    finding.missing = scene.missing(namespace, &[Plane::Drops]);
    if let Some(group) = taken.groups.first() {
        let text = format!("{lost} packets dropped as {} in {}()", group.reason, group.location);
        finding.evidence.push(Fact::seen(Plane::Drops, text));
        finding.claims = taken.claims;
    } else {
        finding.claims = vec![scene.counted(namespace, &format!("tap.{}", interface.name), counted)];
    }
    if counted > 0 {
        let text = format!("tx_dropped of {} grew by {counted}", interface.name);
        finding.evidence.push(Fact::counter(
            Plane::Interfaces,
            "tx_dropped",
            interface.counters["tx_dropped"],
            text,
        ));
    }
    if counted > 0 && !finding.claims.is_empty() && scene.sees_drops() {
        finding.confidence = Confidence::High;
    }
    finding.summary = format!(
        "The program behind {} does not take packets off fast enough: its ring of {} was full, and {lost} were thrown away.",
        interface.name, interface.tx_queue_length
    );
    finding.fixes = fixes(interface);
    Some(finding)
}

fn fixes(interface: &Interface) -> Vec<Fix> {
    let dev = word(&interface.name);
    let now = interface.tx_queue_length;
    let proposed = now.saturating_mul(4).clamp(1000, 10_000).max(now);
    let see = Fix {
        title: "see which program it is, and what it is short of".into(),
        commands: vec![
            format!("grep -l 'iff:.*{dev}' /proc/[0-9]*/fdinfo/* 2>/dev/null"),
            "top -b -n 1 | head -20".into(),
        ],
        risk: "none, it only shows".into(),
        ..Fix::default()
    };
    let longer = Fix {
        title: "let longer bursts wait".into(),
        commands: vec![format!("ip link set dev {dev} txqueuelen {proposed}")],
        risk: "packets that wait longer arrive later".into(),
        undo: vec![format!("ip link set dev {dev} txqueuelen {now}")],
        tune: Vec::new(),
    };
    if proposed > now { vec![see, longer] } else { vec![see] }
}

/// A program that has a tun interface and never reads. It ends by itself when nobody ends it.
const DEAF: &str = r#"exec perl -e '
    open(my $tun, "+<", "/dev/net/tun") or die;
    # TUNSETIFF, IFF_TUN | IFF_NO_PI (include/uapi/linux/if_tun.h)
    my $request = pack("a16 S x22", "vpn0", 0x1001);
    ioctl($tun, 0x400454ca, $request) or die;
    system("ip link set vpn0 up txqueuelen 50 && ip route add 198.19.7.0/24 dev vpn0") and die;
    alarm 60;
    sleep 60'"#;

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::Run(Place::Initiator, "ip route replace 198.19.7.0/24 via 198.18.0.1".into())],
        traffic: vec![
            Traffic::Script(Place::Gateway, DEAF.into()),
            Traffic::Udp {
                from: Place::Initiator,
                to: "198.19.7.9:7000".into(),
                size: 100,
                rate: 1000,
                flows: 4,
                dont_fragment: false,
            },
        ],
        needs: vec!["perl"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, DropGroup, Evidence, Sight};
    use crate::finding::Claim;

    fn host(kind: &str, dropped: u64, reason: Option<&str>) -> Evidence {
        let counters = [("tx_dropped".to_owned(), Delta { before: 3, after: 3 + dropped })].into();
        let interface = Interface {
            index: 4,
            name: "vnet7".into(),
            kind: kind.into(),
            counters,
            tx_queue_length: 1000,
            ..Interface::default()
        };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![interface], ..Namespace::default() });
        if let Some(reason) = reason {
            evidence.planes.insert(Plane::Drops, Sight::Seen);
            evidence.drops.push(DropGroup {
                namespace: 5,
                reason: reason.into(),
                location: "tun_net_xmit".into(),
                interface: 4,
                packets: dropped,
                ..DropGroup::default()
            });
        }
        evidence
    }

    #[test]
    fn a_full_ring_is_found_by_either_plane() {
        let found = examine(&Scene::of(&host("tun", 70, Some("FULL_RING"))));
        assert_eq!((found[0].confidence, found[0].claims.len()), (Confidence::High, 1));
        assert_eq!(found[0].fixes[1].commands, ["ip link set dev vnet7 txqueuelen 4000"]);
        let found = examine(&Scene::of(&host("tun", 70, None)));
        assert_eq!(
            found[0].claims,
            [Claim::Counter { namespace: 5, counter: "tap.vnet7".into(), packets: 70 }]
        );
    }

    #[test]
    fn filters_of_the_program_and_other_interfaces_are_not_its() {
        assert_eq!(examine(&Scene::of(&host("tun", 70, Some("TAP_TXFILTER")))), []);
        assert_eq!(examine(&Scene::of(&host("veth", 70, None))), []);
    }
}
