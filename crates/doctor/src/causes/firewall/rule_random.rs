//! A rule drops packets by chance.

use super::attribution::{DropAttribution, Matter};
use super::commands::{remove, show};
use super::nft_rule_drop::{datagrams, gateway};
use super::report::{findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::EvidenceSource;
use crate::finding::{Finding, Fix, severity_of_loss};
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "rule-random",
    title: "a rule drops packets by chance",
    about: "A rule draws a random number for each packet (`numgen random` of nftables, `-m statistic` of iptables), or \
            counts packets, and drops a share. Tests simulate loss like this, and a forgotten test leaves such a rule \
            behind: every connection works, and all of them are slow. One packet in a hundred is enough to halve the rate \
            of long TCP transfers.",
    must: &[
        "a rule with the verdict drop that draws by chance, whose counter moved or that the dropped packets match",
    ],
    should: &["the share of dropped packets is the rule's, at any rate and for all flows alike"],
    must_not: &["the share grows with the rate: that is a limit"],
    lookalikes: &[
        ("rule-limit", "nothing is dropped below a rate"),
        ("nft-rule-drop", "all packets that match are dropped"),
    ],
    remedy: "Delete the rule, unless a test is running right now.",
    sources: &["nft(8), numgen", "iptables-extensions(8), statistic", "net/netfilter/nft_numgen.c"],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Random, |attribution, finding| tell(view, attribution, finding))
}

fn tell(view: &EvidenceView<'_>, attribution: &DropAttribution<'_>, finding: &mut Finding) {
    // No one intends to lose real traffic at random, so the loss itself sets the severity.
    let passed = view.passed(attribution.namespace).saturating_sub(attribution.packets);
    finding.severity = severity_of_loss(attribution.packets, passed, view.evidence.window_s);
    finding.summary = format!(
        "A rule of {} drops packets by chance, {} in the window{}.",
        keeper(attribution),
        attribution.packets,
        service(attribution),
    );
    if let Some(rule) = attribution.rule {
        finding.seen(EvidenceSource::Rules, format!("the rule: {}", rule.text));
        finding.fixes.push(Fix { title: "delete the rule".into(), ..remove(rule) });
    }
    finding.fixes.push(Fix::look("see it", [show(attribution)]));
}

fn recipes() -> Vec<Recipe> {
    let nft = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; }'\n\
               nft 'add rule inet f forward numgen random mod 100 < 10 drop'";
    let counted = "nft 'add table ip f; add chain ip f forward { type filter hook forward priority 0; }'\n\
                   nft 'add rule ip f forward udp dport 7001 numgen inc mod 10 == 0 counter drop'";
    vec![
        Recipe { setup: gateway(nft), traffic: datagrams(7001, 4), ..Recipe::default() },
        Recipe::named("counted", gateway(counted), datagrams(7001, 4)),
        Recipe {
            name: "statistic",
            setup: gateway("iptables-nft -A FORWARD -m statistic --mode random --probability 0.1 -j DROP"),
            traffic: datagrams(7001, 4),
            needs: vec!["iptables-nft"],
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, udp};
    use super::*;
    use crate::finding::Severity;

    #[test]
    fn chance_is_told_from_a_plain_rule() {
        let samples =
            || (0..8).map(|n| udp(&format!("198.18.0.2:{}", 9000 + n), "198.19.0.2:7001")).collect();
        let evidence =
            Firewall::new().rule("numgen random mod 100 < 5 drop").dropped(500, samples()).blame(Some(0), 8);
        let found = examine(&EvidenceView::of(&evidence.evidence()));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Critical));
        assert!(
            found[0].object.ends_with("handle 11: numgen random mod 100 < 5 drop"),
            "{}",
            found[0].object
        );
        assert_eq!(
            found[0].fixes[0].commands,
            ["(echo flush chain inet filter forward && nft list chain inet filter forward) > \
              /root/weir-inet-filter-forward-11.nft && nft -c -f /root/weir-inet-filter-forward-11.nft \
              && nft delete rule inet filter forward handle 11"]
        );
        assert_eq!(found[0].fixes[0].undo, ["nft -f /root/weir-inet-filter-forward-11.nft"]);
        let plain = Firewall::new().rule("udp dport 7001 drop").dropped(500, samples()).blame(Some(0), 8);
        assert_eq!(examine(&EvidenceView::of(&plain.evidence())), []);
    }
}
