//! A program that has a tap or tun interface does not take packets off fast enough.

use super::lost::on;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "tap-queue-full",
    title: "a virtual machine or VPN takes packets off its tap too slowly",
    about: "Packets that leave by a tun or tap interface wait in a ring of txqueuelen packets (1,000 by default) until the \
            program behind it reads: a virtual machine, OpenVPN, a container network in user space. If that program is too \
            slow, or has no CPU, the ring is full, and the kernel drops packets on their way to it. The guest does not see \
            this; on this host tx_dropped of the interface grows.",
    must: &["tx_dropped of a tun or tap interface grows"],
    should: &["packets dropped as FULL_RING in tun_net_xmit"],
    lookalikes: &[
        ("qdisc-full", "the queue before the interface drops: QDISC_DROP, and its `dropped` grows"),
        ("ring-overflow", "the ring of a card or a veth pair"),
        ("cpu-throttled", "the program behind it has no time because of its limit"),
    ],
    remedy: "Find out what the program behind it lacks: CPU (steal in the guest, a limit of its control group), or queues \
             (multiqueue, vhost-net). A longer ring helps only with bursts.",
    sources: &["drivers/net/tun.c: tun_net_xmit", "Documentation/networking/tuntap.rst"],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    all.filter(|(_, i)| i.kind == "tun").filter_map(|(n, i)| on_tap(view, n, i)).collect()
}

fn on_tap(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    // Filters of the program itself (TAP_FILTER, TAP_TXFILTER) count there, too, and are no lack of room.
    let taken = on(view, namespace, interface, |d| {
        d.reason == "FULL_RING"
            || matches!(d.reason.as_str(), "UNKNOWN" | "NOT_SPECIFIED") && d.location == "tun_net_xmit"
    });
    let counted = interface.grew("tx_dropped");
    let lost = if view.sees_drops() { taken.packets } else { counted };
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.object.clone_from(&interface.name);
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    if let Some(group) = taken.groups.first() {
        let text = format!("{lost} packets dropped as {} in {}()", group.reason, group.location);
        finding.seen(EvidenceSource::Drops, text);
        finding.claims = taken.claims;
    } else {
        finding.claims = vec![view.counted(namespace, &format!("tap.{}", interface.name), counted)];
    }
    if counted > 0 {
        let text = format!("tx_dropped of {} grew by {counted}", interface.name);
        finding.counter(EvidenceSource::Interfaces, "tx_dropped", interface.counters["tx_dropped"], text);
    }
    if counted > 0 && !finding.claims.is_empty() && view.sees_drops() {
        finding.confidence = Confidence::High;
    }
    finding.summary = format!(
        "The program behind {} does not take packets off fast enough: its ring of {} was full, and {lost} were dropped.",
        interface.name, interface.tx_queue_length
    );
    finding.fixes = fixes(interface);
    Some(finding)
}

fn fixes(interface: &Interface) -> Vec<Fix> {
    let dev = &interface.name;
    let now = interface.tx_queue_length;
    let proposed = now.saturating_mul(4).clamp(1000, 10_000).max(now);
    // The line of a tun or tap in fdinfo; characters of the name mean themselves (BRE, POSIX.1-2017, XBD 9.3).
    let plain = |c: char| if ".[*^$\\".contains(c) { format!("\\{c}") } else { c.to_string() };
    let pattern = format!("iff:.*{}", interface.name.chars().map(plain).collect::<String>());
    let see = Fix::look(
        "see which program it is, and what it lacks",
        [sh!("grep -l {} /proc/[0-9]*/fdinfo/* 2>/dev/null", pattern), sh!("top -b -n 1 | head -20")],
    );
    let longer = Fix::new(
        "let longer bursts wait",
        "packets that wait longer arrive later",
        [sh!("ip link set dev {} txqueuelen {}", dev, proposed)],
        [sh!("ip link set dev {} txqueuelen {}", dev, now)],
    );
    if proposed > now { vec![see, longer] } else { vec![see] }
}

/// A program that has a tun interface and never reads. It ends by itself if nothing else ends it.
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
        setup: vec![Step::initiator("ip route replace 198.19.7.0/24 via 198.18.0.1")],
        traffic: vec![
            Traffic::Script(LabHost::Gateway, DEAF.into()),
            Traffic::udp("198.19.7.9:7000", 100, 1000, 4),
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
            evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Seen);
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
    fn a_full_ring_is_found_by_either_source() {
        let found = examine(&EvidenceView::of(&host("tun", 70, Some("FULL_RING"))));
        assert_eq!((found[0].confidence, found[0].claims.len()), (Confidence::High, 1));
        assert_eq!(found[0].fixes[1].commands, ["ip link set dev vnet7 txqueuelen 4000"]);
        let found = examine(&EvidenceView::of(&host("tun", 70, None)));
        assert_eq!(
            found[0].claims,
            [Claim::Counter { namespace: 5, counter: "tap.vnet7".into(), packets: 70 }]
        );
    }

    #[test]
    fn filters_of_the_program_and_other_interfaces_are_not_its() {
        assert_eq!(examine(&EvidenceView::of(&host("tun", 70, Some("TAP_TXFILTER")))), []);
        assert_eq!(examine(&EvidenceView::of(&host("veth", 70, None))), []);
    }
}
