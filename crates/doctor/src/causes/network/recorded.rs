//! Evidence of real hosts, recorded while the self-test made each cause in them, without values that did not change.

use crate::causes::EvidenceView;
use crate::diagnosis::diagnose;
use crate::evidence::{Evidence, EvidenceSource, Sight};
use crate::finding::Severity;

macro_rules! recorded {
    ($($id:literal),* $(,)?) => {
        &[$(($id, include_str!(concat!("recorded/", $id, ".json")))),*]
    };
}

const RECORDED: &[(&str, &str)] = recorded![
    "asymmetric-path",
    "bridge-blocked",
    "duplicate-address",
    "forwarding-off",
    "link-down",
    "mtu-mismatch",
    "neighbour-queue-full",
    "neighbour-unresolved",
    "pmtu-blackhole-own",
    "pmtu-blackhole-remote",
    "policy-route",
    "routing-loop",
];

fn read(text: &str) -> Evidence {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_cause_that_was_made_is_the_first_finding() {
    for (id, text) in RECORDED {
        let diagnosis = diagnose(&read(text));
        let found: Vec<_> = diagnosis.findings.iter().map(|f| (f.cause.as_str(), f.severity)).collect();
        assert_eq!(found.first().map(|f| f.0), Some(*id), "{found:?}");
        assert!(found[0].1 >= Severity::Warning, "{found:?}");
    }
}

#[test]
fn no_other_cause_of_this_group_warns_of_it() {
    for (id, text) in RECORDED {
        let evidence = read(text);
        let view = EvidenceView::of(&evidence);
        let special = crate::causes::by_id(id).unwrap();
        for cause in super::CAUSES.iter().filter(|c| c.id != special.id) {
            // One that gives way to the right one may see the same packets.
            if cause.yields_to.contains(id) {
                continue;
            }
            let warned: Vec<_> =
                (cause.examine)(&view).into_iter().filter(|f| f.severity > Severity::Note).collect();
            assert!(warned.is_empty(), "{id}: {warned:?}");
        }
    }
}

#[test]
fn what_a_counter_tells_is_found_without_a_look_at_drops() {
    for (id, text) in RECORDED.iter().filter(|(id, _)| ["forwarding-off", "routing-loop"].contains(id)) {
        let mut evidence = read(text);
        evidence.drops.clear();
        evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Blind("no BTF".into()));
        let diagnosis = diagnose(&evidence);
        assert!(diagnosis.findings.iter().any(|f| f.cause == *id), "{id}");
    }
}
