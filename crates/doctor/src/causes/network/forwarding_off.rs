//! A packet for another host reached a host that does not forward.

use super::ipv6;
use super::ways::{Loss, in_sysctl, name_of, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{DropGroup, EvidenceSource, Namespace};
use crate::finding::{Finding, Fix, Setting};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "forwarding-off",
    title: "packets for others, and forwarding is off",
    about: "A Linux host forwards packets between interfaces only if forwarding is on (`net.ipv4.ip_forward`, \
            `net.ipv6.conf.all.forwarding`, and for IPv4 `net.ipv4.conf.INTERFACE.forwarding`). If it is off, the kernel \
            drops every packet that is not for one of its own addresses, and sends no error. Settings are often lost by a \
            reboot, by `sysctl --system`, or by a network manager that sets an interface up anew.",
    must: &[
        "packets dropped as IP_INADDRERRORS, or InAddrErrors grows",
        "forwarding is off for the interface they came in by",
    ],
    should: &["both at once, by the same number"],
    must_not: &["forwarding is on everywhere"],
    lookalikes: &[
        (
            "no-route",
            "forwarding is on, and the kernel counts InNoRoutes and answers with ICMP network unreachable",
        ),
        ("blackhole-route", "no counter grows at all, or an ICMP error goes back"),
    ],
    remedy: "If the host is meant to be a router, NAT instance or Docker host, switch forwarding on, and write it to a \
             file in /etc/sysctl.d. If it is not, find the host that uses it as a router: a wrong route or gateway address \
             on another host.",
    sources: &[
        "net/ipv4/route.c: ip_error",
        "net/ipv6/ip6_output.c: ip6_forward",
        "Documentation/networking/ip-sysctl.rst",
    ],
    recipes,
    ..Cause::of(Group::Network, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.namespaces().flat_map(|n| [in_family(view, n, 4), in_family(view, n, 6)]).flatten().collect()
}

fn in_family(view: &EvidenceView<'_>, namespace: &Namespace, family: u8) -> Option<Finding> {
    let (ethertype, location, counter) = match family {
        4 => (0x0800, "ip_error", "ip.InAddrErrors"),
        _ => (0x86dd, "ip6_forward", "ip6.InAddrErrors"),
    };
    let is_mine = |d: &DropGroup| {
        d.ethertype == ethertype && d.reason == "IP_INADDRERRORS" && (d.location == location || family == 6)
    };
    let loss = Loss::of(view, namespace, view.take(namespace, is_mine), &[counter]);
    let by = loss.taken.groups.first().map(|g| g.interface);
    let (setting, value) = switched_off(namespace, family, by)?;
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let at = by.map_or(String::new(), |index| format!(" through {}", name_of(namespace, index)));
    finding.object = setting.clone();
    let example = such_as(loss.taken.example());
    finding.summary = format!(
        "{} packets of IPv{family} for others came{at}{example}, and were dropped: this host does not forward them.",
        loss.packets
    );
    finding.seen(EvidenceSource::Settings, format!("{setting} = {value}"));
    finding.fixes.push(switch_on(&setting, &value));
    Some(finding)
}

/// The setting that says no, with its value.
fn switched_off(namespace: &Namespace, family: u8, by: Option<u32>) -> Option<(String, String)> {
    let all = if family == 4 { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
    let off =
        |name: &str| namespace.setting(name).filter(|v| *v == 0).map(|v| (name.to_owned(), v.to_string()));
    // Each interface has its own switch, which the general one sets; IPv6 looks at the general one alone when it forwards.
    let own = || {
        let interface = namespace.interface(by?)?;
        off(&format!("net.ipv4.conf.{}.forwarding", in_sysctl(&interface.name)))
    };
    off(all).or_else(|| if family == 4 { own() } else { None })
}

fn switch_on(setting: &str, now: &str) -> Fix {
    Fix::set(
        "switch forwarding on, if this host is to be a router",
        "the host then passes on whatever its firewall's forward chain lets through; IPv6 routers no longer take \
               addresses from router advertisements unless accept_ra is 2",
        vec![Setting::new(setting, now, 1, "packets for others came and were dropped")],
    )
}

fn recipes() -> Vec<Recipe> {
    let traffic = vec![Traffic::udp("198.19.0.2:7000", 100, 500, 4)];
    let run = |script: &str| vec![Step::gateway(script)];
    vec![
        Recipe::named("all", run("sysctl -qw net.ipv4.ip_forward=0"), traffic.clone()),
        Recipe::named("interface", run("sysctl -qw net.ipv4.conf.inside.forwarding=0"), traffic),
        Recipe::named(
            "ipv6",
            ipv6::with("sysctl -qw net.ipv6.conf.all.forwarding=0"),
            vec![ipv6::udp(ipv6::RESPONDER, 100, false)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, blind, count, datagram, drops, healthy, set};
    use super::*;
    use crate::evidence::Evidence;
    use crate::finding::{Confidence, Severity};

    fn case() -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("IP_INADDRERRORS", "ip_error", 900, &[sample]));
        count(&mut evidence, "ip.InAddrErrors", 900);
        evidence
    }

    #[test]
    fn the_setting_that_says_no_is_named() {
        let mut evidence = case();
        set(&mut evidence, "net.ipv4.ip_forward", "0");
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].confidence, found[0].severity), (Confidence::High, Severity::Critical));
        assert_eq!(found[0].fixes[0].commands, ["sysctl -w net.ipv4.ip_forward=1"]);
        assert!(found[0].summary.contains("198.19.0.2"));

        set(&mut evidence, "net.ipv4.ip_forward", "1");
        set(&mut evidence, "net.ipv4.conf.inside.forwarding", "0");
        assert_eq!(examine(&EvidenceView::of(&evidence))[0].object, "net.ipv4.conf.inside.forwarding");
    }

    #[test]
    fn without_drops_in_sight_the_counter_convicts() {
        let mut evidence = blind(case());
        set(&mut evidence, "net.ipv4.ip_forward", "0");
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::Medium));
        assert_eq!(found[0].missing, [EvidenceSource::Drops]);
    }

    #[test]
    fn a_router_that_forwards_is_not_accused() {
        assert_eq!(examine(&EvidenceView::of(&case())), []);
        let mut quiet = healthy();
        set(&mut quiet, "net.ipv4.ip_forward", "0");
        assert_eq!(examine(&EvidenceView::of(&quiet)), []);
    }
}
