//! A rule of policy routing sends packets where they are refused.

use super::ways::{Loss, is_policy, lookup};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{DropGroup, EvidenceSource, Lookup, Namespace, RouteOutcome, Sample, is_within};
use crate::finding::{Confidence, Fact, Finding, Fix};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "policy-route",
    title: "policy routing sends packets to a table that refuses them",
    about: "Rules of policy routing (`ip rule`) choose the table in which a route is looked for, by mark, source, \
            interface or port. A rule that refuses, or a table that refuses, loses the packets that match, while others to \
            the same destination get through, and while `ip route get` without mark and source shows a good route. VPNs, \
            several uplinks and Kubernetes networks break like this when one half of their set-up is lost.",
    must: &[
        "packets dropped without a route, or by one that refuses",
        "the kernel, asked with mark, source and interface of the packet, refuses",
        "asked without them it has a route",
    ],
    should: &["there are rules beyond local, main and default"],
    must_not: &["the destination has no route at all"],
    lookalikes: &[
        ("no-route", "no packet reaches the destination"),
        ("blackhole-route", "no packet reaches the destination: the route that refuses is in the main table"),
    ],
    remedy: "Look at what the kernel does with exactly this packet: `ip route get DESTINATION from SOURCE iif INTERFACE \
             mark MARK`. Then fill the table that the rule names, or delete the rule, or set the mark on fewer packets.",
    sources: &["net/ipv4/fib_rules.c: fib4_rule_action", "ip-rule(8)"],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

fn may_be_mine(drops: &DropGroup) -> bool {
    matches!(
        drops.location.as_str(),
        "ip_error" | "dst_discard" | "dst_discard_out" | "ip6_pkt_prohibit" | "ip6_pkt_discard"
    ) && drops.reason != "IP_INADDRERRORS"
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let by_rule = |_: &DropGroup, s: &Sample| lookup(namespace, s).is_some_and(|l| is_policy(namespace, l));
    let taken = view.take(namespace, may_be_mine).share(false, by_rule);
    let example = taken.samples().find_map(|s| lookup(namespace, s).filter(|l| is_policy(namespace, l)))?;
    let loss = Loss::seen(taken, Vec::new());
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let routes = namespace.routes.as_ref()?;
    let rule = suspect(&routes.policies, example);
    let mark = if example.mark == 0 { String::new() } else { format!(" with mark {:#x}", example.mark) };
    finding.object = rule.cloned().unwrap_or_else(|| example.destination.to_string());
    finding.summary = format!(
        "{} packets, such as from {} to {}{mark}, were refused though there is a route: policy routing leads them elsewhere.",
        loss.packets, example.source, example.destination
    );
    finding.confidence = if rule.is_some() { Confidence::High } else { Confidence::Medium };
    let with =
        if example.mark == 0 { "asked with source and interface" } else { "asked with mark and source" };
    let answers = format!(
        "{with}, the kernel answers {}; asked without, it has a route",
        match example.outcome {
            RouteOutcome::NoRoute => "network unreachable",
            RouteOutcome::Unreachable => "host unreachable",
            RouteOutcome::Prohibited => "prohibited",
            _ => "invalid argument (a blackhole)",
        }
    );
    finding.seen(EvidenceSource::Routes, answers);
    let rules = routes.policies.iter().take(5).map(|p| Fact::seen(EvidenceSource::Routes, p.as_str()));
    finding.evidence.extend(rules);
    finding.fixes = rule.map(|r| without(r)).into_iter().collect();
    Some(finding)
}

/// The first rule that asks for what this packet has.
fn suspect<'a>(policies: &'a [String], packet: &Lookup) -> Option<&'a String> {
    let family = if packet.destination.is_ipv4() { "ip rule " } else { "ip -6 rule " };
    let of_family = || policies.iter().filter(move |p| p.starts_with(family));
    let mark = format!("fwmark {:#x}", packet.mark);
    let marked = || of_family().find(|p| packet.mark != 0 && p.contains(&mark));
    let source =
        || of_family().find(|p| from(p).is_some_and(|(net, bits)| is_within(packet.source, net, bits)));
    let refusing =
        || of_family().find(|p| ["blackhole", "unreachable", "prohibit"].iter().any(|k| p.ends_with(k)));
    let only = || Some(of_family().next()?).filter(|_| of_family().count() == 1);
    marked().or_else(source).or_else(refusing).or_else(only)
}

