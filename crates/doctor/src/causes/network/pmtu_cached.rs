//! A path MTU that was learned keeps packets short.

use super::ways::{counter_as_fact, ip, name_of};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{Words, sh};
use crate::evidence::{EvidenceSource, Namespace, RememberedMtu};
use crate::finding::{Confidence, Fact, Finding, Fix, Setting, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "pmtu-cached",
    title: "a remembered path MTU that is very small",
    about: "The kernel remembers the path MTU that a router reports for ten minutes for each destination. If the path \
            improves, or if the error was forged, the host keeps sending short packets until then: TCP sends small \
            segments, and datagrams leave as fragments, any of which may be lost. Connections that move to another path \
            suffer most.",
    must: &[
        "the kernel remembers a path MTU far below the interface's",
        "packets to that destination are being sent: fragments are made, or a connection has that path MTU",
    ],
    should: &["the path MTU is below what any common tunnel leaves (1280 bytes)"],
    must_not: &["the route itself has that MTU"],
    lookalikes: &[
        ("fragmentation-needed", "the learning itself: packets are dropped, and the sender gets an error"),
        ("mss-small", "TCP's segments are small because the other side asked for that"),
    ],
    remedy: "Forget what was learned (`ip route flush cache`) and see whether it comes back. If it does, some router on \
             the path reports it again: find the link with that MTU. The setting `net.ipv4.route.min_pmtu` is the lower \
             bound for a learned path MTU.",
    sources: &["RFC 1191 section 6.3", "RFC 8899 section 3", "net/ipv4/route.c: __ip_rt_update_pmtu"],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// The smallest MTU that common tunnels leave: the minimum MTU of IPv6 (RFC 8200 section 5).
const USUAL: u32 = 1280;
/// Less than the MTU of any link that carries TCP well today; a smaller reported MTU is forged or a mistake.
const LEAST: u64 = 1000;
/// Fragments per second from which the host is seen to cut for it.
const CUTTING_PER_SECOND: f64 = 10.0;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let routes = namespace.routes.as_ref()?;
    let small = |r: &&RememberedMtu| namespace.interface(r.interface).is_none_or(|i| r.mtu < i.mtu);
    let remembered: Vec<&RememberedMtu> = routes.remembered.iter().filter(small).collect();
    let created = namespace.grew("ip.FragCreates") + namespace.grew("ip6.FragCreates");
    let cutting = created as f64 >= CUTTING_PER_SECOND * view.evidence.window_s;
    let connections = namespace.sockets.as_ref().map_or(&[][..], |s| &s.tcp);
    let in_use = |r: &&&RememberedMtu| {
        connections
            .iter()
            .any(|c| c.remote.ip() == r.destination && c.pmtu == r.mtu && c.segments_out.change() > 0)
    };
    let used = remembered.iter().find(in_use).copied();
    let worst = used.or_else(|| remembered.first().copied().filter(|_| cutting))?;
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    let extreme = worst.mtu < USUAL;
    finding.severity = if extreme { Severity::Warning } else { Severity::Note };
    finding.confidence =
        if used.is_some() || remembered.len() == 1 { Confidence::High } else { Confidence::Medium };
    finding.object = worst.destination.to_string();
    let through = name_of(namespace, worst.interface);
    let link = namespace
        .interface(worst.interface)
        .map_or(String::new(), |i| format!(", though {through} carries {}", i.mtu));
    finding.summary = format!(
        "Packets to {} are limited to {} bytes, a path MTU that a router once reported{link}.",
        worst.destination, worst.mtu
    );
    finding.impact =
        namespace.interface(worst.interface).map_or(0.0, |i| 1.0 - f64::from(worst.mtu) / f64::from(i.mtu));
    let listed = remembered.iter().take(4).map(|r| {
        let text = format!("remembered for {}: {} bytes, for {} s more", r.destination, r.mtu, r.expires_s);
        Fact::seen(EvidenceSource::Routes, text)
    });
    finding.evidence = listed.collect();
    if routes.remembered_total > 4 {
        finding.seen(
            EvidenceSource::Routes,
            format!("{} path MTUs are remembered in all", routes.remembered_total),
        );
    }
    let counters = ["ip.FragOKs", "ip.FragCreates", "ip6.FragCreates"];
    finding.evidence.extend(counters.iter().filter_map(|c| counter_as_fact(namespace, c)));
    finding.missing = view.missing(namespace, &[EvidenceSource::Sockets]);
    finding.fixes = fixes(namespace, worst);
    Some(finding)
}

fn fixes(namespace: &Namespace, worst: &RememberedMtu) -> Vec<Fix> {
    // A packet of full size that may not be fragmented makes the path tell again: less the IP header and the 8 bytes of ICMP.
    let headers = if worst.destination.is_ipv4() { 28 } else { 48 };
    let full = namespace.interface(worst.interface).map_or(1500, |i| i.mtu).saturating_sub(headers);
    let mut fixes = vec![Fix::new(
        "forget what was learned",
        "if the path is as narrow as that, a packet or a few for each destination are lost to learn it again",
        [sh!("{} route flush cache", Words::of(ip(worst.destination)))],
        [sh!("ping -c 3 -M do -s {} {}", full, worst.destination)],
    )];
    let name = "net.ipv4.route.min_pmtu";
    let now = namespace.setting(name).filter(|now| worst.destination.is_ipv4() && *now < LEAST);
    fixes.extend(now.map(|now| {
        Fix::set(
            format!("accept no path MTU below {LEAST} bytes"),
            "a path that is narrower gets its packets in fragments",
            vec![Setting::new(name, now, LEAST, "a path MTU was learned that no common link has")],
        )
    }));
    fixes
}

fn recipes() -> Vec<Recipe> {
    let udp = |rate| Traffic::datagrams(7000, UdpMode::Sink, 1400, rate, 4);
    vec![Recipe {
        at: LabHost::Initiator,
        setup: vec![
            Step::gateway("ip link set outside mtu 700"),
            Step::Before(udp(100)),
            Step::gateway("ip link set outside mtu 1500"),
        ],
        traffic: udp(200),
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{OUTSIDE, count, healthy};
    use super::*;
    use crate::evidence::Evidence;

    fn case(mtu: u32) -> Evidence {
        let mut evidence = healthy();
        let remembered =
            RememberedMtu { destination: [198, 19, 0, 2].into(), mtu, interface: OUTSIDE, expires_s: 595 };
        let routes = evidence.namespaces[0].routes.as_mut().unwrap();
        (routes.remembered, routes.remembered_total) = (vec![remembered], 1);
        evidence
    }

    #[test]
    fn a_small_one_that_is_used_is_named() {
        let mut evidence = case(700);
        count(&mut evidence, "ip.FragCreates", 4000);
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!((found[0].severity, found[0].object.as_str()), (Severity::Warning, "198.19.0.2"));
        assert!((found[0].impact - (1.0 - 700.0 / 1500.0)).abs() < 1e-9);
        assert_eq!(found[0].fixes[0].commands, ["ip route flush cache"]);
        assert_eq!(found[0].fixes[0].undo, ["ping -c 3 -M do -s 1472 198.19.0.2"]);
    }

    #[test]
    fn usual_tunnels_are_a_note_and_what_nobody_uses_is_nothing() {
        let mut evidence = case(1492);
        count(&mut evidence, "ip.FragCreates", 4000);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence))[0].severity, Severity::Note);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&case(700))), []);
        let mut none = healthy();
        count(&mut none, "ip.FragCreates", 4000);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&none)), [], "fragments for the interface's own MTU");
    }
}
