//! A route drops packets on purpose.

use super::ipv6;
use super::ways::{Loss, add_route, host_network, ip, is_policy, lookup, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{DropGroup, EvidenceSource, Namespace, RouteOutcome, Sample, UnusualRoute, is_within};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "blackhole-route",
    title: "a route that drops packets",
    about: "Routes of the types blackhole, unreachable and prohibit drop the packets that they match. Unreachable and \
            prohibit answer with an ICMP error; a blackhole sends none, and no protocol counter grows: packets simply \
            disappear. Operators set such routes against attacks, routing daemons and container networks for the unused \
            rest of a network, and VPN clients as a kill switch. The routes often stay when their reason is gone.",
    must: &[
        "packets dropped in ip_error, dst_discard or ip6_pkt_prohibit",
        "the kernel answers with the refusal if it is asked again",
    ],
    should: &["a route of such a kind holds the destination"],
    must_not: &["the same destination is reached by packets without this mark or source"],
    lookalikes: &[
        ("no-route", "no route at all: InNoRoutes grows and the kernel answers network unreachable"),
        ("policy-route", "only packets of a certain mark or source are refused"),
    ],
    yields_to: &["policy-route"],
    remedy: "Find out who set the route and why (`ip route show type blackhole`; `proto` tells the daemon). If it is no \
             longer needed, delete it; a more specific route to the destination also overrides it.",
    sources: &[
        "net/ipv4/route.c: ip_error",
        "net/core/dst.c: dst_discard",
        "net/ipv6/route.c: ip6_pkt_prohibit",
        "ip-route(8)",
    ],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// True for the locations at which the kernel drops packets that a route refuses.
fn may_be_mine(drops: &DropGroup) -> bool {
    match drops.location.as_str() {
        "ip_error" => !matches!(drops.reason.as_str(), "IP_INADDRERRORS" | "IP_INNOROUTES"),
        "dst_discard" | "dst_discard_out" | "ip6_pkt_prohibit" | "ip6_pkt_discard" => true,
        _ => false,
    }
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = |d: &DropGroup, s: &Sample| match lookup(namespace, s) {
        Some(l) if is_policy(namespace, l) => false,
        Some(l) => refuses(l.outcome),
        // Not asked: the place alone says enough but for the one that IPv6 uses for a missing route, too.
        None => d.location != "ip6_pkt_discard",
    };
    let taken = view.take(namespace, may_be_mine).share(false, refused);
    let loss = Loss::seen(taken, Vec::new());
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let samples = loss.taken.samples();
    let answers = samples.filter_map(|s| lookup(namespace, s));
    let to = answers.clone().find(|l| refuses(l.outcome)).or(answers.clone().next());
    let routes = namespace.routes.as_ref();
    let route = to.and_then(|l| longest(&routes?.unusual, l.destination));
    let example = loss.taken.example();
    let words = such_as(example);
    finding.object = match (route, example) {
        (Some(route), _) => written(route),
        (None, Some(t)) => t.destination.to_string(),
        (None, None) => String::new(),
    };
    let by =
        route.map_or_else(|| "a route that refuses".to_owned(), |r| format!("the route `{}`", written(r)));
    finding.summary = format!("{} packets were dropped by {by}{words}.", loss.packets);
    if let Some(l) = to {
        let text = format!("asked for {}, the kernel answers: {}", l.destination, in_words(l.outcome));
        finding.seen(EvidenceSource::Routes, text);
        finding.confidence = Confidence::High;
    }
    finding.missing.extend(view.missing(namespace, &[EvidenceSource::Routes]));
    finding.fixes = fixes(route, example.map(|t| t.destination));
    Some(finding)
}

fn refuses(outcome: RouteOutcome) -> bool {
    matches!(outcome, RouteOutcome::Blackhole | RouteOutcome::Unreachable | RouteOutcome::Prohibited)
}

fn in_words(outcome: RouteOutcome) -> &'static str {
    match outcome {
        RouteOutcome::Unreachable => "host unreachable",
        RouteOutcome::Prohibited => "prohibited",
        _ => "blackhole (invalid argument)",
    }
}

/// The most special of the routes that hold the address.
fn longest(routes: &[UnusualRoute], address: std::net::IpAddr) -> Option<&UnusualRoute> {
    let hold = routes.iter().filter(|r| r.kind != "throw" && is_within(address, r.destination, r.prefix));
    hold.max_by_key(|r| r.prefix)
}

