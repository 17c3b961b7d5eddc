//! A rule of nftables drops packets.

use super::attribution::{DropAttribution, Matter, attributions, is_of_nft};
use super::commands::fixes;
use super::report::{example, findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::nft;
use crate::evidence::EvidenceSource;
use crate::finding::{Claim, Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "nft-rule-drop",
    title: "a rule drops packets",
    about: "A rule of nftables, or of iptables over nftables, drops packets. The kernel has no statistic for this: unless \
            the rule has a counter, the only sign is packets that do not arrive. The doctor finds the rule by its counter. \
            If the rule has none, the doctor evaluates all rules for packets that it saw dropped, in the order of the \
            kernel.\n\n\
            Firewalls are there to drop packets. A rule that matches a port scan, or a little of the traffic, is only a \
            note. A rule that matches a large part of the forwarded traffic, or open connections, is a warning. If it is \
            intended, nothing is wrong.",
    must: &[
        "packets dropped as NETFILTER_DROP in nft_do_chain (before Linux 6.7: in nf_hook_slow)",
        "a rule with the verdict drop whose counter moved, or that the dropped packets match",
    ],
    should: &["counter and packets agree", "no other rule or policy can have dropped them"],
    must_not: &[
        "the rule asks for a limit, a full set, chance or `ct state invalid`: those are causes of their own",
    ],
    lookalikes: &[
        ("policy-drop", "no rule matches, and the chain's policy drops"),
        ("iptables-legacy-drop", "the packets end in nf_hook_slow, and the old iptables has rules"),
        ("rule-reject", "the sender gets an error, and fails at once"),
        ("bridge-netfilter", "the packets stay within one bridge"),
        ("conntrack-full", "the packets end in nf_hook_slow, and conntrack's `drop` grows"),
    ],
    yields_to: &["conntrack-invalid-dropped", "pmtu-blackhole-own", "asymmetric-path"],
    remedy: "Look at the rule and its comment. If it should not meet these packets, put a rule before it that accepts \
             them, or delete it. Docker, firewalld, ufw and similar programs rewrite their rules: change it there.",
    sources: &["net/netfilter/nf_tables_core.c: nft_do_chain", "nft(8)"],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let mut all = findings(view, CAUSE.id, Matter::Rule, |attribution, finding| {
        tell(attribution, finding);
        // The causes of connection tracking judge INVALID packets, if their statistics are visible.
        let judged = view.missing(attribution.namespace, &[EvidenceSource::ConntrackStatistics]).is_empty();
        if judged && attribution.rule.is_some_and(|r| r.invalid) {
            finding.severity = Severity::Note;
        }
    });
    all.extend(unknown(view));
    all
}

fn tell(attribution: &DropAttribution<'_>, finding: &mut Finding) {
    finding.summary = format!(
        "A rule of {} dropped {} packets{}: {}.",
        keeper(attribution),
        attribution.packets,
        service(attribution),
        attribution.rule.map(|r| r.text.as_str()).unwrap_or_default(),
    );
    finding.fixes = fixes(attribution, example(attribution));
}

/// Packets that rules threw away where no rule can be named.
fn unknown(view: &EvidenceView<'_>) -> Vec<Finding> {
    let kernel = &view.evidence.machine.kernel;
    let mut all = Vec::new();
    for namespace in view.namespaces() {
        // Before 6.7 a place that tells nothing may be anything.
        let taken = view.take(namespace, |d| {
            is_of_nft(d, kernel) && (d.location.starts_with("nft_") || d.reason != "NETFILTER_DROP")
        });
        let charged = attributions(view, namespace);
        let mut claims = taken.claims.clone();
        for claim in &mut claims {
            let Claim::Drops { group, packets } = claim else { continue };
            let of_group = |c: &Claim| match c {
                Claim::Drops { group: g, packets } if g == group => *packets,
                _ => 0,
            };
            *packets = packets.saturating_sub(charged.iter().flat_map(|c| &c.claims).map(of_group).sum());
        }
        claims.retain(|c| !matches!(c, Claim::Drops { packets: 0, .. }));
        let rest = super::report::packets_of(&claims);
        if rest == 0 {
            continue;
        }
        let mut finding = view.finding(CAUSE.id, namespace, rest);
        finding.severity = finding.severity.min(Severity::Warning);
        finding.confidence = Confidence::Low;
        finding.claims = claims;
        finding.missing = view.missing(namespace, &[EvidenceSource::Rules]);
        finding.summary =
            format!("Rules of nftables dropped {rest} packets; the rule could not be determined.");
        finding
            .seen(EvidenceSource::Drops, format!("{rest} packets dropped in {}()", taken.groups[0].location));
        finding.evidence.extend(taken.example_as_fact());
        finding.fixes.push(Fix::look(
            "see the rules; `nft monitor trace` names the one that a packet meets",
            [nft!("-a -t list ruleset")],
        ));
        all.push(finding);
    }
    all
}

/// Datagrams that the gateway forwards.
pub(super) fn datagrams(port: u16, flows: u32) -> Vec<Traffic> {
    Traffic::datagrams(port, UdpMode::Sink, 100, 500, flows)
}

/// The same by iptables over nftables.
pub(super) fn iptables(script: &str, traffic: Vec<Traffic>) -> Recipe {
    let program = "iptables-nft";
    Recipe { needs: vec![program], ..Recipe::named(program, gateway(script), traffic) }
}

/// Rules on the gateway.
pub(super) fn gateway(script: &str) -> Vec<Step> {
    vec![Step::gateway(script)]
}

fn recipes() -> Vec<Recipe> {
    let chain = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; };'";
    let rules = |rules: &str| gateway(&format!("{chain}\nnft '{rules}'"));
    let traffic = [datagrams(7001, 4), datagrams(7002, 4)].concat();
    vec![
        Recipe {
            setup: rules("add rule inet f forward udp dport 7002 drop comment \"forgotten\""),
            traffic: traffic.clone(),
            ..Recipe::default()
        },
        Recipe::named(
            "counted",
            rules("add rule inet f forward ip daddr 198.19.0.0/24 udp dport { 7002, 7003 } counter drop"),
            traffic.clone(),
        ),
        iptables("iptables-nft -A FORWARD -p udp --dport 7002 -j DROP", traffic),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, segment, udp};
    use super::*;
    use crate::evidence::{Backend, Evidence, Sample};

    fn found(evidence: &Evidence) -> Vec<Finding> {
        examine(&EvidenceView::of(evidence))
    }

    fn service() -> Vec<Sample> {
        (0..8).map(|n| segment(&format!("198.18.0.2:{}", 5000 + n), "198.19.0.2:80", 0x02)).collect()
    }

    #[test]
    fn a_rule_without_a_counter_is_named_with_what_undoes_it() {
        let mut firewall =
            Firewall::new().rule("tcp dport 80 drop").dropped(400, service()).blame(Some(0), 8);
        firewall.last().comment = Some("closed on Friday".into());
        let found = found(&firewall.evidence());
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        assert_eq!(found[0].object, "rule inet filter forward handle 11: tcp dport 80 drop");
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 400 }]);
        assert!(found[0].evidence.iter().any(|f| f.text.contains("closed on Friday")));
        let commands: Vec<&String> = found[0].fixes.iter().flat_map(|f| &f.commands).collect();
        assert!(
            commands[1]
                .starts_with("nft -e -a insert rule inet filter forward handle 11 ip saddr 198.18.0.2 ")
        );
        assert!(commands.iter().any(|c| c.ends_with("&& nft delete rule inet filter forward handle 11")));
    }

    #[test]
    fn counter_and_samples_together_are_surest() {
        let firewall = Firewall::new().rule("tcp dport 80 drop").counted(390).dropped(400, service());
        let found = found(&firewall.blame(Some(0), 8).evidence());
        assert_eq!(found[0].confidence, Confidence::High);
        // The ten that are not counted came between the two readings, and are no loss without a cause.
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 400 }]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn two_rules_share_a_group_as_their_samples_say() {
        let firewall =
            Firewall::new().rule("tcp dport 80 drop").rule("udp dport 53 drop").dropped(400, service());
        let mut evidence = firewall.blame(Some(0), 6).blame(Some(1), 2).evidence();
        evidence.namespaces[0].rules.as_mut().unwrap().blame[1].samples = vec![6, 7];
        let found = found(&evidence);
        let packets: Vec<u64> = found.iter().map(|f| super::super::report::packets_of(&f.claims)).collect();
        assert_eq!(packets, [300, 100]);
    }

    #[test]
    fn drops_without_rules_in_sight_are_told_as_far_as_can_be() {
        let mut firewall = Firewall::new().dropped(400, service());
        firewall.here().rules = None;
        firewall.here().blind.insert(EvidenceSource::Rules, "not permitted".into());
        let found = found(&firewall.evidence());
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::Low));
        assert_eq!(found[0].missing, [EvidenceSource::Rules]);
    }

    #[test]
    fn a_rule_that_cuts_open_connections_is_worse() {
        let open: Vec<Sample> = (0..8).map(|_| segment("198.18.0.2:5000", "198.19.0.2:80", 0x18)).collect();
        let firewall = Firewall::new().rule("tcp dport 80 drop").dropped(4000, open).blame(Some(0), 8);
        assert_eq!(found(&firewall.evidence())[0].severity, Severity::Critical);
    }

    #[test]
    fn invalid_packets_are_left_to_connection_tracking_where_it_is_in_sight() {
        let mut firewall =
            Firewall::new().rule("ct state invalid drop").dropped(400, service()).blame(Some(0), 8);
        firewall.last().invalid = true;
        let mut evidence = firewall.evidence();
        assert_eq!(found(&evidence)[0].severity, Severity::Warning, "nobody else can see it");
        evidence.evidence_sources.insert(EvidenceSource::ConntrackStatistics, crate::evidence::Sight::Seen);
        assert_eq!(found(&evidence)[0].severity, Severity::Note);
    }

    #[test]
    fn look_alikes_are_silent() {
        assert_eq!(
            found(&Firewall::new().rule("tcp dport 80 drop").evidence()),
            [],
            "a rule that met nothing"
        );
        let conntrack =
            Firewall::new().dropped(400, vec![udp("198.18.0.2:5", "198.19.0.2:53")]).at("nf_hook_slow");
        assert_eq!(found(&conntrack.evidence()), [], "connection tracking");
        let policy = Firewall::new().policy("forward").dropped(400, service()).blame(None, 8);
        assert_eq!(found(&policy.evidence()), [], "a policy");
    }

    #[test]
    fn names_from_outside_cannot_become_commands() {
        for (backend, shown) in [(Backend::Nft, None), (Backend::IptablesNft, Some("'a;reboot'"))] {
            let mut firewall =
                Firewall::new().rule("tcp dport 80 drop").dropped(400, service()).blame(Some(0), 8);
            firewall.last().chain = "a;reboot".into();
            firewall.last().backend = backend;
            let found = found(&firewall.evidence());
            let commands: Vec<&String> = found[0].fixes.iter().flat_map(|f| &f.commands).collect();
            assert_eq!(commands.is_empty(), shown.is_none(), "{commands:?}");
            assert!(commands.iter().all(|c| shown.is_none_or(|s| c.contains(s))), "{commands:?}");
            let told = found[0].fixes.iter().filter_map(|f| f.by_hand.as_deref());
            assert!(
                shown.is_some() || told.clone().count() == 3 && told.clone().all(|t| t.contains("a;reboot"))
            );
            assert!(
                commands
                    .iter()
                    .all(|c| !c.replace("'a;reboot'", "").replace("a_reboot", "").contains("reboot")),
                "{commands:?}"
            );
        }
    }
}
