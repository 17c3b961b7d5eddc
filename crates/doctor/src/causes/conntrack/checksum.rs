//! Damaged packets count as INVALID.

use super::packet::has_bad_checksum;
use super::refused::{Refused, fact, sampled};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{DropGroup, EvidenceSource, Interface, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::frames as whole;
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-checksum",
    title: "packets with a wrong checksum count as INVALID",
    about: "Connection tracking checks the checksums of TCP, UDP and ICMP in packets that come in (nf_conntrack_checksum), \
            and marks a packet INVALID if its checksum is wrong. Such packets are not translated, and a rule for INVALID \
            packets drops them. If it happens all the time, the packets are seldom damaged: a card, a driver or a tunnel \
            before this host should have written the checksum and did not.",
    must: &["conntrack `invalid` grows", "packets dropped in netfilter have a wrong checksum"],
    should: &["only packets of one interface or one sender"],
    must_not: &["the checksum is right, or left to the card"],
    lookalikes: &[("conntrack-invalid-dropped", "there the checksums are right")],
    remedy: "Switch off the checksum offload of the sender, or update its driver. nf_conntrack_checksum=0 only lets the \
             packets through to receivers that drop them.",
    sources: &[
        "net/netfilter/nf_conntrack_proto_udp.c: udp_error",
        "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_checksum",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

const CHECKSUM: &str = "net.netfilter.nf_conntrack_checksum";

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let invalid = Refused::of(namespace).invalid;
    if invalid == 0 || namespace.setting(CHECKSUM) == Some(0) {
        return None;
    }
    let of_netfilter = |d: &DropGroup| d.reason == "NETFILTER_DROP";
    let damaged = |s: &crate::evidence::Sample| has_bad_checksum(s) == Some(true);
    let (claims, lost) = sampled(view, namespace, of_netfilter, damaged);
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    // Whether a rule asks for the state is in another evidence source; that the checksum is wrong was computed.
    finding.confidence = if lost <= 2 * invalid { Confidence::High } else { Confidence::Medium };
    finding.claims = claims;
    finding.summary = format!("{lost} packets were dropped as INVALID: their checksums are wrong.");
    fact(&mut finding, namespace, "invalid", format!("{invalid} packets were INVALID"));
    let drops = view.evidence.drops.iter().filter(|d| d.namespace == namespace.id && of_netfilter(d));
    let sample = drops.flat_map(|d| &d.samples).find(|s| damaged(s))?;
    let interface = namespace.interface(sample.came_in);
    if let Some(t) = sample.tuple() {
        let through = interface.map_or_else(String::new, |i| format!(", in through {}", i.name));
        let text = format!("{} to {} port {}{through}", t.source, t.destination, t.destination_port);
        finding.seen(EvidenceSource::Drops, text);
    }
    finding.not.push("not a checksum left to the card: that would hold the sum of the pseudo header".into());
    finding.fixes = fixes(view, namespace, interface);
    Some(finding)
}

fn fixes(view: &EvidenceView<'_>, namespace: &Namespace, interface: Option<&Interface>) -> Vec<Fix> {
    let mut fixes = vec![
        Fix::new(
            "let the sender compute its checksums (on the sender)",
            "more CPU on the sender",
            [sh!("ethtool -K SENDING_INTERFACE tx off")],
            [sh!("ethtool -K SENDING_INTERFACE tx on")],
        )
        .elsewhere(),
    ];
    if let Some(name) = interface.map(|i| &i.name) {
        fixes.push(Fix::new(
            "check whether this host's card verifies them wrongly",
            "more CPU for every packet that comes in",
            [sh!("ethtool -K {} rx off", name)],
            [sh!("ethtool -K {} rx on", name)],
        ));
    }
    let setting =
        relief::setting(view, namespace, CHECKSUM, 0, "packets count as INVALID for their checksums");
    fixes.extend(setting.map(|s| {
        let title = "let them through (to find out whether the receiver takes them)";
        let risk = "damaged packets are tracked and translated; receivers drop them";
        // It hides the fault and mends nothing.
        Fix::set(title, risk, vec![s]).not_tuned()
    }));
    fixes
}

fn damaged(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    use super::packet::frames;
    let to = ([198, 19, 0, 2].into(), 7000);
    (0..20)
        .map(|n| whole::damaged(frames::udp((own, peer), ([198, 18, 0, 2].into(), 42_000 + n), to)))
        .collect()
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::gateway(
            "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; }; \
             add rule inet f c ct state invalid counter drop'",
        )],
        traffic: vec![
            Traffic::udp_server(7000, UdpMode::Sink),
            Traffic::Frames { from: LabHost::Initiator, rate: 200, frames: damaged },
        ],
        also: vec!["conntrack-invalid-dropped"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::packet::frames;
    use super::super::packet::tests::sampled as sample_of;
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::Evidence;
    use crate::finding::Claim;

    fn seen(invalid: u64, frame: Vec<u8>) -> Evidence {
        let drops = DropGroup {
            namespace: 1,
            reason: "NETFILTER_DROP".into(),
            location: "nft_do_chain".into(),
            packets: 300,
            samples: vec![sample_of(&frame)],
            ..DropGroup::default()
        };
        evidence(counted(&[("invalid", invalid)]), vec![drops])
    }

    #[test]
    fn wrong_checksums_are_it_and_right_ones_are_not() {
        let good = frames::udp(([2; 6], [4; 6]), ([198, 18, 0, 2].into(), 1), ([198, 19, 0, 2].into(), 2));
        let bad = whole::damaged(good.clone());
        let evidence = seen(300, bad.clone());
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 300 }]);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(300, good))), []);
        // Connection tracking had nothing against it.
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(0, bad))), []);
    }
}
