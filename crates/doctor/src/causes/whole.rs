//! Every recorded host through the whole diagnosis: the cause that was made in it comes first, and nothing else warns that has
//! nothing to do with it. A cause of one group is so tested against the evidence of all others.

use super::{Cause, all, evidences};
use crate::diagnosis::diagnose;
use crate::finding::Severity;

/// Recorded faults of a host other than the one that was made: each must be found, or its line must go.
const ALSO_THERE: &[(&str, &str)] = &[
    // 23 packets were dropped as CPU_BACKLOG: the machine was busy.
    ("bridge-netfilter.json", "softnet-backlog"),
];

/// The cause that was made, by the name of its file: `ID.json`, `ID_RECIPE.json`. `None` of a healthy host.
fn made(file: &str) -> Option<&'static Cause> {
    let name = file.rsplit('/').next().unwrap_or(file);
    all().filter(|cause| name.starts_with(cause.id)).max_by_key(|cause| cause.id.len())
}

#[test]
fn the_cause_that_was_made_comes_first_and_nothing_unrelated_warns() {
    let mut wrong = Vec::new();
    let recorded: Vec<_> = evidences().into_iter().filter(|(file, _)| file.contains("/recorded/")).collect();
    for (file, evidence) in &recorded {
        let cause = made(file);
        let findings = diagnose(evidence).findings;
        let told = |f: &&crate::finding::Finding| f.severity >= Severity::Warning;
        let warned: Vec<&str> = findings.iter().filter(told).map(|f| f.cause.as_str()).collect();
        let there = || ALSO_THERE.iter().filter(|(name, _)| file.ends_with(name)).map(|(_, id)| *id);
        wrong
            .extend(there().filter(|id| !warned.contains(id)).map(|id| format!("{file}: {id} is not found")));
        let also: Vec<&str> =
            cause.iter().flat_map(|c| (c.recipes)()).flat_map(|recipe| recipe.also).chain(there()).collect();
        let first = findings.first().map(|f| f.cause.as_str());
        let unrelated = |id: &&&str| cause.is_none_or(|c| c.id != **id) && !also.contains(*id);
        let others: Vec<_> = warned.iter().filter(unrelated).collect();
        if cause.is_some_and(|c| first != Some(c.id)) || !others.is_empty() {
            wrong.push(format!("{file}: first {first:?}, unrelated {others:?}"));
        }
    }
    assert!(recorded.len() >= 50, "{}", recorded.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_says_which_cause_was_made() {
    let id = |file: &str| made(file).map(|cause| cause.id);
    assert_eq!(id("x/conntrack-full_tcp-held.json"), Some("conntrack-full"));
    assert_eq!(id("x/nft-rule-drop-iptables.json"), Some("nft-rule-drop"));
    assert_eq!((id("x/healthy.json"), id("x/scan.json")), (None, None));
}
