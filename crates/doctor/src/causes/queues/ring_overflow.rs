//! A card has no room for what comes in.

use super::lost::on;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "ring-overflow",
    title: "a receive ring overflows",
    about: "A network card writes packets into a ring in memory, from which the kernel takes them. When the kernel comes \
            too late, because its core is busy or bursts are long, the ring is full and the card drops packets. The kernel \
            never sees them: only the card's own counters show them, and no rule, drop event or IP counter does.\n\n\
            A veth pair whose receiving end has an XDP program, or GRO on while the sending end has TSO off, also has a \
            ring. Its size is fixed to 256 packets. The sending end counts packets that do not fit as tx_dropped.",
    must: &[
        "rx_missed_errors, rx_fifo_errors or rx_over_errors of a card grow, or its own counters of missing buffers",
        "or, of a veth pair: tx_dropped of one end, while the other has GRO on or an XDP program",
    ],
    should: &["the ring is smaller than it could be", "the core that serves it is full"],
    lookalikes: &[
        ("softnet-backlog", "the kernel's own queue: CPU_BACKLOG, with an event"),
        ("xdp-drop", "the driver's xdp_drop grows"),
        ("hot-core", "the core that serves the ring is full while the others have little to do with packets"),
    ],
    remedy: "Make the ring larger (`ethtool -G`), use more queues (`ethtool -L`), and look at the core that serves it: a larger \
             ring helps with bursts, not with a core that is full all the time.",
    sources: &[
        "Documentation/networking/statistics.rst",
        "include/uapi/linux/if_link.h: struct rtnl_link_stats64",
    ],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

/// Counters that the kernel asks drivers to use for it.
const STANDARD: &[&str] = &["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];

/// Names that drivers have for it (mlx5, i40e and ixgbe, bnxt, ena, gve, vmxnet3, virtio_net, e1000e).
const OWN: &[&str] = &[
    "rx_out_of_buffer",
    "rx_no_buffer_count",
    "rx_no_dma_resources",
    "rx_missed",
    "rx_no_buf",
    "rx_buf_alloc_fail",
    "rx_overruns",
    "rx_ring_full",
    "rx_discards",
    "rx_drops",
    "bw_in_allowance_exceeded",
    "bw_out_allowance_exceeded",
    "pps_allowance_exceeded",
    "conntrack_allowance_exceeded",
    "linklocal_allowance_exceeded",
];

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let all = view.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    all.filter_map(|(namespace, interface)| match interface.kind.as_str() {
        "" if interface.name != "lo" => on_card(view, namespace, interface),
        "veth" => on_veth(view, namespace, interface),
        _ => None,
    })
    .collect()
}

/// The receiving end of a veth pair whose ring was full.
fn on_veth(view: &EvidenceView<'_>, namespace: &Namespace, interface: &Interface) -> Option<Finding> {
    let has_ring = interface.features.get("rx-gro") == Some(&true) || interface.xdp.is_some();
    let (index, there) = interface.peer?;
    let sender = view.evidence.namespace(there?)?.interface(index)?;
    let dropped = sender.grew("tx_dropped");
    if !has_ring || dropped == 0 || !interface.up {
        return None;
    }
    // The packet belongs to the receiving end already when it has no room.
    let taken = on(view, namespace, interface, |d| {
        matches!(d.reason.as_str(), "NOT_SPECIFIED" | "UNKNOWN" | "FULL_RING")
            && VETH.contains(&d.location.as_str())
    });
    if view.sees_drops() && taken.is_empty() {
        return None;
    }
    let lost = if taken.is_empty() { dropped } else { taken.packets };
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.object.clone_from(&interface.name);
    finding.claims = if taken.is_empty() {
        vec![view.counted(namespace, &format!("ring.{}", interface.name), dropped)]
    } else {
        finding.confidence = Confidence::High;
        finding
            .seen(EvidenceSource::Drops, format!("{lost} packets dropped in {}()", taken.groups[0].location));
        taken.claims
    };
    finding.summary =
        format!("The ring of the veth end {} was full, and {lost} packets were dropped.", interface.name);
    let text = format!("tx_dropped of the other end, {}, grew by {dropped}", sender.name);
    finding.counter(EvidenceSource::Interfaces, "tx_dropped", sender.counters["tx_dropped"], text);
    let by = if interface.xdp.is_some() { "an XDP program" } else { "GRO" };
    finding.seen(
        EvidenceSource::Interfaces,
        format!("{} has a ring of 256 packets because of {by}", interface.name),
    );
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    if interface.xdp.is_none() {
        let dev = &interface.name;
        finding.fixes.push(Fix::new(
            "do without the ring: without GRO its packets wait in the backlog of a core, which is longer",
            "TCP that is forwarded as single packets costs more CPU",
            [sh!("ethtool -K {} gro off", dev)],
            [sh!("ethtool -K {} gro on", dev)],
        ));
    }
    Some(finding)
}

