//! Keeps a verdict from favouring a variant because of work that it left out.
//!
//! Most figures of a trial are about operations that were answered: a hop that refuses half of the connections leaves more of
//! the machine to the others. So a variant that fails more of a workload's operations than the baseline is better in nothing of
//! it; neither is one whose trials are void more often, since those that are left may be its lucky ones.

use weir_record::results::{Cell, Results, VoidBias};
use weir_record::{Better, FaultCode, MetricDef, Run, VariantInfo, WorkloadInfo};
use weir_stats::Verdict;
use weir_stats::fisher;

use super::ALPHA;
use super::estimate::failure_counts;

/// A greater share of failures by more than this counts, shown by a test or not: from one in a thousand on they decide even the
/// p99.9, the remotest percentile of the tables.
const MANY: f64 = 0.001;

/// Void trials in excess of the baseline's, as a share of the variant's trials, that count without a test.
const MANY_VOID: f64 = 0.1;

/// Trials that are void for what a hop can bring about, and all trials; steal and the user's stop are none of these.
fn void_trials(run: &Run, workload: &str, variant: &str) -> (usize, usize) {
    let of_hop = |code: FaultCode| !matches!(code, FaultCode::Steal | FaultCode::Interrupted);
    let mut counts = (0, 0);
    for trial in run.trials.iter().filter(|t| t.workload == workload && t.variant == variant) {
        let void = trial.faults.iter().filter(|f| f.void).any(|f| of_hop(f.code));
        // A trial that the hypervisor spoilt says nothing of either kind.
        if void || !trial.is_void() {
            counts.0 += usize::from(void);
            counts.1 += 1;
        }
    }
    counts
}

/// The workloads in which a variant's trials are void more often than the baseline's.
pub(super) fn void_biases(run: &Run) -> Vec<VoidBias> {
    let Some(baseline) = run.baseline() else { return Vec::new() };
    let mut all = Vec::new();
    for workload in &run.workloads {
        let (base_void, base_trials) = void_trials(run, &workload.name, baseline);
        for variant in run.variants.iter().filter(|v| v.name != baseline) {
            let (void, trials) = void_trials(run, &workload.name, &variant.name);
            let excess = share(void, trials) - share(base_void, base_trials);
            let p = fisher::greater((void, trials), (base_void, base_trials));
            if excess > MANY_VOID || p < ALPHA {
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

fn share(of: usize, all: usize) -> f64 {
    if all > 0 { of as f64 / all as f64 } else { 0.0 }
}

/// Withdraws verdicts in favour of a variant that [`analyse`](super::analyse) must not give.
pub(super) fn temper(run: &Run, results: &mut Results) {
    let Some(baseline) = run.baseline() else { return };
    for workload in &run.workloads {
        for variant in run.variants.iter().filter(|v| v.name != baseline) {
            let fails_more = fails_more(results, workload, variant, baseline);
            let of = |b: &VoidBias| b.workload == workload.name && b.variant == variant.name;
            let void_more = results.void_biases.iter().any(of);
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
        let fails_more = shares[0].unwrap_or(0.0) - shares[1].unwrap_or(0.0) > MANY;
        if let (true, Some(verdict), Some(def)) = (fails_more, pair.verdict, def)
            && praises(verdict, def.better)
        {
            results.workload_comparisons[i].verdict = Some(Verdict::FailsMore);
        }
    }
}

fn praises(verdict: Verdict, better: Better) -> bool {
    matches!((verdict, better), (Verdict::Higher, Better::Higher) | (Verdict::Lower, Better::Lower))
}

/// The greatest of the shares of failed operations that a workload has.
fn failed_share(results: &Results, workload: &WorkloadInfo, variant: &str) -> Option<f64> {
    failures(workload)
        .filter_map(|def| results.cell(&workload.name, &def.name, variant)?.estimate)
        .map(|estimate| estimate.center)
        .reduce(f64::max)
}

fn failures(workload: &WorkloadInfo) -> impl Iterator<Item = &MetricDef> {
    workload.metrics.iter().filter(|def| failure_counts(def).is_some())
}

/// Whether a variant fails more operations of a workload than the baseline.
fn fails_more(results: &Results, workload: &WorkloadInfo, variant: &VariantInfo, baseline: &str) -> bool {
    let shown = |def: &MetricDef| {
        let cell = results.cell(&workload.name, &def.name, &variant.name);
        cell.and_then(|c| c.verdict) == Some(Verdict::Higher)
    };
    let [here, there] =
        [variant.name.as_str(), baseline].map(|v| failed_share(results, workload, v).unwrap_or(0.0));
    here - there > MANY || failures(workload).any(shown)
}

/// Whether one subject of a run fails more operations than another one, for bounds on what only the answered ones have.
pub(crate) fn fails_more_than(
    run: &Run,
    results: &Results,
    (workload, variant): (&str, &str),
    other: &str,
) -> bool {
    let info = run.workloads.iter().find(|w| w.name == workload);
    let share = |variant| info.and_then(|info| failed_share(results, info, variant)).unwrap_or(0.0);
    share(variant) - share(other) > MANY
}
