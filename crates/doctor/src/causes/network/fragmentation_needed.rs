//! Packets that are too long for the next link, and may not be cut.

use super::frames::{Datagram, frame};
use super::ways::{Loss, lookup, name_of};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::{self, nft, statement};
use crate::evidence::Namespace;
use crate::finding::{Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "fragmentation-needed",
    title: "packets too long for the next link",
    about: "A packet that is longer than the next link's MTU and must not be fragmented (nearly all TCP, all IPv6) is \
            dropped, and an ICMP error tells the sender which length fits. This is normal path MTU discovery: each sender \
            loses a packet or a few, once in ten minutes. If the loss continues, senders do not react to the error: it \
            does not reach them, or a program ignores it.",
    must: &["packets dropped as PKT_TOO_BIG, or FragFails grows"],
    should: &["ICMP errors are sent as often"],
    must_not: &["the ICMP errors are dropped here"],
    lookalikes: &[
        ("pmtu-blackhole-own", "the errors for the sender are dropped on this host"),
        ("mtu-mismatch", "the two ends of one link disagree: no error is sent"),
    ],
    yields_to: &["pmtu-blackhole-own"],
    remedy: "A few are normal. If the loss continues: see that ICMP `fragmentation needed` (type 3 code 4) and ICMPv6 \
             `packet too big` (type 2) get through to the senders, in their firewalls, too; or clamp TCP's segment size to \
             the path MTU on this host.",
    sources: &["RFC 1191", "RFC 8201", "net/ipv4/ip_forward.c", "net/ipv6/ip6_output.c: ip6_forward"],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// Packets per second below which it is path MTU discovery as it should be: a window of ten segments for each new destination
/// (RFC 6928) once in ten minutes.
const USUAL_PER_SECOND: f64 = 10.0;

/// Takes the drops of packets that are too long, and their counters.
pub(super) fn too_long<'a>(view: &EvidenceView<'a>, namespace: &Namespace) -> Loss<'a> {
    let taken = view.take(namespace, |d| {
        d.reason == "PKT_TOO_BIG"
            && !matches!(d.location.as_str(), "__dev_forward_skb2" | "__dev_forward_skb")
    });
    Loss::of(view, namespace, taken, &["ip.FragFails", "ip6.FragFails"])
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let loss = too_long(view, namespace);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    if (loss.packets as f64) < USUAL_PER_SECOND * view.evidence.window_s {
        finding.severity = Severity::Note;
    }
    let sample = loss.taken.samples().find(|s| s.tuple().is_some());
    let leaves = sample.and_then(|s| lookup(namespace, s)).and_then(|l| namespace.interface(l.interface));
    let link = leaves
        .map_or("the next link".to_owned(), |i| format!("{} (MTU {})", name_of(namespace, i.index), i.mtu));
    let words = sample.and_then(|s| Some((s.tuple()?, s.length)));
    let words = words.map_or(String::new(), |(t, length)| {
        format!(", such as {length} bytes from {} to {}", t.source, t.destination)
    });
    finding.object = leaves.map_or(String::new(), |i| i.name.clone());
    let heed = match finding.severity {
        Severity::Note => "the senders get the error, as path MTU discovery intends",
        _ => "the senders get the error, and still send packets that are too long",
    };
    finding.summary = format!("{} packets{words} were too long for {link}; {heed}.", loss.packets);
    finding.fixes.push(clamp(leaves.map(|i| i.name.as_str())));
    Some(finding)
}

/// TCP that crosses this host never sends more than fits.
pub(super) fn clamp(interface: Option<&str>) -> Fix {
    let out = interface.map_or_else(|| statement!(""), |i| statement!("oifname {} ", nft::interface(i)));
    Fix::new(
        "clamp TCP's segment size to the path MTU, for connections that cross this host",
        "for TCP only, and for new connections only",
        [
            nft!("add table inet weir_mss"),
            nft!("add chain inet weir_mss forward { type filter hook forward priority -150; }"),
            nft!("add rule inet weir_mss forward {}tcp flags syn tcp option maxseg size set rt mtu", out),
        ],
        [nft!("delete table inet weir_mss")],
    )
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        name: "unheeded",
        setup: vec![
            Step::gateway("ip link set outside mtu 1280"),
            Step::responder("ip link set eth0 mtu 1280"),
        ],
        // A sender that does not listen.
        traffic: vec![Traffic::Frames {
            from: LabHost::Initiator,
            rate: 300,
            frames: |own, peer| {
                let whole = Datagram::whole([198, 18, 0, 2], [198, 19, 0, 2], 0, 1408);
                vec![frame(own, peer, Datagram { dont_fragment: true, ..whole })]
            },
        }],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, OUTSIDE, answer, answered, blind, count, datagram, drops, healthy};
    use super::*;
    use crate::evidence::{Evidence, RouteOutcome};

    fn case(packets: u64) -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("PKT_TOO_BIG", "ip_forward", packets, std::slice::from_ref(&sample)));
        answered(&mut evidence, answer(&sample, RouteOutcome::Forwarded, OUTSIDE));
        evidence.namespaces[0].interfaces[1].mtu = 1280;
        count(&mut evidence, "ip.FragFails", packets);
        evidence
    }

    #[test]
    fn discovery_is_a_note_and_more_is_not() {
        let few = (CAUSE.examine)(&EvidenceView::of(&case(12)));
        assert_eq!((few[0].severity, few[0].object.as_str()), (Severity::Note, "outside"));
        let many = (CAUSE.examine)(&EvidenceView::of(&case(3000)));
        assert_eq!(many[0].severity, Severity::Critical);
        assert!(many[0].summary.contains("outside (MTU 1280)"), "{}", many[0].summary);
        let counted = (CAUSE.examine)(&EvidenceView::of(&blind(case(3000))));
        assert_eq!(counted.len(), 1);
    }

    #[test]
    fn ends_of_a_link_that_disagree_are_another_cause() {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("PKT_TOO_BIG", "__dev_forward_skb2", 500, &[sample]));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
    }
}
