//! No rule lets the packets pass, and the chain's policy drops them.

use super::attribution::{DropAttribution, Matter};
use super::commands::fixes;
use super::nft_rule_drop::{datagrams, gateway, iptables};
use super::report::{example, findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Missed};
use crate::finding::Finding;
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "policy-drop",
    title: "a chain's policy drops packets",
    about: "If no rule of a base chain decides about a packet, the chain's policy does. The policy drop discards it there, \
            and no rule's counter moves. The well-known case is Docker, which sets the policy of FORWARD to DROP: a host \
            that routed between its networks before stops doing so when Docker starts.\n\n\
            A good firewall has a policy that drops. The finding is a warning only if the policy drops a large part of the \
            forwarded traffic, or cuts open connections. If it is intended, nothing is wrong.",
    must: &[
        "packets dropped as NETFILTER_DROP in nft_do_chain (before Linux 6.7, and with the old iptables: in nf_hook_slow)",
        "a base chain with the policy drop, which no rule decides about for these packets, or whose counter moved",
    ],
    should: &["the chain is of iptables, whose policies count, and the counter moved"],
    must_not: &["a rule matches the packets and drops them itself"],
    lookalikes: &[
        ("nft-rule-drop", "a rule matches, and drops"),
        ("set-limit", "a rule would have let them pass, but its set is full or lacks them"),
        ("rule-limit", "a rule would have let them pass, up to its limit"),
        ("forwarding-off", "the host does not forward at all, and the packets never meet FORWARD"),
    ],
    yields_to: &["pmtu-blackhole-own"],
    remedy: "Add a rule that accepts these packets. On a host with Docker put it into the chain DOCKER-USER, which Docker \
             leaves alone.",
    sources: &[
        "net/netfilter/nf_tables_core.c: nft_do_chain",
        "https://docs.docker.com/engine/network/packet-filtering-firewalls/",
    ],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Policy, tell)
}

fn tell(attribution: &DropAttribution<'_>, finding: &mut Finding) {
    finding.summary = format!(
        "No rule of {} lets {} packets{} pass, and the policy of {} drops them.",
        keeper(attribution),
        attribution.packets,
        service(attribution),
        attribution.chain_name(),
    );
    for (rule, why) in &attribution.missed {
        if *why == Missed::Set {
            let set = rule.set.as_deref().unwrap_or("its set");
            let text = format!("they would have passed if @{set} held their key: {}", rule.text);
            finding.seen(EvidenceSource::Rules, text);
        }
    }
    let docker = attribution.namespace.rules.iter().flat_map(|r| &r.chains).any(|c| c.name == "DOCKER-USER");
    if docker && attribution.chain_name() == "FORWARD" {
        finding.seen(
            EvidenceSource::Rules,
            "Docker sets this policy when it starts (chain DOCKER-USER is there)",
        );
    }
    finding.not.push("not one rule: none that drops matches the packets that were looked at".into());
    finding.fixes = fixes(attribution, example(attribution));
}

fn recipes() -> Vec<Recipe> {
    let traffic = [datagrams(7001, 4), datagrams(7002, 4)].concat();
    let nft = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; policy drop; }'\n\
               nft 'add rule inet f forward udp dport 7001 accept'";
    let policy = "iptables-nft -A FORWARD -p udp --dport 7001 -j ACCEPT\niptables-nft -P FORWARD DROP";
    vec![
        Recipe { setup: gateway(nft), traffic: traffic.clone(), ..Recipe::default() },
        iptables(policy, traffic),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, segment, udp};
    use super::*;
    use crate::evidence::{Backend, Delta, Evidence};
    use crate::finding::{Confidence, Severity};

    fn found(evidence: &Evidence) -> Vec<Finding> {
        examine(&EvidenceView::of(evidence))
    }

    #[test]
    fn the_policy_that_decided_about_a_service_is_named() {
        let samples =
            (0..8).map(|n| segment(&format!("198.18.0.2:{}", 5000 + n), "198.19.0.2:80", 0x02)).collect();
        let evidence = Firewall::new().policy("forward").dropped(400, samples).blame(None, 8).evidence();
        let found = found(&evidence);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(found[0].object, "policy of inet filter forward");
        assert!(found[0].summary.contains("198.19.0.2 port 80"), "{}", found[0].summary);
        assert!(
            found[0].fixes[1].commands[0]
                .contains("ip saddr 198.18.0.2 ip daddr 198.19.0.2 tcp dport 80 accept")
        );
    }

    #[test]
    fn a_scan_that_it_keeps_out_is_a_note() {
        let samples =
            (1..=8).map(|p| segment("198.18.0.2:40000", &format!("198.19.0.2:{p}"), 0x02)).collect();
        let evidence = Firewall::new().policy("forward").dropped(400, samples).blame(None, 8).evidence();
        assert_eq!(found(&evidence)[0].severity, Severity::Note);
        let background =
            (1..=8).map(|n| segment(&format!("203.0.113.{n}:4000"), "198.18.0.1:23", 0x02)).collect();
        let evidence = Firewall::new().policy("input").dropped(60, background).blame(None, 8).evidence();
        assert_eq!(found(&evidence)[0].severity, Severity::Note);
    }

    #[test]
    fn a_counter_is_enough_where_drops_are_out_of_sight() {
        let mut firewall = Firewall::new().policy("forward").blind();
        firewall.chain().backend = Backend::IptablesNft;
        firewall.chain().policy_packets = Some(Delta { before: 10, after: 410 });
        let evidence = firewall.evidence();
        let found = found(&evidence);
        assert_eq!((found.len(), found[0].confidence), (1, Confidence::Medium));
        assert!(matches!(found[0].claims[..], [crate::finding::Claim::Counter { packets: 400, .. }]));
        let quiet = Firewall::new().policy("forward").blind().evidence();
        assert_eq!(super::examine(&EvidenceView::of(&quiet)), []);
    }

    #[test]
    fn what_a_rule_decided_is_not_its() {
        let samples = (0..8).map(|_| udp("198.18.0.2:5", "198.19.0.2:53")).collect();
        let firewall = Firewall::new().policy("forward").rule("udp dport 53 drop").dropped(400, samples);
        assert_eq!(found(&firewall.blame(Some(0), 8).evidence()), []);
    }
}