fn written(route: &UnusualRoute) -> String {
    let table = if route.table == 254 { String::new() } else { format!(" table {}", route.table) };
    format!("{} {}/{}{table}", route.kind, route.destination, route.prefix)
}

fn fixes(route: Option<&UnusualRoute>, to: Option<std::net::IpAddr>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if let Some(route) = route {
        let (ip, route) = (ip(route.destination), written(route));
        fixes.push(Fix::new("delete the route, if its reason is gone", "it may be there on purpose: against an attack, a loop, or leaks past a VPN; the program that set it may set it again", [sh!("{} route del {}", Words::of(ip), Words::of(&route))], [sh!("{} route add {}", Words::of(ip), Words::of(&route))]));
    }
    if let Some(to) = to {
        let risk = "through a wrong next hop packets are lost there";
        fixes.push(add_route("or let only this destination through", risk, ip(to), &host_network(to)));
    }
    fixes
}

fn recipes() -> Vec<Recipe> {
    let udp = || vec![Traffic::udp("198.51.100.9:7000", 100, 300, 4)];
    let recipe = |name, script: &str| Recipe::named(name, vec![Step::gateway(script)], udp());
    vec![
        recipe("blackhole", "ip route add blackhole 198.51.100.0/24"),
        recipe("unreachable", "ip route add unreachable 198.51.100.0/24"),
        recipe("prohibit", "ip route add prohibit 198.51.100.0/24"),
        Recipe::named(
            "ipv6",
            ipv6::with("ip -6 route add blackhole 2001:2:0:9::/64"),
            vec![ipv6::udp("2001:2:0:9::9", 100, false)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, answer, answered, datagram, drops, healthy};
    use super::*;
    use crate::evidence::{Evidence, Lookup};
    use crate::finding::Severity;

    fn case(location: &str, reason: &str, outcome: RouteOutcome, plain: RouteOutcome) -> Evidence {
        let mut evidence = healthy();
        let v6 = location.starts_with("ip6") || location == "dst_discard_out";
        let sample = if v6 {
            datagram("2001:2::2", "2001:2:0:8::2", INSIDE)
        } else {
            datagram("198.18.0.2", "198.51.100.9", INSIDE)
        };
        evidence.drops.push(drops(reason, location, 250, std::slice::from_ref(&sample)));
        answered(&mut evidence, Lookup { plain: Some(plain), ..answer(&sample, outcome, 0) });
        let routes = evidence.namespaces[0].routes.as_mut().unwrap();
        let route = |kind: &str, network: &str, prefix| UnusualRoute {
            kind: kind.into(),
            destination: network.parse().unwrap(),
            prefix,
            table: 254,
        };
        routes.unusual = vec![
            route("blackhole", "198.51.0.0", 16),
            route("prohibit", "198.51.100.0", 24),
            route("blackhole", "2001:2:0:8::", 64),
            route("blackhole", "198.52.0.0", 16),
        ];
        evidence
    }

    #[test]
    fn the_most_special_route_is_named_in_both_families() {
        let evidence = case("ip_error", "NOT_SPECIFIED", RouteOutcome::Prohibited, RouteOutcome::Prohibited);
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!(found[0].object, "prohibit 198.51.100.0/24");
        assert_eq!(found[0].fixes[0].commands, ["ip route del prohibit 198.51.100.0/24"]);
        assert_eq!((found[0].severity, found[0].confidence), (Severity::Critical, Confidence::High));
        let evidence =
            case("dst_discard_out", "NOT_SPECIFIED", RouteOutcome::Blackhole, RouteOutcome::Blackhole);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence))[0].object, "blackhole 2001:2:0:8::/64");
    }

    #[test]
    fn a_missing_route_and_a_rule_are_others() {
        let none = case("ip6_pkt_discard", "IP_INNOROUTES", RouteOutcome::NoRoute, RouteOutcome::NoRoute);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&none)), []);
        let mut rule = case("ip_error", "NOT_SPECIFIED", RouteOutcome::Prohibited, RouteOutcome::Forwarded);
        rule.namespaces[0].routes.as_mut().unwrap().policies.push("ip rule 9: from all".into());
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&rule)), []);
        let off = case("ip_error", "IP_INADDRERRORS", RouteOutcome::Prohibited, RouteOutcome::Prohibited);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&off)), []);
    }
}
