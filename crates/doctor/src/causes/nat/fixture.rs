//! A gateway and a table of `weir nat`, made by hand, and the causes found with them.

use std::net::IpAddr;

use crate::causes::EvidenceView;
use crate::evidence::{
    Backend, Evidence, Interface, Namespace, NatHost, NatRow, NatRule, NatSource, NatTable, Refused, Rule,
    RuleVerdict, TimeoutRule,
};
use crate::finding::{Confidence, Finding, Severity};

const OUTSIDE: &str = "203.0.113.7";

pub(super) fn row(id: &str) -> NatRow {
    NatRow {
        id: id.into(),
        rfc: 4787,
        requirement: "REQ-1".into(),
        level: "MUST".into(),
        partly: false,
        vanished: false,
        seen: "it fails".into(),
    }
}

fn rule(text: &str) -> Rule {
    Rule {
        backend: Backend::Nft,
        family: "ip".into(),
        table: "nat".into(),
        chain: "post".into(),
        handle: 7,
        position: 1,
        hooks: vec!["postrouting".into()],
        text: text.into(),
        comment: None,
        verdict: RuleVerdict::Other,
        packets: None,
        invalid: false,
        limit: false,
        set: None,
        random: false,
        logs: false,
        decided: (0, 0),
    }
}

fn masquerade() -> NatRule {
    NatRule {
        rule: rule("oifname out0 masquerade"),
        addresses: None,
        ports: None,
        random: false,
        persistent: false,
        protocols: NatRule::every_protocol(),
    }
}

fn drops(packet: &str, sure: bool) -> Refused {
    Refused {
        packet: packet.into(),
        hook: "forward".into(),
        sure,
        rule: Some(Rule { verdict: RuleVerdict::Drop, ..rule("meta l4proto icmp drop") }),
        backend: Backend::Nft,
        chain: ["ip", "filter", "forward"].map(str::to_owned),
    }
}

/// A gateway whose address the table saw, and these failing rows.
fn seen(rows: &[&str]) -> Evidence {
    let interface = Interface {
        name: "out0".into(),
        index: 2,
        addresses: vec![(OUTSIDE.parse().unwrap(), 24)],
        ..Interface::default()
    };
    let asked = ["error-in", "time-exceeded-in"].map(str::to_owned).to_vec();
    let host = NatHost { rules: vec![masquerade()], asked, ..NatHost::default() };
    let settings = [("udp_timeout", "30"), ("tcp_timeout_close", "10"), ("udp_timeout_stream", "300")]
        .map(|(name, value)| (format!("net.netfilter.nf_conntrack_{name}"), value.to_owned()));
    let namespace = Namespace {
        id: 1,
        name: "gateway".into(),
        own: true,
        interfaces: vec![interface],
        settings: settings.into(),
        nat: Some(host),
        ..Namespace::default()
    };
    let table = NatTable {
        source: NatSource::Check,
        subject: "as 192.0.2.1:9347 saw it".into(),
        time: String::new(),
        failing: rows.iter().map(|id| row(id)).collect(),
        inside: Some("10.0.0.2:40000".parse().unwrap()),
        server: Some("192.0.2.1:9".parse().unwrap()),
        outside: vec![OUTSIDE.parse().unwrap()],
        changes_address: false,
        ended: [("unanswered".to_owned(), (29.9, 30.2)), ("tcp_reset_in".to_owned(), (0.0, 10.2))].into(),
    };
    Evidence { window_s: 1.0, namespaces: vec![namespace], nat: Some(table), ..Evidence::default() }
}

fn host(evidence: &mut Evidence) -> &mut NatHost {
    evidence.namespaces[0].nat.as_mut().unwrap()
}

fn set(evidence: &mut Evidence, name: &str, value: &str) {
    evidence.namespaces[0].settings.insert(name.into(), value.into());
}

/// Findings about the table.
fn found(evidence: &Evidence) -> Vec<Finding> {
    super::CAUSES.iter().flat_map(|cause| (cause.examine)(&EvidenceView::of(evidence))).collect()
}

#[track_caller]
fn only(evidence: &Evidence, cause: &str) -> Finding {
    let mut all = found(evidence);
    assert_eq!(all.iter().map(|f| f.cause.as_str()).collect::<Vec<_>>(), [cause]);
    all.remove(0)
}

