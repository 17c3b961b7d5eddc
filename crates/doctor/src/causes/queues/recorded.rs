//! The causes of this group on evidence that was recorded: hosts of the self-test's lab on Linux 6.18, with one cause made on
//! purpose or none, less what is of no concern here.

use super::CAUSES;
use crate::causes::EvidenceView;
use crate::evidence::{Evidence, EvidenceSource, Sight};
use crate::finding::{Claim, Finding, Severity};

fn findings(text: &str, sees_drops: bool) -> Vec<Finding> {
    let mut evidence: Evidence = serde_json::from_str(text).unwrap();
    if !sees_drops {
        evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("hidden".into()));
        evidence.drops.clear();
    }
    let view = EvidenceView::of(&evidence);
    CAUSES.iter().flat_map(|cause| (cause.examine)(&view)).collect()
}

/// Returns the causes found with at least a warning. Other tests weigh causes that yield to a hot core against it.
fn told(findings: &[Finding]) -> Vec<&str> {
    let grave = findings.iter().filter(|f| f.severity >= Severity::Warning).map(|f| f.cause.as_str());
    let mut causes: Vec<&str> = grave.collect();
    if causes.contains(&"hot-core") {
        causes.retain(|c| *c != "softnet-backlog");
    }
    causes
}

#[test]
fn each_cause_is_found_where_it_was_made_and_no_other() {
    for (wanted, object, text) in [
        ("tc-drop", "(shoots_ipv4, bpf)", include_str!("recorded/tc-drop.json")),
        ("xdp-drop", "(drops_ipv4, native)", include_str!("recorded/xdp-drop.json")),
        ("qdisc-full", "outside: pfifo 10:", include_str!("recorded/qdisc-full.json")),
        ("ring-overflow", "inside", include_str!("recorded/ring-overflow.json")),
        ("hot-core", "core 1", include_str!("recorded/hot-core.json")),
        ("bufferbloat", "outside: tbf 1:", include_str!("recorded/bufferbloat.json")),
        ("tap-queue-full", "vpn0", include_str!("recorded/tap-queue-full.json")),
        ("checksum-offload", "eth0", include_str!("recorded/checksum-offload.json")),
    ] {
        let findings = findings(text, true);
        assert_eq!(told(&findings), [wanted], "{findings:#?}");
        let found = findings.iter().find(|f| f.cause == wanted).unwrap();
        assert!(found.object.contains(object), "{}", found.object);
        assert!(!found.fixes.is_empty() && !found.summary.is_empty() && !found.evidence.is_empty());
    }
}

#[test]
fn counters_are_enough_where_drops_are_out_of_sight() {
    for (wanted, text) in [
        ("tc-drop", include_str!("recorded/tc-drop.json")),
        ("xdp-drop", include_str!("recorded/xdp-drop.json")),
        ("qdisc-full", include_str!("recorded/qdisc-full.json")),
        ("ring-overflow", include_str!("recorded/ring-overflow.json")),
        ("hot-core", include_str!("recorded/hot-core.json")),
        ("tap-queue-full", include_str!("recorded/tap-queue-full.json")),
        ("checksum-offload", include_str!("recorded/checksum-offload.json")),
    ] {
        let findings = findings(text, false);
        assert_eq!(told(&findings), [wanted], "{findings:#?}");
        let claims = &findings.iter().find(|f| f.cause == wanted).unwrap().claims;
        assert!(matches!(claims[..], [Claim::Counter { packets: 500.., .. }]), "{wanted}: {claims:?}");
    }
}

#[test]
fn bulk_traffic_through_a_good_host_has_nothing_wrong() {
    for sees_drops in [true, false] {
        let findings = findings(include_str!("recorded/healthy.json"), sees_drops);
        assert_eq!(told(&findings), [""; 0], "{findings:#?}");
    }
}
