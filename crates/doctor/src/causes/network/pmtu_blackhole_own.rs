//! This host's firewall drops the errors that path MTU discovery needs.

use weir_text::order;
use weir_wire::{Icmp, Ipv4, Ipv6};

use super::fragmentation_needed::{clamp, too_long};
use super::ipv6;
use super::ways::{Loss, counter_as_fact, groups_as_facts, lookup};
use crate::causes::{Cause, EvidenceView, Group, Taken};
use crate::command::nft::{self, nft};
use crate::command::{Words, iptables, sh};
use crate::evidence::{Backend, DropGroup, EvidenceSource, Namespace, Rule, RuleVerdict, Sample};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, TcpMode, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "pmtu-blackhole-own",
    title: "path MTU black hole, made by this host's firewall",
    about: "When a packet is too long for the next link, the router sends an ICMP error, and the sender makes its packets shorter. A \
            firewall that drops these errors (ICMP type 3 code 4, ICMPv6 type 2), often by a rule against all ICMP, makes a black \
            hole: connections are set up, small requests work, and everything long hangs until it times out. The errors may be \
            this host's own, on their way out, or come from a router further on and be on their way through or in.",
    must: &["ICMP errors `fragmentation needed` or `packet too big` are dropped by netfilter on this host"],
    should: &[
        "packets dropped as PKT_TOO_BIG, or FragFails grows, as often",
        "Ip.OutDiscards grows by the same number",
    ],
    must_not: &["the errors reach the senders"],
    lookalikes: &[
        ("fragmentation-needed", "the errors are sent and heeded: a packet or a few for each destination"),
        ("pmtu-blackhole-remote", "neither the loss nor the dropped errors are on this host"),
        ("nft-rule-drop", "the rule drops other packets than these errors"),
    ],
    remedy: "Let these errors through, before any rule that drops ICMP. If you cannot do that, clamp TCP's segment size to \
             the path MTU on this host, or let the senders probe for it (`net.ipv4.tcp_mtu_probing=1`).",
    sources: &["RFC 1191", "RFC 2923 section 2.1", "RFC 4890 section 4.3.1", "RFC 8201"],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// The length that an ICMP error tells the sender to keep to; `None` of any other packet.
fn told_mtu(sample: &Sample) -> Option<u32> {
    let icmp = match sample.header.first()? >> 4 {
        4 => {
            let (ip, rest) = Ipv4::read_quoted(&sample.header).ok()?;
            (ip.protocol == weir_wire::protocol::ICMP).then(|| Icmp::read_v4(rest).ok())?
        }
        _ => {
            let (ip, rest) = Ipv6::read_quoted(&sample.header).ok()?;
            (ip.next_header == weir_wire::protocol::ICMPV6).then(|| Icmp::read_v6(rest).ok())?
        }
    }?;
    if let Icmp::TooBig { mtu, .. } = icmp { Some(mtu) } else { None }
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let by_rule = |d: &DropGroup| d.reason == "NETFILTER_DROP" && matches!(d.protocol, 1 | 58);
    let errors = view.take(namespace, by_rule).share(false, |_, s| told_mtu(s).is_some());
    let long = too_long(view, namespace);
    if errors.is_empty() {
        return (!view.sees_drops()).then(|| by_counters(view, namespace, &long)).flatten();
    }
    let made_here = errors.samples().any(|s| told_mtu(s).is_some() && s.came_in == 0);
    let mut loss = Loss { packets: errors.packets, claims: errors.claims.clone(), ..Loss::default() };
    if made_here {
        loss.packets += long.packets;
        loss.claims.extend(long.claims.iter().cloned());
    }
    loss.taken = errors;
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    // All that is long is lost, however much of the traffic that is just now.
    finding.severity = finding.severity.max(Severity::Warning);
    if made_here {
        finding.evidence.extend(groups_as_facts(&long.taken));
        finding
            .evidence
            .extend(["ip.FragFails", "ip6.FragFails"].iter().filter_map(|c| counter_as_fact(namespace, c)));
    }
    let rules = rules(namespace, &loss.taken);
    finding.confidence = if made_here || !rules.is_empty() { Confidence::High } else { Confidence::Medium };
    describe(namespace, &loss.taken, made_here, &rules, &mut finding);
    finding.fixes = fixes(namespace, &loss.taken, &rules, made_here);
    finding.missing.extend(view.missing(namespace, &[EvidenceSource::Rules]));
    Some(finding)
}

