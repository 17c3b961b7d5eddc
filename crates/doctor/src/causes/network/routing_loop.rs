//! Packets go in circles until their time to live ends.

use super::ways::{Loss, add_route, host_network, ip, lookup, name_of, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{DropGroup, EvidenceSource, Lookup, Namespace, RouteOutcome};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "routing-loop",
    title: "time to live ended: a routing loop, or a sender that sets it too small",
    about: "Every router decrements a packet's time to live (hop limit), and drops the packet when nothing is left. This \
            ends routing loops, in which two routers send packets to each other because each has a route through the \
            other: typically a default route towards a router that routes the same network back. Each such packet crosses \
            the link dozens of times, so a little traffic fills it. Traceroute uses the same rule, with a few packets; and \
            some senders (TV streams, old devices) set a time to live that is too small for the path.",
    must: &["packets dropped as IP_INHDR in ip_forward or ip6_forward, InHdrErrors grows"],
    should: &[
        "the packet would have left by the interface that it came in by, towards a next hop on that link",
    ],
    must_not: &["a few packets only, as traceroute sends"],
    lookalikes: &[("martian-source", "a loop below IP, of bridges: this host's own packets come back to it")],
    remedy: "Look at the route here and at that of the next hop: one of the two must not point at the other. For your own \
             networks that are only partly in use, a blackhole route for the whole network ends such loops.",
    sources: &["net/ipv4/ip_forward.c", "net/ipv6/ip6_output.c: ip6_forward", "RFC 1812 section 5.3.1"],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

fn is_mine(drops: &DropGroup) -> bool {
    drops.reason == "IP_INHDR" && matches!(drops.location.as_str(), "ip_forward" | "ip6_forward")
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let counters = ["ip.InHdrErrors", "ip6.InHdrErrors"];
    let taken = view.take(namespace, is_mine);
    // Without drops in sight, bad headers of any kind are in the counter; the errors that were sent are of these alone.
    let counters: &[&str] =
        if taken.is_empty() { &["icmp.OutTimeExcds", "icmp6.OutTimeExcds"] } else { &counters };
    let loss = Loss::of(view, namespace, taken, counters);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let example = loss.taken.example();
    let words = such_as(example);
    let samples = loss.taken.samples();
    let answers: Vec<&Lookup> = samples.filter_map(|s| lookup(namespace, s)).collect();
    let back =
        |l: &&&Lookup| l.outcome == RouteOutcome::Forwarded && l.came_in != 0 && l.interface == l.came_in;
    let turned = answers.iter().filter(back).count();
    if 2 * turned > answers.len() {
        let l = answers.iter().find(back)?;
        let through = name_of(namespace, l.interface);
        let hop = l.next_hop.unwrap_or(l.destination);
        finding.object = l.destination.to_string();
        finding.confidence = Confidence::High;
        finding.summary = format!(
            "{} packets{words} ended in a routing loop: they come in through {through}, and the route sends them back out there.",
            loss.packets
        );
        let text = format!(
            "asked for {}, the kernel answers: via {hop} through {through}, where it came from",
            l.destination
        );
        finding.seen(EvidenceSource::Routes, text);
        let forwarded = namespace.grew("ip.ForwDatagrams") + namespace.grew("ip6.OutForwDatagrams");
        let text = format!("{forwarded} packets were forwarded in the window, each of these many times");
        finding.seen(EvidenceSource::Counters, text);
        finding.fixes = fixes(l);
    } else {
        finding.object = example.map_or(String::new(), |t| t.destination.to_string());
        finding.confidence = Confidence::Low;
        // Not shown to be a loop, so it may be meant; and surely no loop if no router lies between here and the sender.
        let near = !answers.is_empty() && answers.iter().all(|l| comes_from_link(namespace, l));
        finding.severity = finding.severity.min(if near { Severity::Note } else { Severity::Warning });
        finding.summary = format!(
            "The time to live of {} packets{words} ended here: traceroute, a sender that sets it too small, or a loop of \
             three or more routers.",
            loss.packets
        );
    }
    finding.missing.extend(view.missing(namespace, &[EvidenceSource::Routes]));
    Some(finding)
}

/// True if the sender is on the link by which the packet came in.
fn comes_from_link(namespace: &Namespace, answer: &Lookup) -> bool {
    namespace.interface(answer.came_in).is_some_and(|i| i.is_on_link(answer.source))
}

fn fixes(answer: &Lookup) -> Vec<Fix> {
    let network = host_network(answer.destination);
    let ip = ip(answer.destination);
    vec![
        add_route("add the right route", "through a wrong next hop packets are lost there", ip, &network),
        Fix::new(
            "or end the loop, if no host has that address",
            "the address stays out of reach when it comes into use",
            [sh!("{} route add unreachable {}", Words::of(ip), network)],
            [sh!("{} route del unreachable {}", Words::of(ip), network)],
        ),
    ]
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        name: "two-routers",
        setup: vec![
            // An odd time to live ends at the gateway, an even one at the responder.
            Step::initiator("sysctl -qw net.ipv4.ip_default_ttl=63"),
            Step::gateway("ip route add 198.51.100.0/24 via $RESPONDER"),
            Step::responder(
                "sysctl -qw net.ipv4.ip_forward=1; ip route replace default via $GATEWAY_OUTSIDE",
            ),
        ],
        traffic: vec![Traffic::udp("198.51.100.9:7000", 100, 100, 4)],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, OUTSIDE, answer, answered, count, datagram, drops, healthy};
    use super::*;
    use crate::evidence::Evidence;

    fn case(came_in: u32, leaves: u32, packets: u64) -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.51.100.9", came_in);
        evidence.drops.push(drops("IP_INHDR", "ip_forward", packets, std::slice::from_ref(&sample)));
        answered(&mut evidence, answer(&sample, RouteOutcome::Forwarded, leaves));
        count(&mut evidence, "ip.InHdrErrors", packets);
        evidence
    }

    #[test]
    fn what_would_go_back_where_it_came_from_is_a_loop() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(OUTSIDE, OUTSIDE, 400)));
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Critical, Confidence::High));
        assert_eq!(found[0].object, "198.51.100.9");
        assert!(found[0].fixes[1].commands[0] == "ip route add unreachable 198.51.100.9/32");
    }

    #[test]
    fn traceroute_is_worth_a_note_at_most() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(INSIDE, OUTSIDE, 3)));
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Note, Confidence::Low));
        let many = (CAUSE.examine)(&EvidenceView::of(&case(INSIDE, OUTSIDE, 4000)));
        assert_eq!(
            many[0].severity,
            Severity::Note,
            "the sender is on the link, so it chose the time to live"
        );
        let mut far = case(INSIDE, OUTSIDE, 4000);
        far.namespaces[0].interfaces[0].addresses.clear();
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&far))[0].severity, Severity::Warning);
        let mut bad = healthy();
        bad.drops.push(drops("IP_CSUM", "ip_rcv_core", 50, &[datagram("198.18.0.2", "198.19.0.2", INSIDE)]));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&bad)), []);
    }
}
