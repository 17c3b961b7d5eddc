//! A limit in a rule is used up.

use super::attribution::{DropAttribution, Matter};
use super::commands::{remove, show};
use super::nft_rule_drop::{datagrams, gateway, iptables};
use super::report::{findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft;
use crate::evidence::{Backend, EvidenceSource, Missed, Rule};
use crate::finding::{Finding, Fix};
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "rule-limit",
    title: "the limit of a rule is used up",
    about: "A rule accepts a number of packets per time (`limit`, `hashlimit`), or a number of connections (`ct count`, \
            `connlimit`). The rule itself, a later rule or the policy drops everything above. Limits were set against \
            floods, often years ago and for all clients together: when traffic grows, they affect legitimate users.",
    must: &["packets dropped by a rule that has a limit, or that a rule with a limit would have let pass"],
    should: &["the share that is dropped grows with the rate; below the limit nothing is lost"],
    must_not: &["the same share is dropped at any rate: that is chance"],
    lookalikes: &[
        ("rule-random", "a fixed share is dropped, whatever the rate"),
        ("qdisc-full", "a shaper or queue holds packets back: QDISC_DROP"),
        ("icmp-rate-limit", "the kernel's own limit for ICMP, which no rule shows"),
    ],
    remedy: "Measure the rate that the host needs, and raise the limit above it, or count per client (a set with a limit \
             for each element, `hashlimit`) instead of for all together.",
    sources: &[
        "nft(8), limit statement",
        "iptables-extensions(8), limit, hashlimit, connlimit",
        "net/netfilter/nft_limit.c",
    ],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Limit, |attribution, finding| tell(view, attribution, finding))
}

/// The rule with the limit: the one that drops, or the one that did not let pass.
fn limited<'a>(attribution: &DropAttribution<'a>) -> Option<&'a Rule> {
    let missed = || attribution.missed.iter().find(|(_, why)| *why == Missed::Limit).map(|(rule, _)| *rule);
    attribution.rule.filter(|r| r.limit).or_else(missed)
}

fn tell(view: &EvidenceView<'_>, attribution: &DropAttribution<'_>, finding: &mut Finding) {
    let Some(rule) = limited(attribution) else { return };
    let per_second = attribution.packets as f64 / view.evidence.window_s.max(0.1);
    finding.summary = format!(
        "A limit in a rule of {} is used up: {} packets{}, {per_second:.0} per second, were dropped above it.",
        keeper(attribution),
        attribution.packets,
        service(attribution),
    );
    finding.object =
        format!("rule {} {} {} handle {}: {}", rule.family, rule.table, rule.chain, rule.handle, rule.text);
    finding.seen(EvidenceSource::Rules, format!("the rule with the limit: {}", rule.text));
    if attribution.rule != Some(rule) {
        finding.seen(EvidenceSource::Rules, format!("packets above it meet the {}", attribution.name()));
    }
    finding.fixes.push(Fix::look(
        "see the limit; if it is intended for these packets, nothing is wrong",
        [show(attribution)],
    ));
    if rule.backend == Backend::Nft {
        let (commands, undo) = nft::edit(rule, "RULE_AS_LISTED_WITH_A_HIGHER_NUMBER");
        finding.fixes.push(Fix::new(
            "raise the limit: the same rule with a number above what is needed",
            "more of the unwanted traffic passes, too",
            commands,
            undo,
        ));
    }
    finding.fixes.push(remove(rule));
}

fn recipes() -> Vec<Recipe> {
    let chain = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; }'";
    let over =
        format!("{chain}\nnft 'add rule inet f forward udp dport 7001 limit rate over 100/second drop'");
    let accept = format!(
        "{chain}\nnft 'add rule inet f forward udp dport 7001 limit rate 100/second accept'\n\
         nft 'add rule inet f forward udp dport 7001 counter drop'"
    );
    vec![
        Recipe { setup: gateway(&over), traffic: datagrams(7001, 4), ..Recipe::default() },
        Recipe::named("accept", gateway(&accept), datagrams(7001, 4)),
        iptables(
            "iptables-nft -A FORWARD -p udp --dport 7001 -m limit --limit 100/s -j ACCEPT\n\
             iptables-nft -A FORWARD -p udp --dport 7001 -j DROP",
            datagrams(7001, 4),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, udp};
    use super::*;
    use crate::evidence::{Evidence, Sample};
    use crate::finding::Severity;

    fn samples() -> Vec<Sample> {
        (0..8).map(|n| udp(&format!("198.18.0.2:{}", 9000 + n), "198.19.0.2:7001")).collect()
    }

    fn found(evidence: &Evidence) -> Vec<Finding> {
        examine(&EvidenceView::of(evidence))
    }

    #[test]
    fn a_rule_that_drops_above_a_rate_is_named() {
        let firewall = Firewall::new().rule("limit rate over 10/second drop").counted(400);
        let found = found(&firewall.dropped(400, samples()).blame(Some(0), 8).evidence());
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        assert!(found[0].summary.contains("40 per second"), "{}", found[0].summary);
    }

    #[test]
    fn a_rule_that_lets_pass_up_to_a_rate_is_named_and_not_the_one_behind_it() {
        let firewall = Firewall::new()
            .rule("limit rate 10/second accept")
            .rule("udp dport 7001 drop")
            .dropped(400, samples());
        let evidence = firewall.blame(Some(1), 8).missed(0, Missed::Limit).evidence();
        let found = found(&evidence);
        assert_eq!(found.len(), 1);
        assert!(found[0].object.contains("handle 11"), "{}", found[0].object);
    }

    #[test]
    fn a_rule_without_a_limit_is_another_matter() {
        let firewall = Firewall::new().rule("udp dport 7001 drop").dropped(400, samples()).blame(Some(0), 8);
        assert_eq!(found(&firewall.evidence()), []);
    }
}
