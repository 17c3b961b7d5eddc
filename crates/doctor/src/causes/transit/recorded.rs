//! Evidence from a gateway's kernel (6.18), recorded while each cause was made one hop before or behind it, in hosts that the doctor
//! did not see.

use crate::diagnosis::diagnose;
use crate::evidence::Evidence;
use crate::finding::{Finding, Severity};

macro_rules! recorded {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("recorded/", $file, ".json")))),*]
    };
}

const RECORDED: &[(&str, &str)] = recorded![
    "transit-half-open_default",
    "transit-loss-before_routed",
    "transit-loss-behind_answers",
    "transit-loss-behind_masquerade",
    "transit-mtu_before",
    "transit-mtu_masquerade",
    "transit-policing_20mbit",
    "transit-queue_before",
    "transit-queue_behind",
    "transit-receiver_default",
    "transit-resets_default",
    "transit-unanswered_default",
];

fn found(evidence: &Evidence) -> Vec<Finding> {
    diagnose(evidence).findings
}

#[test]
fn each_cause_is_found_with_its_network_and_no_other() {
    for (file, text) in RECORDED {
        let evidence: Evidence = serde_json::from_str(text).unwrap();
        assert!(evidence.namespaces.iter().all(|n| n.name == "gateway"), "{file}");
        let findings = found(&evidence);
        let first = &findings[0];
        assert!(file.starts_with(&first.cause), "{file}: {first:#?}");
        assert!(first.object.starts_with("198.1"), "{file}: {}", first.object);
        assert!(!first.fixes.is_empty() && !first.evidence.is_empty(), "{file}: {first:#?}");
        let others = findings.iter().filter(|f| f.severity >= Severity::Warning && f.cause != first.cause);
        assert_eq!(others.count(), 0, "{file}: {findings:#?}");
    }
}

/// Without the connections that pass there is nothing to be seen: no counter of the gateway tells.
#[test]
fn the_gateway_alone_knows_nothing_of_it() {
    for (file, text) in RECORDED {
        let mut evidence: Evidence = serde_json::from_str(text).unwrap();
        evidence.namespaces.iter_mut().for_each(|n| n.transit = None);
        let warned: Vec<_> = found(&evidence).into_iter().filter(|f| f.severity >= Severity::Warning).collect();
        assert_eq!(warned, [], "{file}");
    }
}
