//! Keeps a verdict from favouring a variant because of work that it left out.
//!
//! Most figures of a trial are about operations that were answered: a hop that refuses half of the connections leaves more of
//! the machine to the others. So a variant that fails more of a workload's operations than the baseline is better in nothing of
//! it; neither is one whose trials are void more often, since those that are left may be its lucky ones.

use weir_record::results::{Cell, Results, VoidBias};
use weir_record::{Better, MetricDef, Reserve, Run, VariantInfo, WorkloadInfo};
use weir_stats::Verdict;
use weir_stats::fisher::more_void;

use super::Subject;

/// A greater share of failures by more than this counts, shown by a test or not: from one in a thousand on they decide even the
/// p99.9, the remotest percentile of the tables.
const MANY: f64 = 0.001;

/// The workloads in which a variant's trials are void more often than the baseline's.
pub(super) fn void_biases(run: &Run) -> Vec<VoidBias> {
    let Some(baseline) = run.baseline() else { return Vec::new() };
    let mut all = Vec::new();
    for workload in &run.workloads {
        let (base_void, base_trials) = run.void_trials(&workload.name, baseline);
        // The A/A twin is no candidate: no winner is named for it in any case.
        for variant in run.variants.iter().filter(|v| v.name != baseline && v.twin_of.is_none()) {
            let (void, trials) = run.void_trials(&workload.name, &variant.name);
            if let Some(p) = more_void((void, trials), (base_void, base_trials)) {
                all.push(VoidBias {
                    workload: workload.name.clone(),
                    variant: variant.name.clone(),
                    void,
                    trials,
                    baseline_void: base_void,
                    baseline_trials: base_trials,
                    p,
                });
            }
        }
    }
    all
}

/// Withdraws verdicts in favour of a variant that [`analyse`](super::analyse) must not give.
pub(super) fn temper(run: &Run, results: &mut Results) {
    let Some(baseline) = run.baseline() else { return };
    for workload in &run.workloads {
        for variant in run.variants.iter().filter(|v| v.name != baseline) {
            let fails_more = fails_more(results, workload, variant, baseline);
            let subject = Subject { workload: &workload.name, variant: &variant.name };
            let void_more = is_void_more(results, subject);
            let instead = match (fails_more, void_more) {
                (true, _) => Verdict::FailsMore,
                (false, true) => Verdict::VoidMore,
                (false, false) => continue,
            };
            for def in &workload.metrics {
                let here = |c: &&mut Cell| {
                    c.workload == workload.name && c.variant == variant.name && c.metric == def.name
                };
                if let Some(cell) = results.cells.iter_mut().find(here)
                    && cell.verdict.is_some_and(|verdict| praises(verdict, def.better))
                {
                    cell.verdict = Some(instead);
                }
            }
        }
    }
    temper_pairs(run, results);
}

/// The same for two values of a label: by the variants that took part on either side, each in the repeated workload.
pub(super) fn temper_dimensions(run: &Run, results: &mut Results) {
    let Some(mut patterns) = results.patterns.take() else { return };
    if let Some(workload) = run.workloads.iter().find(|w| w.name == patterns.repeats) {
        let share = |variants: &[String]| {
            let of = |variant: &String| failed_share(results, workload, variant).unwrap_or(0.0);
            weir_stats::order::mean(&variants.iter().map(of).collect::<Vec<f64>>()).unwrap_or(0.0)
        };
        for found in &mut patterns.dimensions {
            let more = share(&found.variants) - share(&found.against_variants);
            let is_void =
                |variant: &String| is_void_more(results, Subject { workload: &workload.name, variant });
            let void = [&found.variants, &found.against_variants].map(|side| side.iter().any(is_void));
            // Delays: the lower the better.
            found.reserve = reserve(more, void, (found.verdict, Better::Lower));
            found.verdict = tempered(more, void, (found.verdict, Better::Lower));
        }
    }
    results.patterns = Some(patterns);
}

