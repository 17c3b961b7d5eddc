//! Packets come in with wrong checksums.

use std::net::Ipv4Addr;

use weir_wire::{Udp, protocol};

use super::lost::per_second;
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::frames::{damaged, header, ipv4};
use crate::recipe::{LabHost, Recipe, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "checksum-offload",
    title: "packets with wrong checksums",
    about: "The kernel drops a packet whose checksum does not match its content. On a clean network that happens a few \
            times in a billion. If it happens all the time, something along the path changes packets without correcting \
            the checksum, or leaves it to a card that does not do it: checksum offload of a virtual or tunnel interface \
            whose packets leave by another way (a bridge to a tap, a user-space network, VXLAN over some drivers), a \
            broken card, or a program that rewrites addresses.",
    must: &[
        "Udp.InCsumErrors, Tcp.InCsumErrors or IcmpMsg checksum errors grow, or packets dropped as UDP_CSUM, TCP_CSUM, IP_CSUM",
    ],
    should: &["all of them come from one neighbour or through one interface"],
    must_not: &["Udp.InErrors alone: it also counts full buffers"],
    lookalikes: &[("udp-buffer-full", "Udp.InErrors grows with RcvbufErrors, not with InCsumErrors")],
    remedy: "Switch checksum offload off where the packets are made, one interface after the other, and see which one stops it; \
             then update that driver or hypervisor. If they come from outside, it is the sender or a device on the way.",
    sources: &[
        "net/ipv4/udp.c: udp_queue_rcv_one_skb",
        "net/ipv4/tcp_ipv4.c: tcp_v4_rcv",
        "Documentation/networking/checksum-offloads.rst",
    ],
    recipes,
    ..Cause::of(Group::Queues, |view| view.each(in_namespace))
};

/// Reasons, and the counters that grow with them.
const REASONS: &[&str] = &["UDP_CSUM", "TCP_CSUM", "ICMP_CSUM", "IP_CSUM", "SKB_CSUM"];
const COUNTERS: &[&str] = &[
    "udp.InCsumErrors",
    "udplite.InCsumErrors",
    "udp6.InCsumErrors",
    "udplite6.InCsumErrors",
    "tcp.InCsumErrors",
    "icmp.InCsumErrors",
    "icmp6.InCsumErrors",
    "ipext.InCsumErrors",
];

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, |d| REASONS.contains(&d.reason.as_str()));
    let counted: u64 = COUNTERS.iter().map(|c| namespace.grew(c)).sum();
    let lost = taken.packets.max(counted);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = view.claims(namespace, &taken, "checksums", counted);
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Counters]);
    let interface = busiest(namespace, &taken);
    finding.object = interface.map(|i| i.name.clone()).unwrap_or_default();
    let through = interface.map(|i| format!(" through {}", i.name)).unwrap_or_default();
    finding.summary = format!(
        "{lost} packets came in{through} with a wrong checksum and were dropped ({:.1} a second).",
        per_second(view, lost)
    );
    for group in &taken.groups {
        finding.seen(EvidenceSource::Drops, format!("{} dropped as {}", group.packets, group.reason));
    }
    for name in COUNTERS.iter().filter(|c| namespace.grew(c) > 0) {
        let text = format!("{name} grew by {}", namespace.grew(name));
        finding.counter(EvidenceSource::Counters, name, namespace.counters[*name], text);
    }
    if !taken.is_empty() && counted > 0 {
        finding.confidence = Confidence::High;
    }
    finding.evidence.extend(taken.example_as_fact());
    finding.fixes = interface.map(fixes).unwrap_or_default();
    Some(finding)
}

/// The interface that most of them came in through.
fn busiest<'a>(namespace: &'a Namespace, taken: &Taken<'_>) -> Option<&'a Interface> {
    let group = taken.groups.iter().max_by_key(|g| g.packets)?;
    // A socket's packet may have lost its device; the samples still know where it came in.
    let came_in = group.samples.iter().map(|s| s.came_in).find(|i| *i != 0);
    namespace.interface(group.interface).or_else(|| namespace.interface(came_in?))
}

