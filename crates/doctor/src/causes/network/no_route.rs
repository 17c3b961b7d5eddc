//! There is no route to where packets want to go.

use weir_text::order;

use super::ipv6;
use super::ways::{Loss, add_route, host_network, ip, is_policy, lookup, such_as};
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::evidence::{DropGroup, EvidenceSource, Namespace, RouteOutcome, Sample, Tuple};
use crate::finding::{Finding, Fix, Severity};
use crate::recipe::{Recipe, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "no-route",
    title: "no route to the destination",
    about: "A router looks up every packet's destination in its routing tables. If no route holds it, the packet is \
            dropped and an ICMP error (network unreachable) goes back, a few per second. Programs on the host itself get \
            the error `Network is unreachable`. Typical reasons are a default route that went away with an interface or a \
            DHCP lease, a VPN that is down, and, for answers and ICMP errors, a source address that this host has no way \
            back to.",
    must: &[
        "packets dropped as IP_INNOROUTES, or InNoRoutes or OutNoRoutes grows",
        "the kernel finds no route if it is asked again",
    ],
    should: &["ICMP errors are sent"],
    must_not: &[
        "a route that refuses (unreachable, prohibit) holds the destination",
        "a rule of policy routing keeps it from a route that is there",
    ],
    lookalikes: &[
        ("blackhole-route", "a route exists, and it refuses; `ip route get` shows it"),
        ("policy-route", "a route exists, in a table that the rules do not select for this packet"),
        ("link-down", "the route went away with its interface"),
        ("forwarding-off", "the kernel does not even look for a route: InAddrErrors"),
    ],
    yields_to: &["blackhole-route", "policy-route", "link-down"],
    remedy: "Add the route, or the default route. If it existed before, find out what removes it (a DHCP client, a VPN, a \
             routing daemon), because it will do so again.",
    sources: &["net/ipv4/route.c: ip_error", "net/ipv6/route.c: ip6_pkt_discard", "RFC 1812 section 5.2.7.1"],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| [forwarded(view, n), made_here(view, n)]).flatten().collect()
}

fn forwarded(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let unrouted = |d: &DropGroup| d.reason == "IP_INNOROUTES";
    let by_route = |_: &DropGroup, s: &Sample| match lookup(namespace, s) {
        Some(l) => l.outcome == RouteOutcome::NoRoute && !is_policy(namespace, l),
        None => true,
    };
    let taken = view.take(namespace, unrouted).share(true, by_route);
    let loss = Loss::of(view, namespace, taken, &["ipext.InNoRoutes", "ip6.InNoRoutes"]);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let to = destinations(namespace, &loss.taken);
    let first = to.first();
    finding.object = first.map_or(String::new(), |t| t.destination.to_string());
    let example = such_as(first.copied());
    finding.summary = format!("{} packets had no route{example}, and were dropped.", loss.packets);
    if let Some(tuple) = first {
        let text = format!("asked for {}, the kernel answers: network unreachable", tuple.destination);
        finding.seen(EvidenceSource::Routes, text);
    }
    describe_default(namespace, first, &mut finding);
    finding.missing.extend(view.missing(namespace, &[EvidenceSource::Routes]));
    finding.fixes.push(missing_route(first));
    Some(finding)
}

/// Finds failed sends of local programs. The program gets the error at once, and no packet exists; still, it wants to reach a
/// destination without a route.
fn made_here(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let routes = namespace.routes.as_ref();
    let mut lost = namespace.grew("ip.OutNoRoutes");
    let mut counters = vec!["ip.OutNoRoutes"];
    // Programs try IPv6 first if a name has an IPv6 address (RFC 8305): without a default route this is no loss.
    if routes.is_some_and(|r| r.default6) {
        lost += namespace.grew("ip6.OutNoRoutes");
        counters.push("ip6.OutNoRoutes");
    }
    if lost == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.severity = finding.severity.min(Severity::Warning);
    let moved = counters.iter().filter(|c| namespace.grew(c) > 0);
    finding.claims = moved.clone().map(|c| view.counted(namespace, c, namespace.grew(c))).collect();
    finding.evidence = moved.filter_map(|c| super::ways::counter_as_fact(namespace, c)).collect();
    finding.summary = format!("Programs here wanted to send {lost} packets to destinations without a route.");
    describe_default(namespace, None, &mut finding);
    finding.fixes.push(missing_route(None));
    Some(finding)
}