/// The same for two workloads of one variant.
fn temper_pairs(run: &Run, results: &mut Results) {
    let failed = |results: &Results, workload: &str, variant: &str| {
        let info = run.workloads.iter().find(|w| w.name == workload)?;
        failed_share(results, info, variant)
    };
    for i in 0..results.workload_comparisons.len() {
        let pair = &results.workload_comparisons[i];
        let shares = [&pair.workload, &pair.with].map(|workload| failed(results, workload, &pair.variant));
        let def = run
            .workloads
            .iter()
            .find(|w| w.name == pair.workload)
            .and_then(|w| w.metrics.iter().find(|m| m.name == pair.metric));
        let more = shares[0].unwrap_or(0.0) - shares[1].unwrap_or(0.0);
        let void = [&pair.workload, &pair.with]
            .map(|workload| is_void_more(results, Subject { workload, variant: &pair.variant }));
        if let (Some(verdict), Some(def)) = (pair.verdict, def) {
            let pair = &mut results.workload_comparisons[i];
            pair.reserve = reserve(more, void, (verdict, def.better));
            pair.verdict = Some(tempered(more, void, (verdict, def.better)));
        }
    }
}

/// The verdict on two sides, of which the first one fails so much more: no praise of one that fails more or is void more.
fn tempered(more: f64, [void, _]: [bool; 2], (verdict, better): (Verdict, Better)) -> Verdict {
    match praises(verdict, better) {
        true if more > MANY => Verdict::FailsMore,
        true if void => Verdict::VoidMore,
        _ => verdict,
    }
}

/// Blame of the first side is praise of the second one. It stands, with its reason not to be read so.
fn reserve(more: f64, [_, void]: [bool; 2], (verdict, better): (Verdict, Better)) -> Option<Reserve> {
    match blames(verdict, better) {
        true if -more > MANY => Some(Reserve::FailsMore),
        true if void => Some(Reserve::VoidMore),
        _ => None,
    }
}

fn praises(verdict: Verdict, better: Better) -> bool {
    matches!((verdict, better), (Verdict::Higher, Better::Higher) | (Verdict::Lower, Better::Lower))
}

fn blames(verdict: Verdict, better: Better) -> bool {
    matches!((verdict, better), (Verdict::Lower, Better::Higher) | (Verdict::Higher, Better::Lower))
}

/// The greatest of the shares of failed operations that a workload has.
fn failed_share(results: &Results, workload: &WorkloadInfo, variant: &str) -> Option<f64> {
    failures(workload)
        .filter_map(|def| results.cell(&workload.name, &def.name, variant)?.estimate)
        .map(|estimate| estimate.center)
        .reduce(f64::max)
}

fn failures(workload: &WorkloadInfo) -> impl Iterator<Item = &MetricDef> {
    workload.metrics.iter().filter(|def| def.failure.is_some())
}

/// Whether a variant fails more operations of a workload than the baseline.
fn fails_more(results: &Results, workload: &WorkloadInfo, variant: &VariantInfo, baseline: &str) -> bool {
    let [here, there] =
        [variant.name.as_str(), baseline].map(|v| failed_share(results, workload, v).unwrap_or(0.0));
    here - there > MANY || is_shown(results, workload, &variant.name)
}

/// Whether a test shows that a variant fails more operations of a workload than the baseline.
fn is_shown(results: &Results, workload: &WorkloadInfo, variant: &str) -> bool {
    let verdict =
        |def: &MetricDef| results.cell(&workload.name, &def.name, variant).and_then(|cell| cell.verdict);
    failures(workload).any(|def| verdict(def) == Some(Verdict::Higher))
}

/// Whether one subject of a run fails more operations than another one, for bounds on what only the answered ones have.
pub(crate) fn fails_more_than(run: &Run, results: &Results, one: Subject<'_>, other: Subject<'_>) -> bool {
    let workload = |subject: Subject<'_>| run.workloads.iter().find(|w| w.name == subject.workload);
    let share = |subject: Subject<'_>| {
        workload(subject).and_then(|info| failed_share(results, info, subject.variant)).unwrap_or(0.0)
    };
    let is_judged = one.workload == other.workload && run.baseline() == Some(other.variant);
    share(one) - share(other) > MANY
        || (is_judged && workload(one).is_some_and(|info| is_shown(results, info, one.variant)))
}

/// Whether more of a workload's operations fail than can be left out of a rate.
pub(crate) fn fails_many(results: &Results, workload: &WorkloadInfo, variant: &str) -> bool {
    failed_share(results, workload, variant).is_some_and(|share| share > MANY)
}

/// Whether a subject's trials are void more often than the baseline's: those that are left may be its lucky ones.
pub(crate) fn is_void_more(results: &Results, subject: Subject<'_>) -> bool {
    results.void_biases.iter().any(|b| b.workload == subject.workload && b.variant == subject.variant)
}
