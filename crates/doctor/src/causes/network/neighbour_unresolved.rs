//! A host on the link does not answer when its Ethernet address is asked for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_text::order;

use super::ipv6;
use super::ways::{groups_as_facts, lookup, name_of};
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::{Words, sh};
use crate::evidence::{DropGroup, EvidenceSource, Namespace, Sample};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "neighbour-unresolved",
    title: "next hop does not answer (ARP, neighbour discovery)",
    about: "To send a packet to a host on its own link, the kernel needs the host's Ethernet address, and asks for it \
            three times, once a second. Packets to the host wait meanwhile, up to a limit; the kernel drops packets above \
            it. Without an answer it drops all waiting packets, the senders get `host unreachable`, and it begins again \
            with the next packet. The host is off, is on another VLAN, has another address, or filters ARP; or the route \
            names a next hop that does not exist.",
    must: &[
        "packets dropped in neigh_invalidate or as NEIGH_FAILED",
        "the neighbour is failed or incomplete",
    ],
    should: &["packets dropped as NEIGH_QUEUEFULL for the same neighbour", "ICMP host unreachable is sent"],
    must_not: &["it answered in the window", "the link has no carrier"],
    lookalikes: &[
        (
            "neighbour-queue-full",
            "it answers, but late, and more packets come meanwhile than the queue holds",
        ),
        ("neighbour-table-full", "the kernel cannot even ask: NEIGH_CREATEFAIL"),
        ("link-down", "no host on the link answers, because it has no carrier"),
    ],
    yields_to: &["link-down", "bridge-blocked"],
    remedy: "See whether the host is up and on this link. If the address is a next hop, see whether the route is right. \
             Packets to many unused addresses are a scan of the network: a blackhole route for the unused part, or a rule \
             on the edge, ends it.",
    sources: &[
        "net/core/neighbour.c: neigh_timer_handler, neigh_invalidate",
        "RFC 1122 section 2.3.2",
        "RFC 4861 section 7.2",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

/// Addresses on one interface from which on they are a scan, and no host that is missed.
const SCAN: usize = 16;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| in_namespace(view, n)).collect()
}

/// True for packets dropped because no answer came, or because no more packets may wait for an answer.
pub(super) fn waits_for_neighbour(drops: &DropGroup) -> bool {
    matches!(drops.reason.as_str(), "NEIGH_FAILED" | "NEIGH_QUEUEFULL" | "NEIGH_DEAD")
        || matches!(drops.location.as_str(), "neigh_invalidate" | "arp_error_report" | "ndisc_error_report")
}

/// Whom a packet was to be handed to.
pub(super) fn next_hop(namespace: &Namespace, sample: &Sample) -> Option<IpAddr> {
    let asked = lookup(namespace, sample).map(|l| l.next_hop.unwrap_or(l.destination));
    asked.or_else(|| Some(sample.tuple()?.destination))
}

