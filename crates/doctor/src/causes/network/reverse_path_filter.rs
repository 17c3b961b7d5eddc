//! The reverse path filter drops packets.

use super::ways::{Loss, host_network, in_sysctl, lookup, name_of, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{EvidenceSource, Lookup, Namespace};
use crate::finding::{Fact, Finding, Fix, Setting};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "reverse-path-filter",
    title: "reverse path filter",
    about: "With `rp_filter` the kernel asks, for each packet that comes in, through which interface it would answer the \
            source. In strict mode (1) it drops the packet if that is another interface than the one it came in by; in \
            loose mode (2) only if there is no way back at all. The greater of the values of `all` and of the interface \
            counts. It stops forged sources, and also every legitimate packet whose answer would take another path: \
            several uplinks, VPNs, asymmetric routes, a missing route back. The sender gets no error.",
    must: &[
        "packets dropped as IP_RPFILTER, or TcpExt IPReversePathFilter grows",
        "rp_filter is on for the interface",
    ],
    should: &["the way back to the source leaves through another interface, or there is none"],
    must_not: &["the source is one of this host's own addresses"],
    lookalikes: &[
        (
            "martian-source",
            "sources that may never come from outside, whatever the routes: IPReversePathFilter stands still",
        ),
        (
            "asymmetric-path",
            "packets get through, and connection tracking sees only one half of each connection",
        ),
    ],
    remedy: "If the sources are legitimate, either give this host a route back to them through that interface, or use \
             loose mode (2) on it. On an edge to untrusted networks keep strict mode and repair the routes (RFC 3704).",
    sources: &[
        "net/ipv4/fib_frontend.c: __fib_validate_source",
        "RFC 3704",
        "Documentation/networking/ip-sysctl.rst: rp_filter",
    ],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// Counter of these drops.
const COUNTER: &str = "tcpext.IPReversePathFilter";

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let loss = Loss::of(view, namespace, view.take(namespace, |d| d.reason == "IP_RPFILTER"), &[COUNTER]);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let largest = loss.taken.groups.iter().max_by_key(|g| g.packets);
    let came_in = largest.map(|g| g.samples.first().map_or(g.interface, |s| s.came_in).max(g.interface));
    let interface = came_in.map(|index| name_of(namespace, index));
    let answer = largest.and_then(|g| g.samples.iter().find_map(|s| lookup(namespace, s)));
    let example = loss.taken.example();
    finding.object = interface.clone().unwrap_or_default();
    let at = interface.as_ref().map_or(String::new(), |i| format!(" on {i}"));
    let from = such_as(example);
    finding.summary = format!(
        "The reverse path filter{at} dropped {} packets{from}: the way back to their source is another one.",
        loss.packets
    );
    finding.evidence.extend(way_back(namespace, answer));
    let setting = interface.as_ref().map(|i| format!("net.ipv4.conf.{}.rp_filter", in_sysctl(i)));
    for name in ["net.ipv4.conf.all.rp_filter"].into_iter().chain(setting.as_deref()) {
        if let Some(value) = namespace.setting(name) {
            finding.seen(EvidenceSource::Settings, format!("{name} = {value}"));
        }
    }
    if let Some(setting) = setting {
        finding.fixes = fixes(namespace, &setting, answer, &finding.object);
    }
    Some(finding)
}

fn way_back(namespace: &Namespace, answer: Option<&Lookup>) -> Option<Fact> {
    let answer = answer?;
    let text = match answer.return_interface {
        0 => format!("this host has no route back to {}", answer.source),
        index => format!(
            "they came in through {}, and an answer to {} would leave through {}",
            name_of(namespace, answer.came_in),
            answer.source,
            name_of(namespace, index)
        ),
    };
    Some(Fact::seen(EvidenceSource::Routes, text))
}

fn fixes(namespace: &Namespace, setting: &str, answer: Option<&Lookup>, interface: &str) -> Vec<Fix> {
    let now = namespace.setting(setting).unwrap_or(0);
    // The greater of both counts: 2 on the interface wins over 1 everywhere.
    let loose = Fix::set(
        "loose mode on this interface",
        "forged sources that have some route pass; sources without any route are still refused",
        vec![Setting::new(setting, now, 2, "packets were lost to strict mode in the window")],
    );
    let Some(answer) = answer else { return vec![loose] };
    let network = host_network(answer.source);
    let dev = &interface;
    let route = Fix::new(
        "give the source a route back through the interface it comes in by",
        "answers take that way, too",
        [sh!("ip route add {} via NEXT_HOP dev {}", network, dev)],
        [sh!("ip route del {} via NEXT_HOP dev {}", network, dev)],
    );
    // Without any way back, loose mode refuses as well.
    if answer.return_interface == 0 { vec![route] } else { vec![loose, route] }
}

fn recipes() -> Vec<Recipe> {
    let traffic = vec![Traffic::udp("198.19.0.2:7000", 100, 300, 4)];
    // The initiator sends from an address whose way back, for the gateway, is not there, or is another one.
    let source =
        "ip addr add 198.51.100.2/32 dev lo; ip route replace default via $GATEWAY_INSIDE src 198.51.100.2";
    let gateway = |script: &str| vec![Step::initiator(source), Step::gateway(script)];
    vec![
        Recipe::named("no-way-back", gateway("sysctl -qw net.ipv4.conf.inside.rp_filter=1"), traffic.clone()),
        Recipe::named(
            "other-way-back",
            gateway(
                "sysctl -qw net.ipv4.conf.inside.rp_filter=1; ip route add 198.51.100.0/24 via $RESPONDER",
            ),
            traffic,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{
        INSIDE, OUTSIDE, answer, answered, blind, count, datagram, drops, healthy, set,
    };
    use super::*;
    use crate::evidence::{Evidence, RouteOutcome};
    use crate::finding::Confidence;

    fn case(back: u32) -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.51.100.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("IP_RPFILTER", "ip_rcv_finish_core", 250, std::slice::from_ref(&sample)));
        let lookup = Lookup { return_interface: back, ..answer(&sample, RouteOutcome::Refused, 0) };
        answered(&mut evidence, lookup);
        count(&mut evidence, COUNTER, 250);
        set(&mut evidence, "net.ipv4.conf.all.rp_filter", "0");
        set(&mut evidence, "net.ipv4.conf.inside.rp_filter", "1");
        evidence
    }

    #[test]
    fn loose_mode_helps_only_where_there_is_a_way_back() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(OUTSIDE)));
        assert_eq!((found[0].confidence, found[0].object.as_str()), (Confidence::High, "inside"));
        assert_eq!(found[0].fixes[0].commands, ["sysctl -w net.ipv4.conf.inside.rp_filter=2"]);
        assert_eq!(found[0].fixes[0].tune[0].now, "1");
        let found = (CAUSE.examine)(&EvidenceView::of(&case(0)));
        assert!(found[0].fixes[0].commands[0].starts_with("ip route add 198.51.100.2/32"));
        assert_eq!(found[0].fixes.len(), 1);
    }

    #[test]
    fn the_counter_alone_convicts_and_martians_do_not() {
        let found = (CAUSE.examine)(&EvidenceView::of(&blind(case(OUTSIDE))));
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::Medium));
        let mut martian = healthy();
        let sample = datagram("127.0.0.5", "198.19.0.2", INSIDE);
        martian.drops.push(drops("IP_LOCALNET", "ip_rcv_finish_core", 250, &[sample]));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&martian)), []);
    }
}