fn describe_default(namespace: &Namespace, to: Option<&Tuple>, finding: &mut Finding) {
    let Some(routes) = &namespace.routes else { return };
    let v4 = to.is_none_or(|t| t.destination.is_ipv4());
    let (has, family) = if v4 { (routes.default4, "IPv4") } else { (routes.default6, "IPv6") };
    if !has {
        finding.seen(EvidenceSource::Routes, format!("there is no default route of {family}"));
    }
}

/// Returns the destinations of these packets, the most frequent first.
fn destinations(namespace: &Namespace, taken: &Taken<'_>) -> Vec<Tuple> {
    let samples = taken.samples();
    let mine = samples.filter(|s| lookup(namespace, s).is_none_or(|l| l.outcome == RouteOutcome::NoRoute));
    let mut tuples: Vec<Tuple> = mine.filter_map(Sample::tuple).collect();
    order::by_key(&mut tuples, |t| (t.destination, *t));
    let mut runs: Vec<_> = tuples.chunk_by(|a, b| a.destination == b.destination).collect();
    order::by_key(&mut runs, |run| std::cmp::Reverse(run.len()));
    runs.into_iter().map(|run| run[0]).collect()
}

fn missing_route(to: Option<&Tuple>) -> Fix {
    let (ip, network) = match to {
        Some(t) => (ip(t.destination), host_network(t.destination)),
        None => ("ip", "default".into()),
    };
    let risk = "through a wrong next hop packets are lost there, or loop";
    add_route("add the route that is missing", risk, ip, &network)
}

fn recipes() -> Vec<Recipe> {
    vec![
        Recipe::named("ipv4", Vec::new(), vec![Traffic::udp("198.51.100.9:7000", 100, 300, 4)]),
        Recipe::named("ipv6", ipv6::steps(), vec![ipv6::udp("2001:2:0:9::9", 100, false)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, OUTSIDE, answer, answered, blind, count, datagram, drops, healthy};
    use super::*;
    use crate::finding::Claim;

    #[test]
    fn the_destination_without_a_route_is_named() {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.51.100.9", INSIDE);
        evidence.drops.push(drops("IP_INNOROUTES", "ip_error", 300, std::slice::from_ref(&sample)));
        answered(&mut evidence, answer(&sample, RouteOutcome::NoRoute, 0));
        count(&mut evidence, "ipext.InNoRoutes", 300);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].object.as_str()), (1, "198.51.100.9"));
        assert_eq!(found[0].severity, Severity::Critical);
        assert!(found[0].evidence.iter().any(|f| f.text.contains("no default route of IPv4")));
        let blind = blind(evidence);
        assert_eq!(examine(&EvidenceView::of(&blind))[0].claims.len(), 1);
    }

    #[test]
    fn what_a_route_or_a_rule_refuses_is_not_taken() {
        let mut evidence = healthy();
        let refused = datagram("2001:2::2", "2001:2:0:8::2", INSIDE);
        let missing = datagram("2001:2::2", "2001:2:0:9::2", INSIDE);
        let by_rule = datagram("2001:2::3", "2001:2:0:1::2", INSIDE);
        let samples = [refused.clone(), missing.clone(), by_rule.clone(), by_rule.clone()];
        evidence.drops.push(drops("IP_INNOROUTES", "ip6_pkt_discard", 400, &samples));
        answered(&mut evidence, answer(&refused, RouteOutcome::Unreachable, 0));
        answered(&mut evidence, answer(&missing, RouteOutcome::NoRoute, 0));
        let ruled = crate::evidence::Lookup {
            plain: Some(RouteOutcome::Forwarded),
            ..answer(&by_rule, RouteOutcome::NoRoute, OUTSIDE)
        };
        answered(&mut evidence, ruled);
        evidence.namespaces[0].routes.as_mut().unwrap().policies.push("ip -6 rule 5: from all".into());
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 100 }]);
    }

    #[test]
    fn programs_that_try_ipv6_where_there_is_none_are_no_loss() {
        let mut evidence = healthy();
        count(&mut evidence, "ip6.OutNoRoutes", 500);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        count(&mut evidence, "ip.OutNoRoutes", 500);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
    }
}
