//! The two directions of a connection are tracked in different zones.

use weir_text::order;

use super::refused::sampled;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::nft;
use crate::command::sh;
use crate::evidence::{Connections, DropGroup, EvidenceSource, Namespace, Sample, Tuple};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-zone-split",
    title: "connections split between conntrack zones",
    about: "Zones are separate tables of connections on one host, so that networks with the same addresses do not meet. A rule \
            puts packets into a zone (`ct zone set`). When only one direction of a connection gets the zone, its answers are \
            looked for in another one and not found: they count as new or INVALID, are not translated back, and stateful rules \
            refuse them.",
    must: &[
        "two entries that are the two directions of one connection, in different zones, neither of them answered",
        "or: packets that were refused belong to a connection of another zone",
    ],
    should: &["the refused packets are such answers"],
    must_not: &["both directions are in one zone"],
    lookalikes: &[
        ("conntrack-entry-lost", "there no zone has the connection"),
        ("conntrack-invalid-reset", "there the connection is in the zone that was looked in"),
    ],
    remedy: "Give both directions the same zone: a rule for each interface of the pair.",
    sources: &["net/netfilter/nf_conntrack_core.c: nf_ct_zone_id", "nft(8): CT STATEMENT, zone"],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let table = namespace.connections.as_ref()?;
    let strangers = strangers(table);
    if table.split.is_empty() && strangers.is_empty() {
        return None;
    }
    let halves = order::set(table.split.iter().map(|(t, ..)| *t));
    let refused = |d: &DropGroup| matches!(d.reason.as_str(), "NO_SOCKET" | "NETFILTER_DROP");
    let mine = |s: &Sample| {
        s.tuple().is_some_and(|t| {
            let half = halves.iter().any(|h| is_alike(h, &t));
            half || strangers.iter().any(|(packet, _)| *packet == t)
        })
    };
    let (claims, lost) = sampled(view, namespace, refused, mine);
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    if lost == 0 {
        // Halves that cause no loss: without translation and stateful rules they do no harm.
        finding.severity = Severity::Note;
    }
    finding.confidence = if lost > 0 { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    finding.claims = claims;
    let split = table.split.iter().flat_map(|(_, a, b)| [*a, *b]);
    let zones = order::set(split.chain(strangers.iter().flat_map(|(_, zone)| [0, *zone])));
    let list = zones.iter().map(u16::to_string).collect::<Vec<_>>().join(" and ");
    finding.object = format!("zones {list}");
    finding.summary = format!(
        "Connections are split between zones {list}: their answers are tracked apart from them, and {lost} packets were refused."
    );
    for (t, first, second) in table.split.iter().take(3) {
        let text = format!(
            "{}:{} to {}:{} is an entry of zone {first}, and its other direction one of zone {second}",
            t.source, t.source_port, t.destination, t.destination_port
        );
        finding.seen(EvidenceSource::Connections, text);
    }
    for (t, zone) in strangers.iter().take(3) {
        let text = format!(
            "{}:{} to {}:{} was refused; its connection is in zone {zone}",
            t.source, t.source_port, t.destination, t.destination_port
        );
        finding.seen(EvidenceSource::Connections, text);
    }
    finding.not.push("not a connection that was lost: another zone has it".into());
    finding.fixes.push(same_zone(zones.iter().copied().find(|z| *z != 0)?));
    Some(finding)
}

/// Packets that were refused, and the zone that has their connection. Those of the default zone were found where they were
/// looked for.
fn strangers(table: &Connections) -> Vec<(Tuple, u16)> {
    let of_zone = table.joined.iter().filter(|(_, entry)| entry.zone != 0 && !entry.replied);
    of_zone.filter(|(t, entry)| entry.example_reply == Some(*t)).map(|(t, entry)| (*t, entry.zone)).collect()
}

/// The same answer, whichever client's port it goes to.
fn is_alike(half: &Tuple, packet: &Tuple) -> bool {
    let (h, p) = (half, packet);
    (h.source, h.destination, h.protocol, h.source_port)
        == (p.source, p.destination, p.protocol, p.source_port)
}

fn same_zone(zone: u16) -> Fix {
    Fix::new(
        "give both directions the same zone",
        "open connections are not found in the new zone and get new entries",
        [
            sh!("nft list ruleset | grep -n 'ct .*zone set'"),
            nft!("add rule FAMILY TABLE CHAIN iifname OTHER_INTERFACE ct zone set {}", zone),
        ],
        [nft!("delete rule FAMILY TABLE CHAIN handle HANDLE")],
    )
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::gateway(
            "nft 'add table ip z; add chain ip z pre { type filter hook prerouting priority raw; }; \
             add rule ip z pre iifname inside ct zone set 5; \
             add chain ip z post { type nat hook postrouting priority srcnat; }; \
             add rule ip z post oifname outside masquerade'",
        )],
        traffic: Traffic::datagrams(7000, UdpMode::Echo, 64, 200, 16),
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::invalid_reset::tests::{OUTSIDE, SERVER, entry, no_socket, tuple};
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::{ConnectionGroup, Evidence};
    use crate::finding::Claim;

    fn seen(table: Connections) -> Evidence {
        let mut namespace = counted(&[]);
        namespace.connections = Some(table);
        evidence(namespace, vec![no_socket(50, weir_wire::Tcp::SYN | weir_wire::Tcp::ACK)])
    }

    #[test]
    fn refused_answers_of_a_split_connection_are_it() {
        // The half of another client: same server, same outside address.
        let split = vec![(tuple(SERVER, (OUTSIDE.0, 5000)), 0, 5)];
        let evidence = seen(Connections { split, ..Connections::default() });
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 50 }]);
        assert_eq!((finding.object.as_str(), finding.confidence), ("zones 0 and 5", Confidence::High));
    }

    #[test]
    fn a_refused_packet_whose_connection_is_in_another_zone_is_it() {
        let other = ConnectionGroup { zone: 7, replied: false, ..entry() };
        let joined = vec![(tuple(SERVER, OUTSIDE), other)];
        let evidence = seen(Connections { joined, ..Connections::default() });
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence))[0].claims.len(), 1);
    }

    #[test]
    fn halves_that_nobody_misses_are_a_note_and_one_zone_is_nothing() {
        let elsewhere = (std::net::Ipv4Addr::new(198, 19, 0, 99), 80);
        let split = vec![(tuple(elsewhere, OUTSIDE), 0, 5)];
        let evidence = seen(Connections { split, ..Connections::default() });
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence))[0].severity, Severity::Note);
        let joined = vec![(tuple(SERVER, OUTSIDE), entry())];
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&seen(Connections { joined, ..Connections::default() }))),
            []
        );
    }
}