/// Functions that let go of what does not fit into the ring of a veth.
const VETH: &[&str] =
    &["veth_xmit", "dev_kfree_skb_any_reason", "__dev_kfree_skb_any", "dev_kfree_skb_irq_reason"];

/// Names end with, or begin with and go on by queue, what is meant.
fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| name.ends_with(own)) && !name.contains("xdp")
}

fn on_card(view: &EvidenceView<'_>, namespace: &Namespace, card: &Interface) -> Option<Finding> {
    let standard: u64 = STANDARD.iter().map(|c| card.grew(c)).max().unwrap_or(0);
    let own: Vec<_> = card.driver_counters.iter().filter(|(n, d)| is_own(n) && d.change() > 0).collect();
    let is_queue = |name: &str| name.bytes().any(|b| b.is_ascii_digit());
    let sum = |queues: bool| {
        own.iter().filter(|(n, _)| is_queue(n) == queues).map(|(_, d)| d.change()).sum::<u64>()
    };
    let lost = standard.max(sum(true)).max(sum(false));
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.object = card.name.clone();
    finding.claims = vec![view.counted(namespace, &format!("ring.{}", card.name), lost)];
    for name in STANDARD.iter().filter(|c| card.grew(c) > 0) {
        let text = format!("{name} of {} grew by {}", card.name, card.grew(name));
        finding.counter(EvidenceSource::Interfaces, name, card.counters[*name], text);
    }
    for (name, delta) in &own {
        let text = format!("{name} of {} grew by {}", card.name, delta.change());
        finding.counter(EvidenceSource::Driver, name, **delta, text);
    }
    let allowance = own.iter().find(|(n, _)| n.ends_with("allowance_exceeded"));
    if let Some((name, _)) = allowance {
        finding.summary = format!(
            "The cloud's limit of this kind of machine was exceeded ({name}), and {lost} packets of {} were delayed or \
             dropped before they came here.",
            card.name
        );
        finding.confidence = Confidence::High;
        return Some(finding);
    }
    finding.summary =
        format!("The receive ring of {} was full, and the card dropped {lost} packets.", card.name);
    if standard > 0 && !own.is_empty() {
        finding.confidence = Confidence::High;
    }
    finding.missing = view.missing(namespace, &[EvidenceSource::Driver, EvidenceSource::Cores]);
    finding.fixes = fixes(card);
    Some(finding)
}

fn fixes(card: &Interface) -> Vec<Fix> {
    let dev = &card.name;
    let mut fixes = Vec::new();
    if let Some((now, most)) = card.rx_ring.filter(|(now, most)| most > now) {
        let proposed = now.saturating_mul(4).min(most);
        fixes.push(Fix::new(
            "make the ring larger",
            "most drivers stop the link for a moment; a long ring delays what waits in it",
            [sh!("ethtool -G {} rx {}", dev, proposed)],
            [sh!("ethtool -G {} rx {}", dev, now)],
        ));
    }
    if let Some((now, most)) = card.channels.filter(|(now, most)| most > now) {
        fixes.push(Fix::new(
            "use more queues, so that more cores take packets off",
            "most drivers stop the link for a moment",
            [sh!("ethtool -L {} combined {}", dev, most)],
            [sh!("ethtool -L {} combined {}", dev, now)],
        ));
    }
    fixes
}

