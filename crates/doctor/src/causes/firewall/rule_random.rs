//! A rule throws packets away by chance.

use super::charge::{Charge, Matter};
use super::commands::{remove, show};
use super::nft_rule_drop::{datagrams, gateway};
use super::report::{findings, keeper, service};
use crate::causes::{Cause, Group, Scene};
use crate::evidence::Plane;
use crate::finding::{Fact, Finding, Fix, severity_of_loss};
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "rule-random",
    group: Group::Firewall,
    title: "a rule drops packets by chance",
    about: "A rule draws a number for each packet (`numgen random` of nftables, `-m statistic` of iptables), or counts them, and \
            drops a share. That is how loss is simulated in tests, and how a test that was forgotten looks: every connection \
            works, and all of them are slow. One packet in a hundred is enough to halve the rate of long TCP transfers.",
    must: &[
        "a rule with the verdict drop that draws by chance, whose counter moved or that the dropped packets match",
    ],
    should: &[
        "the share of dropped packets is the one that the rule says, at any rate and for all flows alike",
    ],
    must_not: &["the share grows with the rate: that is a limit"],
    lookalikes: &[
        ("rule-limit", "nothing is dropped below a rate"),
        ("nft-rule-drop", "all packets that match are dropped"),
    ],
    yields_to: &[],
    remedy: "Take the rule away, unless a test is running right now.",
    sources: &["nft(8), numgen", "iptables-extensions(8), statistic", "net/netfilter/nft_numgen.c"],
    examine,
    recipes,
    not_injected: None,
};

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    findings(scene, CAUSE.id, Matter::Random, |charge, finding| tell(scene, charge, finding))
}

fn tell(scene: &Scene<'_>, charge: &Charge<'_>, finding: &mut Finding) {
    // Nobody means to lose packets by chance where real traffic passes, so the loss itself says how bad it is.
    let passed = scene.passed(charge.namespace).saturating_sub(charge.packets);
    finding.severity = severity_of_loss(charge.packets, passed, scene.evidence.window_s);
    finding.summary = format!(
        "A rule of {} drops packets by chance, {} in the window{}.",
        keeper(charge),
        charge.packets,
        service(charge),
    );
    if let Some(rule) = charge.rule {
        finding.evidence.push(Fact::seen(Plane::Rules, format!("the rule: {}", rule.text)));
        finding.fixes.push(Fix { title: "take the rule away".into(), ..remove(rule) });
    }
    finding.fixes.push(Fix {
        title: "see it".into(),
        commands: vec![show(charge)],
        risk: "none, it only shows".into(),
        ..Fix::default()
    });
}

fn recipes() -> Vec<Recipe> {
    let nft = "nft 'add table inet f; add chain inet f forward { type filter hook forward priority 0; }'\n\
               nft 'add rule inet f forward numgen random mod 100 < 10 drop'";
    let counted = "nft 'add table ip f; add chain ip f forward { type filter hook forward priority 0; }'\n\
                   nft 'add rule ip f forward udp dport 7001 numgen inc mod 10 == 0 counter drop'";
    vec![
        Recipe { setup: gateway(nft), traffic: datagrams(7001, 4), ..Recipe::default() },
        Recipe { name: "counted", setup: gateway(counted), traffic: datagrams(7001, 4), ..Recipe::default() },
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
        let found = examine(&Scene::of(&evidence.evidence()));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Critical));
        assert!(
            found[0].object.ends_with("handle 11: numgen random mod 100 < 5 drop"),
            "{}",
            found[0].object
        );
        assert_eq!(found[0].fixes[0].commands[1], "nft delete rule inet filter forward handle 11");
        let plain = Firewall::new().rule("udp dport 7001 drop").dropped(500, samples()).blame(Some(0), 8);
        assert_eq!(examine(&Scene::of(&plain.evidence())), []);
    }
}
