//! The trials' findings about the path itself, in sentences.

use std::collections::BTreeMap;

use weir_record::{PathCause, Run, Trial};
use weir_text::order;

use crate::escape::line;

/// The workload that looks at nothing but the path; where it ran, it knows best.
const OF_PATHS: &str = "mtu";

/// One sentence for each thing that was found, with the variants that it was found on; the gravest first.
///
/// Leaves out findings from fewer than half of a variant's trials: a path that is not the same in each trial is no finding.
pub(crate) fn sentences(run: &Run) -> Vec<String> {
    let mut found: Vec<(PathCause, String, Vec<&str>)> = Vec::new();
    let variants: Vec<&str> = run.variants.iter().map(|v| v.name.as_str()).collect();
    for variant in &variants {
        for (cause, summary) in of_variant(run, variant) {
            match found.iter_mut().find(|(c, s, _)| *c == cause && *s == summary) {
                Some((_, _, on)) => on.push(variant),
                None => found.push((cause, summary, vec![variant])),
            }
        }
    }
    // The order of variants is the scenario's own.
    order::by_key(&mut found, |(cause, _, _)| *cause);
    found.iter().map(|(_, summary, on)| sentence(summary, on, &variants)).collect()
}

fn sentence(summary: &str, on: &[&str], all: &[&str]) -> String {
    let mut text = line(summary);
    // Streams tell theirs as a clause.
    if let Some(first) = text.get(..1).map(str::to_uppercase) {
        text.replace_range(..1, &first);
    }
    if on.len() == all.len() {
        return format!("{text}.");
    }
    let names: Vec<String> = on.iter().map(|name| line(name)).collect();
    format!("{text}, on {}.", names.join(", "))
}

/// Returns the findings of most trials of a variant, in the most frequent words.
fn of_variant(run: &Run, variant: &str) -> Vec<(PathCause, String)> {
    let is_path = |t: &Trial| run.workloads.iter().any(|w| w.name == t.workload && w.kind == OF_PATHS);
    let trials: Vec<&Trial> = run.trials.iter().filter(|t| t.variant == variant && !t.is_void()).collect();
    let of_paths: Vec<&Trial> = trials.iter().copied().filter(|t| is_path(t)).collect();
    if !of_paths.is_empty() {
        return of_trials(&of_paths);
    }
    let mut all: Vec<(PathCause, String)> = Vec::new();
    for workload in &run.workloads {
        let own: Vec<&Trial> = trials.iter().copied().filter(|t| t.workload == workload.name).collect();
        for found in of_trials(&own) {
            if !all.contains(&found) {
                all.push(found);
            }
        }
    }
    all
}

/// The same for trials of one workload.
fn of_trials(trials: &[&Trial]) -> Vec<(PathCause, String)> {
    let mut words: BTreeMap<PathCause, BTreeMap<&str, usize>> = BTreeMap::new();
    for finding in trials.iter().flat_map(|t| &t.path) {
        *words.entry(finding.cause).or_default().entry(&finding.summary).or_default() += 1;
    }
    let most = |(cause, told): (PathCause, BTreeMap<&str, usize>)| {
        let times: usize = told.values().sum();
        let (summary, _) = told.into_iter().max_by_key(|(_, n)| *n)?;
        (2 * times >= trials.len()).then(|| (cause, summary.to_owned()))
    };
    words.into_iter().filter_map(most).collect()
}