#[test]
fn a_time_that_agrees_with_a_setting_is_the_settings() {
    let mut evidence = seen(&["udp-idle-unanswered", "tcp-idle-reset-in"]);
    let finding = only(&evidence, "nat-timers-short");
    assert_eq!((finding.severity, finding.confidence), (Severity::Warning, Confidence::High));
    assert_eq!(finding.fixes[0].tune[0].proposed, "300");
    // A rule's own time comes before the setting.
    host(&mut evidence).timeouts = vec![TimeoutRule {
        rule: rule("ct timeout set hasty"),
        object: "hasty".into(),
        protocol: 17,
        seconds: [("udp_timeout".to_owned(), 30)].into(),
    }];
    let finding = only(&evidence, "nat-timers-short");
    assert!(finding.evidence.iter().any(|f| f.text.contains("object hasty of 30 s")), "{finding:#?}");
    // Settings as the RFC asks for: another NAT forgets.
    host(&mut evidence).timeouts.clear();
    set(&mut evidence, "net.netfilter.nf_conntrack_udp_timeout", "300");
    set(&mut evidence, "net.netfilter.nf_conntrack_tcp_timeout_close", "240");
    assert_eq!(only(&evidence, "nat-elsewhere").severity, Severity::Warning);
    // 120 s are too short as well, and do not end a mapping after 30 s.
    set(&mut evidence, "net.netfilter.nf_conntrack_udp_timeout", "120");
    only(&evidence, "nat-elsewhere");
}

/// A rule's own times are those of its protocol; one whose time is unknown is a suspect with low confidence.
#[test]
fn times_of_a_rule_are_for_its_protocol() {
    let mut evidence = seen(&["udp-idle-unanswered"]);
    set(&mut evidence, "net.netfilter.nf_conntrack_udp_timeout", "300");
    let policy = |protocol: u8, seconds: &[(&str, u64)]| TimeoutRule {
        rule: Rule { backend: Backend::IptablesLegacy, ..rule("-A PREROUTING -p udp -j CT") },
        object: "hasty".into(),
        protocol,
        seconds: seconds.iter().map(|(name, s)| ((*name).to_owned(), *s)).collect(),
    };
    for (timeout, cause, confidence) in [
        (policy(17, &[("udp_timeout", 30)]), "nat-timers-short", Confidence::High),
        (policy(17, &[("udp_timeout_stream", 300)]), "nat-timers-short", Confidence::Low),
        (policy(0, &[]), "nat-timers-short", Confidence::Low),
        (policy(17, &[("udp_timeout", 200)]), "nat-elsewhere", Confidence::Medium),
        (policy(6, &[]), "nat-elsewhere", Confidence::Medium),
    ] {
        host(&mut evidence).timeouts = vec![timeout];
        let finding = only(&evidence, cause);
        if cause == "nat-timers-short" {
            assert_eq!(finding.confidence, confidence, "{finding:#?}");
        }
    }
}

/// Connection tracking has settings of its own for ICMPv6 and for fragments of IPv6.
#[test]
fn settings_of_ipv6_explain_rows_of_ipv6() {
    let mut evidence = seen(&["icmp-query-idle", "udp-fragments-in-order"]);
    let table = evidence.nat.as_mut().unwrap();
    (table.inside, table.server) = ("[fd00:1::2]:40000".parse().ok(), "[fd00:3::2]:9".parse().ok());
    table.ended.insert("icmp".into(), (29.9, 30.2));
    for (name, value) in [("nf_conntrack_icmp_timeout", "30"), ("nf_conntrack_icmpv6_timeout", "60")] {
        set(&mut evidence, &format!("net.netfilter.{name}"), value);
    }
    set(&mut evidence, "net.ipv4.ipfrag_high_thresh", "1");
    only(&evidence, "nat-elsewhere");
    set(&mut evidence, "net.netfilter.nf_conntrack_icmpv6_timeout", "30");
    set(&mut evidence, "net.netfilter.nf_conntrack_frag6_high_thresh", "1");
    let found = found(&evidence);
    let names: Vec<&str> = found.iter().flat_map(|f| &f.fixes[0].tune).map(|s| s.name.as_str()).collect();
    let expected =
        ["net.netfilter.nf_conntrack_icmpv6_timeout", "net.netfilter.nf_conntrack_frag6_high_thresh"];
    assert_eq!(names, expected);
}

/// Over most paths of IPv6 nothing translates: the rules of a host that forwards still refuse packets.
#[test]
fn rules_of_a_router_are_named_on_a_path_without_nat() {
    let mut evidence = seen(&["icmp-error-in", "tcp-unsolicited-syn"]);
    host(&mut evidence).rules.clear();
    host(&mut evidence).refused = vec![drops("error-in", true)];
    set(&mut evidence, "net.ipv6.conf.all.forwarding", "1");
    only(&evidence, "nat-elsewhere");
    let table = evidence.nat.as_mut().unwrap();
    table.inside = "[fd00:1::2]:40000".parse().ok();
    table.outside = vec!["fd00:1::2".parse().unwrap()];
    let causes = |evidence: &Evidence| found(evidence).into_iter().map(|f| f.cause).collect::<Vec<_>>();
    // The SYN is answered by the inside host.
    assert_eq!(causes(&evidence), ["nat-packets-dropped", "nat-elsewhere"]);
    set(&mut evidence, "net.ipv6.conf.all.forwarding", "0");
    assert_eq!(causes(&evidence), ["nat-elsewhere"]);
}

