//! The causes of this group on evidence that was recorded: the gateway of the self-test's lab on Linux 6.18, with one cause
//! made on purpose, less what is of no concern here.

use super::CAUSES;
use crate::causes::EvidenceView;
use crate::evidence::{Evidence, EvidenceSource, Sight};
use crate::finding::{Finding, Severity};

fn findings(text: &str, without: &[EvidenceSource]) -> Vec<Finding> {
    let mut evidence: Evidence = serde_json::from_str(text).unwrap();
    for source in without {
        evidence.evidence_sources.insert(*source, Sight::Blind("hidden".into()));
        if *source == EvidenceSource::Drops {
            evidence.drops.clear();
            evidence.namespaces.iter_mut().flat_map(|n| &mut n.rules).for_each(|r| r.blame.clear());
        }
    }
    let view = EvidenceView::of(&evidence);
    CAUSES.iter().flat_map(|cause| (cause.examine)(&view)).collect()
}

/// Causes found with at least a warning.
fn told(findings: &[Finding]) -> Vec<&str> {
    findings.iter().filter(|f| f.severity >= Severity::Warning).map(|f| f.cause.as_str()).collect()
}

#[test]
fn each_cause_is_found_where_it_was_made_and_no_other() {
    for (wanted, object, text) in [
        ("nft-rule-drop", "udp dport 7002 drop", include_str!("recorded/nft-rule-drop.json")),
        (
            "nft-rule-drop",
            "udp dport 7002 counter drop",
            include_str!("recorded/nft-rule-drop-iptables.json"),
        ),
        ("policy-drop", "policy of ip filter FORWARD", include_str!("recorded/policy-drop.json")),
        ("bridge-netfilter", "bridge br0", include_str!("recorded/bridge-netfilter.json")),
        ("iptables-legacy-drop", "--dport 7002 -j DROP", include_str!("recorded/iptables-legacy-drop.json")),
        ("rule-limit", "limit rate 100/second", include_str!("recorded/rule-limit.json")),
        ("set-limit", "set inet f allowed", include_str!("recorded/set-limit.json")),
        ("rule-random", "-m statistic", include_str!("recorded/rule-random.json")),
        ("rule-reject", "tcp dport 7002 reject", include_str!("recorded/rule-reject.json")),
        ("nfqueue-full", "", include_str!("recorded/nfqueue-full.json")),
    ] {
        let findings = findings(text, &[]);
        assert_eq!(told(&findings), [wanted], "{findings:#?}");
        let found = findings.iter().find(|f| f.cause == wanted).unwrap();
        assert!(found.object.contains(object), "{}", found.object);
        assert!(!found.fixes.is_empty() && !found.summary.is_empty() && !found.evidence.is_empty());
    }
}

#[test]
fn counters_are_enough_where_drops_are_out_of_sight() {
    for (wanted, text) in [
        ("nft-rule-drop", include_str!("recorded/nft-rule-drop-iptables.json")),
        ("policy-drop", include_str!("recorded/policy-drop.json")),
        ("iptables-legacy-drop", include_str!("recorded/iptables-legacy-drop.json")),
        ("rule-random", include_str!("recorded/rule-random.json")),
    ] {
        let findings = findings(text, &[EvidenceSource::Drops]);
        assert_eq!(told(&findings), [wanted], "{findings:#?}");
    }
}

#[test]
fn a_firewall_that_keeps_a_scan_out_has_nothing_wrong() {
    let findings = findings(include_str!("recorded/scan.json"), &[]);
    assert_eq!(told(&findings), [""; 0]);
    // The doctor still explains the drops of the scan, and does not report them as unexplained.
    assert_eq!(findings.iter().map(|f| f.cause.as_str()).collect::<Vec<_>>(), ["policy-drop", "policy-drop"]);
}
