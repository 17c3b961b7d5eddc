//! Evidence from a gateway's kernel (6.18), recorded while each cause was made in a lab of namespaces, and reduced to that gateway.

use crate::diagnosis::diagnose;
use crate::evidence::Evidence;
use crate::finding::{Finding, Severity};

fn found(text: &str) -> Vec<Finding> {
    let evidence: Evidence = serde_json::from_str(text).unwrap();
    assert!(evidence.namespaces.iter().all(|n| n.fastpath.is_some()), "a fast path was in effect");
    diagnose(&evidence).findings
}

#[test]
fn each_cause_is_found_where_it_was_made_and_no_other() {
    for (wanted, object, text) in [
        ("fastpath-full", "", include_str!("recorded/fastpath-full_default.json")),
        ("fastpath-stale", "routes", include_str!("recorded/fastpath-stale_default.json")),
        ("fastpath-excluded", "exclusions", include_str!("recorded/fastpath-excluded_by-user.json")),
        (
            "fastpath-excluded",
            "rules that change TTL or DSCP",
            include_str!("recorded/fastpath-excluded_by-rule.json"),
        ),
        ("fastpath-excluded", "interface outside", include_str!("recorded/fastpath-excluded_interface.json")),
    ] {
        let [finding] = &found(text)[..] else { panic!("{:#?}", found(text)) };
        assert_eq!((finding.cause.as_str(), finding.object.as_str()), (wanted, object));
        assert!(!finding.fixes.is_empty() && finding.evidence.len() >= 2, "{finding:#?}");
    }
}

#[test]
fn a_fast_path_without_a_fault_has_no_finding() {
    for text in [
        include_str!("recorded/healthy-udp_fastpath.json"),
        // It runs a program for each connection that ends, and the kernel counts that program's packet as dropped.
        include_str!("recorded/healthy-scan_fastpath.json"),
    ] {
        let warned: Vec<_> = found(text).into_iter().filter(|f| f.severity >= Severity::Note).collect();
        assert_eq!(warned, [], "{text}");
    }
}