fn describe(
    namespace: &Namespace,
    errors: &Taken<'_>,
    made_here: bool,
    rules: &[&Rule],
    finding: &mut Finding,
) {
    let sample = errors.samples().find(|s| told_mtu(s).is_some());
    let to = sample.and_then(Sample::tuple);
    let told = sample.and_then(told_mtu).map_or(String::new(), |mtu| format!(" that {mtu} bytes fit"));
    let whom = to.map_or("the sender".to_owned(), |t| t.destination.to_string());
    let whose = match (made_here, to) {
        (true, _) => "this host's own errors".to_owned(),
        (false, Some(t)) => format!("errors of {}", t.source),
        (false, None) => "errors of a router further on".to_owned(),
    };
    finding.object = rules.first().map_or_else(|| whom.clone(), |r| r.text.clone());
    finding.summary = format!(
        "The firewall drops {whose} that tell {whom}{told}: longer packets are lost, again and again ({} errors).",
        errors.packets
    );
    let facts = rules.iter().take(3).map(|r| {
        Fact::seen(EvidenceSource::Rules, format!("rule in {} {} {}: {}", r.family, r.table, r.chain, r.text))
    });
    finding.evidence.extend(facts);
    if let Some(l) = sample.and_then(|s| lookup(namespace, s)).filter(|l| l.interface != 0) {
        let through = super::ways::name_of(namespace, l.interface);
        finding.seen(EvidenceSource::Routes, format!("the error would have left through {through}"));
    }
}

/// Drops are out of sight: as many errors were thrown away on their way out as packets were too long.
fn by_counters(view: &EvidenceView<'_>, namespace: &Namespace, long: &Loss<'_>) -> Option<Finding> {
    let (failed, discarded) = (namespace.grew("ip.FragFails"), namespace.grew("ip.OutDiscards"));
    if failed == 0 || discarded < failed || discarded > failed + failed / 4 {
        return None;
    }
    let mut finding = long.finding(view, CAUSE.id, namespace)?;
    finding.evidence.extend(counter_as_fact(namespace, "ip.OutDiscards"));
    finding.confidence = Confidence::Low;
    finding.summary = format!(
        "{failed} packets were too long for the next link, and as many packets were dropped on their way out: a firewall \
         may drop the errors that tell the senders."
    );
    finding.fixes.push(clamp(None));
    Some(finding)
}

/// Rules that decided over the errors that were dropped, as far as that is known, the surest first.
fn rules<'a>(namespace: &'a Namespace, errors: &Taken<'_>) -> Vec<&'a Rule> {
    let Some(ruleset) = &namespace.rules else { return Vec::new() };
    let mine =
        |group| errors.claims.iter().any(|c| matches!(c, Claim::Drops { group: g, .. } if *g == group));
    let mut blamed: Vec<_> = ruleset.blame.iter().filter(|b| mine(b.group)).collect();
    order::by(&mut blamed, |a, b| b.share.total_cmp(&a.share));
    blamed
        .iter()
        .filter_map(|b| ruleset.rules.get(b.rule?))
        .filter(|r| r.verdict != RuleVerdict::Other)
        .collect()
}

fn fixes(namespace: &Namespace, errors: &Taken<'_>, rules: &[&Rule], made_here: bool) -> Vec<Fix> {
    let v6 = errors.groups.iter().any(|g| g.protocol == 58);
    let (nft, iptables) = if v6 {
        ("icmpv6 type packet-too-big", "-p icmpv6 --icmpv6-type packet-too-big")
    } else {
        (
            "icmp type destination-unreachable icmp code frag-needed",
            "-p icmp --icmp-type fragmentation-needed",
        )
    };
    let program = if v6 { "ip6tables" } else { "iptables" };
    let hook = if made_here { "OUTPUT" } else { "FORWARD" };
    let (command, undo) = match rules.first() {
        Some(r) if r.backend == Backend::Nft => (
            nft!("-e -a insert rule {} {} accept", nft::chain_of(r), nft),
            nft!("delete rule {} handle HANDLE_SHOWN_BY_THE_COMMAND_ABOVE", nft::chain_of(r)),
        ),
        Some(r) => {
            let program = iptables::program(r.backend, if v6 { "ip6" } else { "ip" });
            let (table, chain) = (iptables::Name(&r.table), iptables::Name(&r.chain));
            (
                sh!("{} -t {} -I {} {} -j ACCEPT", program, table, chain, Words::of(iptables)),
                sh!("{} -t {} -D {} {} -j ACCEPT", program, table, chain, Words::of(iptables)),
            )
        }
        None => (
            sh!("{} -I {} {} -j ACCEPT", program, hook, Words::of(iptables)),
            sh!("{} -D {} {} -j ACCEPT", program, hook, Words::of(iptables)),
        ),
    };
    let accept = Fix::new(
        "let these errors through",
        "none that is known: RFC 4890 asks for it; a forged error can at most make packets shorter",
        [command],
        [undo],
    );
    if namespace.grew("ip.ForwDatagrams") == 0 && !made_here {
        vec![accept]
    } else {
        vec![accept, clamp(None)]
    }
}

