//! The value of a metric over the trials of one cell.

use weir_record::results::Estimate;
use weir_record::{MetricDef, Run, Source, Status, Trial};
use weir_stats::loss::interval_over_trials;
use weir_stats::order::{cv, median, median_interval};
use weir_stats::quantiles::{bounded_interval, merged_quantile};
use weir_stats::{Censored, Delays};

use super::measured::{Measured, Reading, Subject, read};

/// How much may be computed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Depth {
    /// After every round of a running run.
    Running,
    /// For the record; the run's seed makes the bootstrap repeatable.
    Final { seed: u64 },
}

impl Depth {
    pub(super) fn of(run: &Run) -> Depth {
        if run.status == Status::Running { Depth::Running } else { Depth::Final { seed: run.seed } }
    }
}

/// The metric's value with its interval; `None` where no valid trial measured it.
pub(super) fn estimate(
    measured: &Measured<'_>,
    def: &MetricDef,
    subject: Subject<'_>,
    depth: Depth,
) -> Option<Estimate> {
    let (mut values, mut delays, mut trials) = (Vec::new(), Vec::new(), Vec::new());
    for (_, trial) in measured.trials(subject) {
        match read(trial, def) {
            Some(Reading::Value(value)) => values.push(value),
            Some(Reading::Delays(histogram)) => delays.push(histogram),
            None => continue,
        }
        trials.push(trial);
    }
    match def.source {
        Source::Quantile { q, .. } => of_delays(&delays, q, depth),
        Source::Value => of_failures(def, &trials, &values).or_else(|| of_values(&values)),
    }
}

fn with_spread(center: Censored, interval: Option<(f64, f64)>, values: &[f64]) -> Estimate {
    let range = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let cv = cv(values).filter(|cv| cv.is_finite()).unwrap_or(0.0);
    Estimate { center: center.value, at_least: !center.known, interval, n: values.len(), cv, range }
}

fn of_values(values: &[f64]) -> Option<Estimate> {
    Some(with_spread(median(values)?.into(), median_interval(values), values))
}

/// A share of operations that failed: all failed of all, so that a trial with more of them weighs more, and none of n is
/// given as at most 3/n. `None` for other metrics, and where a trial has no counts.
fn of_failures(def: &MetricDef, trials: &[&Trial], values: &[f64]) -> Option<Estimate> {
    let names = def.failure.as_ref()?;
    if trials.is_empty() {
        return None;
    }
    let count = |trial: &Trial, name: &str| {
        let value = *trial.metrics.get(name)?;
        // Counts are whole and below 2^53, so nothing is lost in f64.
        (value.fract() == 0.0 && (0.0..=9e15).contains(&value)).then_some(value as u64)
    };
    let counts: Option<Vec<(u64, u64)>> =
        trials.iter().map(|t| Some((count(t, &names.failed)?, count(t, &names.of)?))).collect();
    let (center, interval) = interval_over_trials(&counts?)?;
    Some(with_spread(center.into(), interval, values))
}

/// A quantile of delays: of all trials merged, never an average of quantiles.
fn of_delays(delays: &[&Delays], q: f64, depth: Depth) -> Option<Estimate> {
    let seen: Vec<Censored> = delays.iter().filter_map(|h| h.reportable_quantile(q)).collect();
    let own: Vec<f64> = seen.iter().map(|own| own.value).collect();
    let (center, interval) = match depth {
        Depth::Final { seed } => merged_quantile(delays, q, seed)?,
        Depth::Running => {
            let mut all = Delays::new();
            delays.iter().for_each(|h| all.merge(h));
            let center = all.reportable_quantile(q)?;
            let whole = own.len() == delays.len();
            let around = |(l, h): (f64, f64)| (l.min(center.value), h.max(center.value));
            (center, bounded_interval(&seen).filter(|_| whole).map(around))
        }
    };
    let estimate = with_spread(center, interval, &own);
    // Short trials have no quantile of their own to spread; the merge has.
    let range = if own.is_empty() { (center.value, center.value) } else { estimate.range };
    Some(Estimate { n: delays.len(), range, ..estimate })
}
