//! Values of a run's trials: one sample for each, which may be infinite or known from below only.

use weir_record::{MetricDef, Run, Scale, Source, Trial, VariantInfo, WorkloadInfo};
use weir_stats::Censored;
use weir_stats::order::median;
use weir_stats::two_sample::Bounds;

use crate::view::trials;

/// The first version of records whose percentiles count operations that did not end.
const COUNTS_ALL: u32 = 2;

/// True if the metric's value in that run leaves out what was not answered.
pub(super) fn answered_only(run: &Run, def: &MetricDef) -> bool {
    run.schema < COUNTS_ALL && matches!(def.source, Source::Quantile { .. })
}

/// The values of a variant's valid trials.
pub(super) fn values(
    run: &Run,
    workload: &WorkloadInfo,
    def: &MetricDef,
    variant: &VariantInfo,
) -> Vec<Bounds> {
    let valid = trials(run, &workload.name, &variant.name).filter(|t| !t.is_void());
    valid.filter_map(|t| reading(t, def)).map(Censored::bounds).collect()
}

/// Ratios or differences to the run's own baseline, round by round; nothing for the baseline itself.
pub(super) fn costs(
    run: &Run,
    workload: &WorkloadInfo,
    def: &MetricDef,
    variant: &VariantInfo,
) -> Vec<Bounds> {
    let Some(baseline) = run.baseline().filter(|b| *b != variant.name) else { return Vec::new() };
    let value = |name: &str, round: u32| {
        let mut valid = trials(run, &workload.name, name).filter(|t| t.round == round && !t.is_void());
        valid.find_map(|t| reading(t, def)).map(Censored::bounds)
    };
    let rounds = run.trials.iter().map(|t| t.round + 1).max().unwrap_or(0);
    let pairs = (0..rounds).filter_map(|r| Some((value(&variant.name, r)?, value(baseline, r)?)));
    match def.scale {
        Scale::Ratio => pairs.map(|(v, b)| (part(v.0, b.1), part(v.1, b.0))).collect(),
        Scale::Difference => pairs.map(|(v, b)| (v.0 - b.1, v.1 - b.0)).collect(),
    }
}

/// `v / b`; 1 where both failed, and where nothing came through on either side.
fn part(v: f64, b: f64) -> f64 {
    if v == b { 1.0 } else { v / b }
}

/// A trial's own value of a metric. A percentile is one of all operations.
fn reading(trial: &Trial, def: &MetricDef) -> Option<Censored> {
    match &def.source {
        Source::Value => trial.metrics.get(&def.name).filter(|v| v.is_finite()).map(|v| (*v).into()),
        Source::Quantile { histogram, q } => trial.histograms.get(histogram)?.quantile(*q),
    }
}

/// The median of samples; of those that are known from below only, what it is at least.
pub(super) fn middle(samples: &[Bounds]) -> Censored {
    let of =
        |end: fn(&Bounds) -> f64| median(&samples.iter().map(end).collect::<Vec<_>>()).unwrap_or(f64::NAN);
    let (low, high) = (of(|sample| sample.0), of(|sample| sample.1));
    Censored { value: low, known: low == high }
}
