//! A rule or policy of the old iptables drops packets.

use super::attribution::{DropAttribution, Matter};
use super::commands::{does, fixes};
use super::nft_rule_drop::{datagrams, gateway};
use super::report::{example, findings, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{Backend, EvidenceSource};
use crate::finding::Finding;
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "iptables-legacy-drop",
    title: "a rule of the old iptables drops packets",
    about: "There are two iptables: one keeps its rules in nftables, the other in tables of its own (ip_tables). Both may \
            hold rules at the same time, a packet has to pass both, and each program shows only its own. `nft list \
            ruleset` is empty, or accepts everything, and packets are still dropped. It happens after an upgrade that \
            changed which of the two is called `iptables`, and when a container brings the other one.",
    must: &["a rule or policy in the old tables that drops or rejects, and whose counter moved"],
    should: &["packets dropped as NETFILTER_DROP in nf_hook_slow, and not in nft_do_chain"],
    must_not: &["conntrack's `drop` grows by as many: then it is connection tracking"],
    lookalikes: &[
        ("nft-rule-drop", "the packets end in nft_do_chain; the rule is in `nft list ruleset`"),
        ("conntrack-full", "the packets end in nf_hook_slow, too, and conntrack's `drop` grows with them"),
    ],
    yields_to: &["pmtu-blackhole-own"],
    remedy: "Look with iptables-legacy. Move the rules that are still needed to nftables, and empty the old tables, so \
             that all rules are in one place.",
    sources: &["net/ipv4/netfilter/ip_tables.c: ipt_do_table", "iptables-legacy(8)"],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Legacy, tell)
}

fn tell(attribution: &DropAttribution<'_>, finding: &mut Finding) {
    let what = match attribution.rule {
        Some(rule) => format!("A rule of the old iptables {}", does(rule)),
        None => "A policy of the old iptables drops".to_owned(),
    };
    let object = attribution.rule.map_or_else(|| attribution.name(), |r| r.text.clone());
    finding.summary = format!("{what} {} packets{}: {object}.", attribution.packets, service(attribution));
    let chains = attribution.namespace.rules.iter().flat_map(|r| &r.chains);
    if chains.into_iter().any(|c| c.backend != Backend::IptablesLegacy) {
        let text = "there are rules of nftables, too: a packet has to pass both, and each program shows only its own";
        finding.seen(EvidenceSource::Rules, text);
    }
    finding.fixes = fixes(attribution, example(attribution));
}

fn recipes() -> Vec<Recipe> {
    let traffic = [datagrams(7001, 4), datagrams(7002, 4)].concat();
    vec![
        Recipe {
            setup: gateway("iptables-legacy -A FORWARD -p udp --dport 7002 -j DROP"),
            traffic: traffic.clone(),
            needs: vec!["iptables-legacy"],
            ..Recipe::default()
        },
        Recipe {
            name: "policy",
            setup: gateway(
                "iptables-legacy -A FORWARD -p udp --dport 7001 -j ACCEPT\niptables-legacy -P FORWARD DROP",
            ),
            traffic,
            needs: vec!["iptables-legacy"],
            ..Recipe::default()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, udp};
    use super::*;
    use crate::finding::{Claim, Severity};

    fn legacy(location: &str) -> Vec<Finding> {
        let samples = (0..8).map(|n| udp(&format!("198.18.0.2:{}", 9000 + n), "198.19.0.2:7002")).collect();
        let mut firewall =
            Firewall::new().rule("-p udp --dport 7002 -j DROP drop").counted(300).dropped(300, samples);
        firewall.last().backend = Backend::IptablesLegacy;
        firewall.last().family = "ip".into();
        let evidence = firewall.at(location).evidence();
        examine(&EvidenceView::of(&evidence))
    }

    #[test]
    fn the_old_rule_takes_what_ends_in_nf_hook_slow() {
        let found = legacy("nf_hook_slow");
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 300 }]);
        assert_eq!(found[0].fixes[0].commands, ["iptables-legacy -t filter -L forward -n -v --line-numbers"]);
    }

    #[test]
    fn what_ends_in_nftables_is_not_claimed() {
        assert!(matches!(legacy("nft_do_chain")[0].claims[..], [Claim::Counter { .. }]));
    }
}
