//! Sources that may never come from outside.

use super::frames::{Datagram, frame};
use super::ways::{Loss, in_sysctl, name_of, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{sh, sysctl};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix};
use crate::recipe::{LabHost, Recipe, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "martian-source",
    title: "packets with an impossible source",
    about: "No legitimate sender has such a source: this host's own addresses, 127.0.0.0/8, multicast and broadcast \
            addresses, 0.0.0.0. The kernel drops such packets before it looks at any rule. This host's own address as a \
            source means that a packet of its own came back (a loop of bridges, a tunnel into itself, hairpin traffic of \
            containers), or that another host has the same address. Addresses of loopback come from port forwarding to \
            127.0.0.1 without route_localnet, and from forged packets.",
    must: &[
        "packets dropped as IP_LOCAL_SOURCE, IP_LOCALNET or IP_INVALID_SOURCE, or in_martian_src grows beyond IPReversePathFilter",
    ],
    should: &["`martian source` in the kernel's log, if log_martians is on"],
    must_not: &["the source is a usual address of another host"],
    lookalikes: &[
        (
            "reverse-path-filter",
            "a usual source that came in by the wrong interface: IPReversePathFilter grows",
        ),
        ("duplicate-address", "the neighbours' Ethernet addresses change to and fro"),
    ],
    remedy: "Find their origin: `sysctl -w net.ipv4.conf.all.log_martians=1` writes the Ethernet header to the log. If the \
             address is this host's own, look for a loop or a second host with it. If the traffic is meant (a load \
             balancer with the same address on several hosts, port forwarding to loopback), accept_local or route_localnet \
             on that interface let it in.",
    sources: &["net/ipv4/route.c: ip_route_input_slow, ip_handle_martian_source", "RFC 1812 section 5.3.7"],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    if !view.sees_drops() {
        return by_counter(view).into_iter().collect();
    }
    view.namespaces().filter_map(|n| in_namespace(view, n)).collect()
}

/// The kernel counts them for the whole machine, and those that a reverse path filter refused among them.
fn by_counter(view: &EvidenceView<'_>) -> Option<Finding> {
    let name = "rt_cache.in_martian_src";
    let all = *view.evidence.machine.counters.get(name)?;
    let filtered: u64 = view.namespaces().map(|n| n.grew("tcpext.IPReversePathFilter")).sum();
    let lost = all.change().saturating_sub(filtered);
    if lost == 0 {
        return None;
    }
    let mut finding = view.machine_finding(CAUSE.id, view.severity_for_all(lost));
    finding.confidence = Confidence::Low;
    finding.claims = vec![Claim::Counter { namespace: 0, counter: name.into(), packets: lost }];
    let text = format!("{} impossible sources, {filtered} of them by a reverse path filter", all.change());
    finding.counter(EvidenceSource::Counters, name, all, text);
    finding.summary =
        format!("{lost} packets with an impossible source came to some namespace, and were dropped.");
    finding.missing = vec![EvidenceSource::Drops];
    Some(finding)
}

/// Puts the kernel's verdict on the source into words.
fn kind(reason: &str) -> Option<&'static str> {
    match reason {
        "IP_LOCAL_SOURCE" => Some("this host's own address"),
        "IP_LOCALNET" => Some("an address of 127.0.0.0/8"),
        "IP_INVALID_SOURCE" => Some("a multicast, broadcast or zero address"),
        _ => None,
    }
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, |d| kind(&d.reason).is_some());
    let loss = Loss::of(view, namespace, taken, &[]);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let largest = loss.taken.groups.iter().max_by_key(|g| g.packets);
    let what = largest.and_then(|g| kind(&g.reason)).unwrap_or("an address that cannot be a sender's");
    let example = loss.taken.example();
    let from = such_as(example);
    let interface = largest.map(|g| name_of(namespace, g.interface));
    let at = interface.as_ref().map_or(String::new(), |i| format!(" through {i}"));
    finding.object = interface.clone().unwrap_or_default();
    finding.summary =
        format!("{} packets came{at} with {what} as their source{from}, and were dropped.", loss.packets);
    if let Some(interface) = &interface {
        let log = view.evidence.machine.log.iter().filter(|l| l.contains("martian source")).take(1);
        finding.evidence.extend(log.map(|l| Fact::seen(EvidenceSource::Log, l.as_str())));
        finding.fixes = fixes(namespace, interface, largest.map_or("", |g| g.reason.as_str()));
    }
    Some(finding)
}