fn recipes() -> Vec<Recipe> {
    // The gateway takes packets out of its ring in a thread, and is slow about it.
    let thread = "ethtool -K inside gro on\n\
                  unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 1 > /sys/class/net/inside/threaded'\n";
    let setup = vec![
        // A sender that does not leave segmentation to the other end is what GRO is for.
        Step::initiator("ethtool -K eth0 tso off"),
        Step::gateway(format!("{thread}{}", super::hot_core::SLOW_RULES)),
    ];
    vec![Recipe {
        name: "veth",
        setup,
        traffic: Traffic::udp_across(100, 8000, 16),
        needs: vec!["ethtool", "nft", "unshare"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Counters, Delta, Evidence};
    use crate::finding::Claim;

    fn counters(list: &[(&str, u64)]) -> Counters {
        list.iter().map(|(n, v)| ((*n).to_owned(), Delta { before: 2, after: 2 + v })).collect()
    }

    fn host(kind: &str, standard: &[(&str, u64)], own: &[(&str, u64)]) -> Evidence {
        let interface = Interface {
            name: "eth0".into(),
            kind: kind.into(),
            counters: counters(standard),
            driver_counters: counters(own),
            rx_ring: Some((256, 4096)),
            ..Interface::default()
        };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.namespaces.push(Namespace { id: 5, interfaces: vec![interface], ..Namespace::default() });
        evidence
    }

    #[test]
    fn a_card_that_missed_packets_gets_a_larger_ring() {
        let evidence =
            host("", &[("rx_packets", 9000), ("rx_missed_errors", 300)], &[("rx_out_of_buffer", 300)]);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(
            found[0].claims,
            [Claim::Counter { namespace: 5, counter: "ring.eth0".into(), packets: 300 }]
        );
        assert_eq!((found[0].confidence, found[0].fixes.len()), (Confidence::High, 1));
        assert_eq!(found[0].fixes[0].commands, ["ethtool -G eth0 rx 1024"]);
    }

    #[test]
    fn a_limit_of_the_cloud_has_no_ring_to_enlarge() {
        let found = examine(&EvidenceView::of(&host("", &[], &[("pps_allowance_exceeded", 50)])));
        assert!(found[0].summary.contains("pps_allowance_exceeded") && found[0].fixes.is_empty());
    }

    #[test]
    fn a_veth_with_a_ring_that_overflows_is_seen_from_both_ends() {
        let mut evidence = host("veth", &[("rx_packets", 500)], &[]);
        let sender = Interface {
            index: 7,
            kind: "veth".into(),
            counters: counters(&[("tx_dropped", 90)]),
            peer: Some((2, Some(5))),
            ..Interface::default()
        };
        evidence.namespaces.push(Namespace { id: 6, interfaces: vec![sender], ..Namespace::default() });
        let receiver = &mut evidence.namespaces[0].interfaces[0];
        (receiver.index, receiver.up, receiver.peer) = (2, true, Some((7, Some(6))));
        receiver.features = [("rx-gro".to_owned(), false)].into();
        assert_eq!(examine(&EvidenceView::of(&evidence)), [], "without GRO there is no ring");
        evidence.namespaces[0].interfaces[0].features = [("rx-gro".to_owned(), true)].into();
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(
            found[0].claims,
            [Claim::Counter { namespace: 5, counter: "ring.eth0".into(), packets: 90 }]
        );
        assert_eq!(found[0].fixes[0].commands, ["ethtool -K eth0 gro off"]);
    }

    #[test]
    fn what_is_virtual_or_dropped_elsewhere_is_not_its() {
        assert_eq!(examine(&EvidenceView::of(&host("veth", &[("rx_missed_errors", 5)], &[]))), []);
        assert_eq!(examine(&EvidenceView::of(&host("", &[("rx_dropped", 5)], &[("rx0_xdp_drops", 5)]))), []);
    }
}
