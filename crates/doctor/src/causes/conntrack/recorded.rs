//! Evidence from a gateway's kernel (6.18), recorded while each cause was made in a lab of namespaces, and reduced to that
//! gateway. The doctor must tell each cause from all others.

use std::collections::BTreeSet;

use crate::causes::{self, Group};
use crate::diagnosis::diagnose;
use crate::evidence::{Evidence, EvidenceSource};
use crate::finding::{Finding, Severity};

/// Cause and recipe, and the recorded evidence. A name that begins with `healthy` has no cause.
const RECORDED: &[(&str, &str)] = &[
    ("conntrack-checksum_default", include_str!("recorded/conntrack-checksum_default.json")),
    ("conntrack-early-drop_default", include_str!("recorded/conntrack-early-drop_default.json")),
    ("conntrack-entry-lost_flushed", include_str!("recorded/conntrack-entry-lost_flushed.json")),
    ("conntrack-entry-lost_taken-over", include_str!("recorded/conntrack-entry-lost_taken-over.json")),
    ("conntrack-full_default", include_str!("recorded/conntrack-full_default.json")),
    ("conntrack-full_tcp-held", include_str!("recorded/conntrack-full_tcp-held.json")),
    ("conntrack-hash-small_default", include_str!("recorded/conntrack-hash-small_default.json")),
    ("conntrack-insert-race_default", include_str!("recorded/conntrack-insert-race_default.json")),
    (
        "conntrack-invalid-dropped_asymmetric",
        include_str!("recorded/conntrack-invalid-dropped_asymmetric.json"),
    ),
    (
        "conntrack-invalid-dropped_forgotten",
        include_str!("recorded/conntrack-invalid-dropped_forgotten.json"),
    ),
    ("conntrack-invalid-reset_default", include_str!("recorded/conntrack-invalid-reset_default.json")),
    ("conntrack-memory_default", include_str!("recorded/conntrack-memory_default.json")),
    ("conntrack-zone-split_default", include_str!("recorded/conntrack-zone-split_default.json")),
    ("hairpin-missing_default", include_str!("recorded/hairpin-missing_default.json")),
    ("healthy-connections_masquerade", include_str!("recorded/healthy-connections_masquerade.json")),
    ("healthy-scan_masquerade", include_str!("recorded/healthy-scan_masquerade.json")),
    ("helper-missing_ftp-passive", include_str!("recorded/helper-missing_ftp-passive.json")),
    ("masquerade-missing_wrong-interface", include_str!("recorded/masquerade-missing_wrong-interface.json")),
    ("snat-ports-exhausted_tcp-held", include_str!("recorded/snat-ports-exhausted_tcp-held.json")),
    ("snat-ports-exhausted_udp", include_str!("recorded/snat-ports-exhausted_udp.json")),
    ("udp-timeout-short_default", include_str!("recorded/udp-timeout-short_default.json")),
];

/// Causes that the counters of connection tracking and its table show without any drop in sight.
const BY_COUNTERS: &[&str] = &[
    "conntrack-early-drop",
    "conntrack-full",
    "conntrack-hash-small",
    "conntrack-insert-race",
    "conntrack-invalid-dropped",
    "conntrack-memory",
    "hairpin-missing",
    "masquerade-missing",
    "snat-ports-exhausted",
];

fn recorded() -> impl Iterator<Item = (&'static str, Option<&'static str>, Evidence)> {
    RECORDED.iter().map(|(name, text)| {
        let cause = name.split_once('_').map(|(cause, _)| cause).filter(|c| !c.starts_with("healthy"));
        let mut evidence: Evidence = serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Commands are for the gateway, as if they were typed in it.
        evidence.namespaces.iter_mut().for_each(|n| n.own = true);
        (*name, cause, evidence)
    })
}

/// Findings of this group, in their order.
fn found(evidence: &Evidence) -> Vec<Finding> {
    let here = |f: &Finding| causes::by_id(&f.cause).is_some_and(|c| c.group == Group::Conntrack);
    diagnose(evidence).findings.into_iter().filter(here).collect()
}

#[test]
fn every_recorded_cause_is_found_and_no_other() {
    for (name, cause, evidence) in recorded() {
        let loud = found(&evidence)
            .into_iter()
            .filter(|f| f.severity >= Severity::Warning || cause == Some(&f.cause));
        let ids: Vec<String> = loud.map(|f| f.cause).collect();
        assert_eq!(ids, Vec::from_iter(cause), "{name}");
    }
}

/// The whole loss of the gateway is explained, but for what the counters' moment of reading makes.
#[test]
fn what_is_found_explains_what_was_lost() {
    for (name, cause, evidence) in recorded() {
        let diagnosis = diagnose(&evidence);
        if cause.is_some() && diagnosis.lost.packets > 0 {
            let share = diagnosis.lost.explained as f64 / diagnosis.lost.packets as f64;
            assert!(share >= 0.9, "{name}: {:?}", diagnosis.lost);
        }
    }
}

/// Fixes are commands that a user can type: they contain every known name and value, and every change can be reverted.
#[test]
fn every_fix_has_commands_a_risk_and_a_way_back() {
    for (name, cause, evidence) in recorded() {
        for finding in found(&evidence).iter().filter(|f| cause == Some(&f.cause)) {
            assert!(!finding.fixes.is_empty() && !finding.evidence.is_empty(), "{name}");
            for fix in &finding.fixes {
                assert!(!fix.commands.is_empty() && !fix.risk.is_empty(), "{name}: {}", fix.title);
                assert_eq!(fix.undo.is_empty(), fix.risk.starts_with("none"), "{name}: {}", fix.title);
                for setting in &fix.tune {
                    assert_ne!(setting.now, setting.proposed, "{name}: {}", setting.name);
                }
            }
        }
    }
}

/// Without the drops in sight, the causes that counters show are still found, and no others are made up.
#[test]
fn without_drops_the_counters_do() {
    for (name, cause, mut evidence) in recorded() {
        evidence.drops.clear();
        evidence.flows.clear();
        evidence.evidence_sources.remove(&EvidenceSource::Drops);
        for rules in evidence.namespaces.iter_mut().filter_map(|n| n.rules.as_mut()) {
            rules.blame.clear();
        }
        let ids: BTreeSet<String> = found(&evidence)
            .into_iter()
            .filter(|f| f.severity >= Severity::Warning)
            .map(|f| f.cause)
            .collect();
        let expected = cause.filter(|c| BY_COUNTERS.contains(c) && *c != "conntrack-memory");
        // If the checksums are not visible, the doctor still finds the rule for INVALID packets.
        let expected =
            if cause == Some("conntrack-checksum") { Some("conntrack-invalid-dropped") } else { expected };
        assert_eq!(ids, expected.into_iter().map(str::to_owned).collect(), "{name}");
    }
}