fn fixes(namespace: &Namespace, interface: &str, reason: &str) -> Vec<Fix> {
    let setting = |name: &str| format!("net.ipv4.conf.{}.{name}", in_sysctl(interface));
    let set = |name: &str| sysctl::set(&setting(name), 1);
    // If a setting cannot be read, assumes the kernel's default.
    let back = |name: &str| sysctl::set(&setting(name), namespace.setting(&setting(name)).unwrap_or(0));
    let mut fixes = vec![Fix::new(
        "log the senders",
        "up to ten lines a second in the log",
        [set("log_martians"), sh!("dmesg --follow")],
        [back("log_martians")],
    )];
    let accept = match reason {
        "IP_LOCAL_SOURCE" => Some((
            "accept_local",
            "let packets in that have this host's address as their source, if they are meant",
        )),
        "IP_LOCALNET" => Some((
            "route_localnet",
            "let 127.0.0.0/8 be routed on this interface, if port forwarding to it is meant",
        )),
        _ => None,
    };
    if let Some((name, title)) = accept {
        fixes.push(Fix::new(
            title,
            "forged packets with such sources get in, too: hosts on the link reach services that \
                                    listen on loopback only",
            [set(name)],
            [back(name)],
        ));
    }
    fixes
}

fn recipes() -> Vec<Recipe> {
    let recipe = |name, frames| {
        let traffic = vec![Traffic::Frames { from: LabHost::Initiator, rate: 200, frames }];
        Recipe::named(name, Vec::new(), traffic)
    };
    vec![
        recipe("own", |own, peer| vec![martian(own, peer, [198, 18, 0, 1])]),
        recipe("loopback", |own, peer| vec![martian(own, peer, [127, 0, 0, 5])]),
        recipe("group", |own, peer| vec![martian(own, peer, [224, 0, 0, 5])]),
    ]
}

fn martian(own: [u8; 6], peer: [u8; 6], source: [u8; 4]) -> Vec<u8> {
    frame(own, peer, Datagram::whole(source, [198, 19, 0, 2], 1, 40))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, blind, count, datagram, drops, healthy};
    use super::*;
    use crate::evidence::Delta;

    #[test]
    fn the_kind_of_source_decides_what_may_help() {
        for (reason, source, setting) in [
            ("IP_LOCAL_SOURCE", "198.18.0.1", Some("accept_local=1")),
            ("IP_LOCALNET", "127.0.0.5", Some("route_localnet=1")),
            ("IP_INVALID_SOURCE", "224.0.0.5", None),
        ] {
            let mut evidence = healthy();
            let sample = datagram(source, "198.19.0.2", INSIDE);
            evidence.drops.push(drops(reason, "ip_rcv_finish_core", 200, &[sample]));
            let found = examine(&EvidenceView::of(&evidence));
            assert_eq!((found.len(), found[0].object.as_str()), (1, "inside"));
            let accept = found[0].fixes.get(1).map(|f| f.commands[0].clone());
            assert_eq!(accept, setting.map(|s| format!("sysctl -w net.ipv4.conf.inside.{s}")));
        }
    }

    #[test]
    fn what_the_reverse_path_filter_refused_is_not_counted() {
        let mut evidence = blind(healthy());
        let martians = |after| ("rt_cache.in_martian_src".to_owned(), Delta { before: 100, after });
        evidence.machine.counters.extend([martians(400)]);
        count(&mut evidence, "tcpext.IPReversePathFilter", 300);
        assert_eq!(examine(&EvidenceView::of(&evidence)), []);
        evidence.machine.counters.extend([martians(600)]);
        let found = examine(&EvidenceView::of(&evidence));
        assert!(found[0].summary.starts_with("200 packets"), "{}", found[0].summary);
        let mut filtered = healthy();
        let sample = datagram("198.51.100.2", "198.19.0.2", INSIDE);
        filtered.drops.push(drops("IP_RPFILTER", "ip_rcv_finish_core", 200, &[sample]));
        assert_eq!(examine(&EvidenceView::of(&filtered)), []);
    }
}