fn recipes() -> Vec<Recipe> {
    let narrow = |rules: &str| {
        vec![
            Step::gateway(format!("ip link set outside mtu 1280; {rules}")),
            Step::responder("ip link set eth0 mtu 1280"),
            // A responder that offers long segments, as one with a usual link would.
            Step::responder("ip route replace default via $GATEWAY_OUTSIDE advmss 1460"),
        ]
    };
    let bulk = vec![
        Traffic::TcpServer { port: 9001, backlog: 64, mode: TcpMode::Sink },
        Traffic::Bulk { to: "198.19.0.2:9001".into(), streams: 4, rate_bps: None },
        Traffic::Udp {
            from: LabHost::Initiator,
            to: "198.19.0.2:9001".into(),
            size: 1400,
            rate: 100,
            flows: 2,
            dont_fragment: true,
        },
    ];
    vec![
        Recipe {
            name: "output",
            setup: narrow(
                "nft 'add table ip f; add chain ip f o { type filter hook output priority 0; }; \
                 add rule ip f o icmp type destination-unreachable drop'",
            ),
            traffic: bulk.clone(),
            also: vec!["nft-rule-drop"],
            ..Recipe::default()
        },
        Recipe {
            name: "iptables",
            setup: narrow("iptables-nft -A OUTPUT -p icmp -j DROP"),
            traffic: bulk,
            needs: vec!["iptables-nft"],
            also: vec!["nft-rule-drop"],
            ..Recipe::default()
        },
        Recipe {
            name: "ipv6",
            setup: ipv6::with(
                "ip link set outside mtu 1280; nft 'add table ip6 f; add chain ip6 f o { type filter hook output priority 0; }; \
                 add rule ip6 f o icmpv6 type packet-too-big drop'",
            ),
            traffic: vec![ipv6::udp(ipv6::RESPONDER, 1400, true)],
            also: vec!["nft-rule-drop"],
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, blame, blind, count, datagram, drops, healthy, packet, rule};
    use super::*;
    use crate::evidence::{Evidence, Ruleset};

    /// Type 3 code 4 with an MTU of 1280, and the beginning of what was too long (RFC 1191 section 4).
    fn too_big(came_in: u32) -> Sample {
        let mut icmp = vec![3, 4, 0, 0, 0, 0, 0x05, 0x00];
        icmp.extend(datagram("198.18.0.2", "198.19.0.2", INSIDE).header);
        packet("198.18.0.1", "198.18.0.2", came_in, 1, &icmp)
    }

    fn case(error: &Sample) -> Evidence {
        let mut evidence = healthy();
        let long = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("PKT_TOO_BIG", "ip_forward", 300, &[long]));
        evidence.drops.push(drops("NETFILTER_DROP", "nft_do_chain", 300, std::slice::from_ref(error)));
        count(&mut evidence, "ip.FragFails", 300);
        count(&mut evidence, "ip.OutDiscards", 300);
        let rules = vec![rule("tcp dport 23 drop"), rule("icmp type destination-unreachable drop")];
        let blame = vec![blame(1, 1)];
        evidence.namespaces[0].rules = Some(Ruleset { rules, blame, ..Ruleset::default() });
        evidence
    }

    #[test]
    fn own_errors_and_what_was_too_long_belong_together() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(&too_big(0))));
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::High));
        assert_eq!(found[0].claims.len(), 2);
        assert_eq!(found[0].object, "icmp type destination-unreachable drop");
        assert!(found[0].summary.contains("1280 bytes fit"), "{}", found[0].summary);
        let command =
            "nft -e -a insert rule ip f o icmp type destination-unreachable icmp code frag-needed accept";
        assert_eq!(found[0].fixes[0].commands, [command]);
    }

    #[test]
    fn errors_on_their_way_through_claim_themselves_alone() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(&too_big(INSIDE))));
        assert_eq!(found[0].claims.len(), 1);
        assert!(found[0].summary.contains("errors of 198.18.0.1"), "{}", found[0].summary);
    }

    #[test]
    fn counters_in_step_are_a_hint() {
        let evidence = blind(case(&too_big(0)));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence))[0].confidence, Confidence::Low);
        let mut other = blind(healthy());
        count(&mut other, "ip.FragFails", 300);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&other)), []);
    }

    #[test]
    fn other_icmp_that_a_rule_drops_is_not_this() {
        let echo = packet("198.18.0.2", "198.19.0.2", INSIDE, 1, &[8, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&case(&echo))), []);
    }
}