/// A rule that translates other connections is not to blame.
#[test]
fn rules_for_other_connections_are_not_named() {
    let mut evidence = seen(&["udp-mapping"]);
    host(&mut evidence).rules[0] = NatRule { random: true, protocols: vec!["tcp".into()], ..masquerade() };
    only(&evidence, "nat-elsewhere");
    host(&mut evidence).rules[0].protocols = vec!["udp".into()];
    only(&evidence, "nat-ports-drawn");
    evidence.nat.as_mut().unwrap().changes_address = true;
    let addresses: Option<(IpAddr, IpAddr)> =
        Some((OUTSIDE.parse().unwrap(), "203.0.113.9".parse().unwrap()));
    host(&mut evidence).rules[0] = NatRule { addresses, protocols: vec!["tcp".into()], ..masquerade() };
    only(&evidence, "nat-elsewhere");
    host(&mut evidence).rules[0].protocols = vec!["udp".into()];
    only(&evidence, "nat-address-pool");
}

#[test]
fn ports_and_addresses_are_those_of_the_rule() {
    let mut evidence = seen(&["udp-mapping", "udp-parity"]);
    only(&evidence, "nat-elsewhere");
    host(&mut evidence).rules[0].random = true;
    assert!(only(&evidence, "nat-ports-drawn").fixes[0].commands.iter().any(|c| c.contains("replace rule")));
    host(&mut evidence).rules[0] = NatRule { ports: Some((1024, 2048)), ..masquerade() };
    only(&evidence, "nat-ports-drawn");
    host(&mut evidence).rules[0].rule.backend = Backend::IptablesLegacy;
    assert!(only(&evidence, "nat-ports-drawn").fixes[0].by_hand.is_some());

    let mut evidence = seen(&["udp-mapping", "tcp-pooling"]);
    evidence.nat.as_mut().unwrap().changes_address = true;
    let addresses: Option<(IpAddr, IpAddr)> =
        Some((OUTSIDE.parse().unwrap(), "203.0.113.9".parse().unwrap()));
    host(&mut evidence).rules[0] = NatRule { addresses, ..masquerade() };
    only(&evidence, "nat-address-pool");
    host(&mut evidence).rules[0].persistent = true;
    only(&evidence, "nat-elsewhere");
}

#[test]
fn packets_that_vanished_are_those_of_a_rule() {
    let mut evidence = seen(&["icmp-error-in"]);
    evidence.nat.as_mut().unwrap().failing[0].vanished = true;
    only(&evidence, "nat-elsewhere");
    host(&mut evidence).refused = vec![drops("error-in", true)];
    assert_eq!(only(&evidence, "nat-packets-dropped").confidence, Confidence::High);
    host(&mut evidence).refused = vec![drops("error-in", false)];
    assert_eq!(only(&evidence, "nat-packets-dropped").confidence, Confidence::Low);
    // Rules that were not asked prove nothing, and a packet that vanished is no fault of this host then.
    host(&mut evidence).refused.clear();
    host(&mut evidence).asked.clear();
    assert_eq!(found(&evidence), []);
}

#[test]
fn the_kernels_own_rows_are_a_note() {
    let mut evidence = seen(&["udp-hairpin", "udp-mapping"]);
    evidence.nat.as_mut().unwrap().failing[1].partly = true;
    assert_eq!(only(&evidence, "nat-kernel-limit").severity, Severity::Note);
    let evidence = seen(&["tcp-unsolicited-syn"]);
    assert!(only(&evidence, "nat-syn-answered").fixes[0].commands[0].ends_with("--silent-syn out0"));
    let mut evidence = seen(&["udp-fragments-in-order"]);
    set(&mut evidence, "net.ipv4.ipfrag_high_thresh", "1");
    assert_eq!(only(&evidence, "nat-fragments-dropped").fixes[0].tune[0].proposed, "4194304");
}

#[test]
fn hosts_without_nat_or_without_sight_say_so() {
    let mut evidence = seen(&["udp-hairpin"]);
    host(&mut evidence).rules.clear();
    assert!(only(&evidence, "nat-elsewhere").evidence[0].text.contains("no rule of this host translates"));
    evidence.namespaces[0].nat = None;
    let finding = only(&evidence, "nat-elsewhere");
    assert_eq!((finding.confidence, finding.severity), (Confidence::Low, Severity::Note));
    // Without a table, and with one that fails at nothing, there is nothing to find.
    assert_eq!(found(&seen(&[])), []);
    evidence.nat = None;
    assert_eq!(found(&evidence), []);
}

/// Each id is one of `weir nat rows`.
#[test]
fn rows_exist() {
    let all: Vec<&str> = weir_nat::rows::all().map(|row| row.id).collect();
    let timers = super::rows::TIMERS.iter().map(|timer| timer.row);
    let packets = super::rows::PACKETS.iter().map(|(row, _)| *row);
    let others =
        [super::rows::PORTS, super::rows::ADDRESSES, super::rows::FRAGMENTS, &[super::rows::UNSOLICITED]];
    let limits = super::rows::LIMITS.iter().flat_map(|limit| limit.rows.iter().copied());
    let others = others.into_iter().flatten().copied();
    for id in timers.chain(packets).chain(others).chain(limits) {
        assert!(all.contains(&id), "{id}");
    }
}