/// Neighbours on an interface that do not answer.
pub(super) fn silent(namespace: &Namespace, interface: u32) -> BTreeSet<IpAddr> {
    let all = namespace.neighbours.iter().flat_map(|n| &n.unanswered);
    order::set(all.filter(|n| n.interface == interface && !n.answered).map(|n| n.address))
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Vec<Finding> {
    let by_interface = view.take(namespace, waits_for_neighbour).by_interface();
    if by_interface.is_empty() && !view.sees_drops() {
        return by_state(view, namespace).into_iter().collect();
    }
    by_interface.iter().filter_map(|(index, taken)| on_interface(view, namespace, *index, taken)).collect()
}

fn on_interface(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    index: u32,
    taken: &Taken<'_>,
) -> Option<Finding> {
    let gave_up: u64 = taken.groups.iter().filter(|g| g.reason != "NEIGH_QUEUEFULL").map(|g| g.packets).sum();
    let failed = gave_up > 0;
    // The kernel gives up hardly any packet for a neighbour that answers late: most are pushed out of the queue.
    let mostly = 2 * gave_up >= taken.packets;
    let silent = silent(namespace, index);
    let samples = || taken.samples();
    let mut wanted: Vec<IpAddr> = samples().filter_map(|s| next_hop(namespace, s)).collect();
    order::by_key(&mut wanted, |hop| *hop);
    let mut runs: Vec<_> = wanted.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect();
    order::by_key(&mut runs, |run| std::cmp::Reverse(run.0));
    let scan = runs.len() >= SCAN || silent.len() >= SCAN;
    let convicted = |hop: &IpAddr| silent.contains(hop);
    let hop = runs
        .iter()
        .map(|r| r.1)
        .find(convicted)
        .or_else(|| runs.first().map(|r| r.1).filter(|_| mostly || scan))?;
    let name = name_of(namespace, index);
    let mut finding = view.finding(CAUSE.id, namespace, taken.packets);
    finding.claims.clone_from(&taken.claims);
    finding.evidence = groups_as_facts(taken);
    finding.confidence = if convicted(&hop) && failed { Confidence::High } else { Confidence::Medium };
    finding.missing = view.missing(namespace, &[EvidenceSource::Neighbours]);
    describe_states(namespace, index, hop, &mut finding);
    if scan {
        // These hosts never existed, so no real traffic is lost.
        finding.severity = finding.severity.min(Severity::Note);
        finding.object = name.clone();
        finding.summary = format!(
            "{} packets went to {} addresses on {name} that no host has, such as {hop}: a scan, or an old list of \
             addresses.",
            taken.packets,
            silent.len().max(runs.len())
        );
        return Some(finding);
    }
    finding.object = hop.to_string();
    finding.summary = format!(
        "{hop} on {name} does not answer when its Ethernet address is asked for: {} packets for it were lost.",
        taken.packets
    );
    if let Some(tuple) = samples().find(|s| next_hop(namespace, s) == Some(hop)).and_then(Sample::tuple)
        && tuple.destination != hop
    {
        let text = format!("{hop} is the next hop of a route, such as to {}", tuple.destination);
        finding.seen(EvidenceSource::Routes, text);
    }
    if namespace.interface(index).is_some_and(|i| !i.addresses.is_empty() && !i.is_on_link(hop)) {
        finding.seen(EvidenceSource::Interfaces, format!("{hop} is in none of the networks of {name}"));
    }
    finding.fixes = fixes(hop, &name);
    Some(finding)
}

fn describe_states(namespace: &Namespace, index: u32, hop: IpAddr, finding: &mut Finding) {
    let Some(neighbours) = &namespace.neighbours else { return };
    let of_hop = neighbours.unanswered.iter().find(|n| (n.interface, n.address) == (index, hop));
    if let Some(neighbour) = of_hop {
        finding.seen(EvidenceSource::Neighbours, format!("neighbour {hop} is {}", neighbour.state));
    }
    let answering =
        ["reachable", "stale", "delay", "probe"].map(|s| neighbours.states.get(s).copied().unwrap_or(0));
    let text =
        format!("{} neighbours in this namespace have an Ethernet address", answering.iter().sum::<u64>());
    finding.seen(EvidenceSource::Neighbours, text);
}

/// Without a look at drops: a neighbour that failed, and ICMP errors that say so.
fn by_state(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let neighbours = namespace.neighbours.as_ref()?;
    let failed = neighbours.unanswered.iter().find(|n| n.state == "failed" || n.state == "incomplete")?;
    let told = namespace.grew("icmp.OutDestUnreachs") + namespace.grew("icmp6.OutDestUnreachs");
    let held = namespace.grew("icmp.OutRateLimitHost") + namespace.grew("icmp6.OutRateLimitHost");
    if told == 0 || neighbours.unanswered.len() >= SCAN {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, told + held);
    finding.claims = vec![view.counted(namespace, "icmp.OutDestUnreachs", told + held)];
    finding.confidence = Confidence::Low;
    finding.object = failed.address.to_string();
    let name = name_of(namespace, failed.interface);
    finding.summary = format!(
        "{} on {name} does not answer when its Ethernet address is asked for, and errors were sent.",
        failed.address
    );
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    describe_states(namespace, failed.interface, failed.address, &mut finding);
    finding.fixes = fixes(failed.address, &name);
    Some(finding)
}

fn fixes(hop: IpAddr, interface: &str) -> Vec<Fix> {
    let ip = super::ways::ip(hop);
    let dev = &interface;
    vec![Fix::new(
        "ask it again, and see who answers on the link",
        "none, it only asks",
        [
            sh!("ping -c 3 -I {} {}", dev, hop),
            sh!("{} neigh show to {} dev {}", Words::of(ip), hop, dev),
            sh!("{} route get {}", Words::of(ip), hop),
            sh!("tcpdump -eni {} {}", dev, if hop.is_ipv4() { "arp" } else { "icmp6" }),
        ],
        [],
    )]
}

fn recipes() -> Vec<Recipe> {
    let udp = |to: &str| Traffic::udp(to, 100, 300, 4);
    vec![
        Recipe::named("host", Vec::new(), vec![udp("198.19.0.77:7000")]),
        Recipe::named(
            "next-hop",
            vec![Step::gateway("ip route add 198.51.100.0/24 via 198.19.0.99")],
            vec![udp("198.51.100.9:7000")],
        ),
        Recipe::named("ipv6", ipv6::steps(), vec![ipv6::udp("2001:2:0:1::77", 100, false)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, OUTSIDE, answer, answered, blind, count, datagram, drops, healthy};
    use super::*;
    use crate::evidence::{Evidence, Lookup, Neighbour, RouteOutcome};

    fn unanswered(evidence: &mut Evidence, address: &str, state: &str, answered: bool) {
        let address = address.parse().unwrap();
        let neighbour = Neighbour { address, interface: OUTSIDE, state: state.into(), answered };
        evidence.namespaces[0].neighbours.as_mut().unwrap().unanswered.push(neighbour);
    }

    fn case(to: &str, hop: Option<&str>) -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", to, INSIDE);
        for (reason, location, packets) in
            [("NEIGH_FAILED", "neigh_invalidate", 100), ("NEIGH_QUEUEFULL", "__neigh_event_send", 500)]
        {
            let mut group = drops(reason, location, packets, std::slice::from_ref(&sample));
            group.interface = OUTSIDE;
            evidence.drops.push(group);
        }
        let next_hop = hop.map(|h| h.parse().unwrap());
        answered(&mut evidence, Lookup { next_hop, ..answer(&sample, RouteOutcome::Forwarded, OUTSIDE) });
        evidence
    }

    #[test]
    fn the_silent_next_hop_is_named_and_takes_what_waited_for_it() {
        let mut evidence = case("198.51.100.9", Some("198.19.0.99"));
        unanswered(&mut evidence, "198.19.0.99", "incomplete", false);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].object.as_str()), (1, "198.19.0.99"));
        assert_eq!((found[0].confidence, found[0].claims.len()), (Confidence::High, 2));
        assert!(found[0].evidence.iter().any(|f| f.text.contains("such as to 198.51.100.9")));
    }

    #[test]
    fn one_that_answers_late_is_not_accused() {
        let mut evidence = case("198.19.0.77", None);
        evidence.drops.remove(0);
        unanswered(&mut evidence, "198.19.0.77", "incomplete", true);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
    }

    #[test]
    fn a_scan_of_empty_addresses_is_a_note() {
        let mut evidence = case("198.19.0.77", None);
        for last in 100..150 {
            unanswered(&mut evidence, &format!("198.19.0.{last}"), "incomplete", false);
        }
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].severity, Severity::Note);
    }

    #[test]
    fn without_drops_states_and_errors_are_a_hint() {
        let mut evidence = blind(healthy());
        unanswered(&mut evidence, "198.19.0.77", "failed", false);
        assert_eq!(examine(&EvidenceView::of(&evidence)), [], "nobody wants anything of it");
        count(&mut evidence, "icmp.OutDestUnreachs", 12);
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].confidence, Confidence::Low);
        assert_eq!(examine(&EvidenceView::of(&healthy())), []);
    }
}