/// Network after `from`.
fn from(rule: &str) -> Option<(std::net::IpAddr, u8)> {
    let word = rule.split_once(" from ")?.1.split(' ').next()?;
    let (address, prefix) = word.split_once('/')?;
    Some((address.parse().ok()?, prefix.parse().ok()?))
}

/// `ip rule 50: from all lookup 100` as the commands that delete it and add it again.
fn without(rule: &str) -> Fix {
    let (what, selector) = rule.split_once(": ").unwrap_or((rule, ""));
    let (ip, priority) = what.rsplit_once(' ').unwrap_or((what, "0"));
    Fix::new(
        "delete the rule, if the packets should take the main table",
        "the packets then follow the main table and bypass the rule's path (a VPN, another uplink)",
        [sh!("{} del priority {} {}", Words::of(ip), priority, Words::of(selector))],
        [sh!("{} add priority {} {}", Words::of(ip), priority, Words::of(selector))],
    )
}

fn recipes() -> Vec<Recipe> {
    let udp = || vec![Traffic::udp("198.19.0.2:7000", 100, 300, 4)];
    let recipe = |name, script: &str| Recipe::named(name, vec![Step::gateway(script)], udp());
    vec![
        recipe(
            "mark",
            "ip rule add priority 50 fwmark 7 lookup 100; ip route add unreachable default table 100; \
             nft 'add table ip m; add chain ip m c { type filter hook prerouting priority -150; }; \
             add rule ip m c udp dport 7000 meta mark set 7'",
        ),
        recipe("source", "ip rule add priority 50 from 198.18.0.0/24 prohibit"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, answer, answered, datagram, drops, healthy};
    use super::*;
    use crate::evidence::Evidence;

    fn case(mark: u32, outcome: RouteOutcome, plain: RouteOutcome, rules: &[&str]) -> Evidence {
        let mut evidence = healthy();
        let sample = Sample { mark, ..datagram("198.18.0.2", "198.19.0.2", INSIDE) };
        evidence.drops.push(drops("NOT_SPECIFIED", "ip_error", 250, std::slice::from_ref(&sample)));
        answered(&mut evidence, Lookup { plain: Some(plain), ..answer(&sample, outcome, 0) });
        let rules = rules.iter().map(|r| (*r).to_owned());
        evidence.namespaces[0].routes.as_mut().unwrap().policies.extend(rules);
        evidence
    }

    #[test]
    fn the_rule_that_matches_is_named() {
        let rules = [
            "ip rule 40: from 10.0.0.0/8 lookup 7",
            "ip rule 50: from all fwmark 0x7 lookup 100",
            "ip -6 rule 3: from all prohibit",
        ];
        let evidence = case(7, RouteOutcome::Unreachable, RouteOutcome::Forwarded, &rules);
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::High));
        assert_eq!(found[0].fixes[0].commands, ["ip rule del priority 50 from all fwmark 0x7 lookup 100"]);
        let evidence = case(
            0,
            RouteOutcome::Prohibited,
            RouteOutcome::Forwarded,
            &["ip rule 9: from 198.18.0.0/24 prohibit"],
        );
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!(found[0].fixes[0].undo, ["ip rule add priority 9 from 198.18.0.0/24 prohibit"]);
    }

    #[test]
    fn a_route_that_refuses_everybody_is_no_policy() {
        let rules = ["ip rule 50: from all fwmark 0x7 lookup 100"];
        let evidence = case(7, RouteOutcome::Unreachable, RouteOutcome::Unreachable, &rules);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&case(
                0,
                RouteOutcome::Unreachable,
                RouteOutcome::Forwarded,
                &[]
            ))),
            []
        );
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&healthy())), []);
    }
}