fn fixes(interface: &Interface) -> Vec<Fix> {
    let dev = &interface.name;
    let mut fixes = Vec::new();
    if interface.features.get("rx-checksum") == Some(&true) && interface.kind.is_empty() {
        fixes.push(Fix::new(
            "let the kernel check instead of the card",
            "costs CPU for every packet, and GRO stops merging",
            [sh!("ethtool -K {} rx off", dev)],
            [sh!("ethtool -K {} rx on", dev)],
        ));
    }
    fixes.push(
        Fix::new(
            "on the host that sends them: write checksums in software",
            "costs CPU there, and segmentation offload goes with it",
            [sh!("ethtool -K INTERFACE tx off")],
            [sh!("ethtool -K INTERFACE tx on")],
        )
        .elsewhere(),
    );
    fixes
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Responder,
        traffic: [
            Traffic::udp_across(100, 500, 4),
            vec![Traffic::Frames { from: LabHost::Initiator, rate: 300, frames: broken }],
        ]
        .concat(),
        ..Recipe::default()
    }]
}

/// A UDP datagram that was changed after its checksum was made.
fn broken(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    let (source, destination) = (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 19, 0, 2));
    let ip = header(source, destination, protocol::UDP, Udp::LENGTH + 64);
    let frame = ipv4(own, peer, ip, |datagram| {
        Udp::seal((source.into(), 40_000), (destination.into(), 7000), datagram)
    });
    vec![damaged(frame)]
}

#[cfg(test)]
mod tests {
    use weir_wire::{Ethernet, Ipv4};

    use super::*;
    use crate::evidence::{Delta, DropGroup, Evidence, Sample};

    fn host(counters: &[(&str, u64)], dropped: u64) -> Evidence {
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        let features = [("rx-checksum".to_owned(), true)].into();
        let interface = Interface { index: 2, name: "eth0".into(), features, ..Interface::default() };
        let counters =
            counters.iter().map(|(n, v)| ((*n).to_owned(), Delta { before: 1, after: 1 + v })).collect();
        evidence.namespaces.push(Namespace {
            id: 5,
            counters,
            interfaces: vec![interface],
            ..Namespace::default()
        });
        if dropped > 0 {
            let samples = vec![Sample { came_in: 2, ..Sample::default() }];
            evidence.drops.push(DropGroup {
                namespace: 5,
                reason: "UDP_CSUM".into(),
                packets: dropped,
                samples,
                ..DropGroup::default()
            });
        }
        evidence
    }

    #[test]
    fn the_frames_of_the_recipe_have_a_wrong_checksum_and_nothing_else_wrong() {
        let frame = &broken([2; 6], [4; 6])[0];
        let packet = weir_wire::Datagram::in_frame(frame).unwrap().unwrap();
        assert!(Ipv4::is_sound(&frame[Ethernet::LENGTH..]));
        assert!(!Udp::is_sound(packet.source, packet.destination, packet.payload));
        let mut mended = packet.payload.to_vec();
        *mended.last_mut().unwrap() ^= 0xff;
        assert!(Udp::is_sound(packet.source, packet.destination, &mended));
    }

    #[test]
    fn the_interface_is_named_and_both_sources_make_it_sure() {
        let found =
            (CAUSE.examine)(&EvidenceView::of(&host(&[("udp.InCsumErrors", 80), ("udp.InErrors", 80)], 80)));
        assert_eq!((found[0].object.as_str(), found[0].confidence), ("eth0", Confidence::High));
        assert_eq!(found[0].fixes[0].commands, ["ethtool -K eth0 rx off"]);
    }

    #[test]
    fn errors_of_another_kind_are_not_its() {
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&host(&[("udp.InErrors", 80), ("udp.RcvbufErrors", 80)], 0))),
            []
        );
        let counted = host(&[("tcp.InCsumErrors", 7)], 0);
        let found = (CAUSE.examine)(&EvidenceView::of(&counted));
        assert!(matches!(found[0].claims[..], [crate::finding::Claim::Counter { packets: 7, .. }]));
    }
}
