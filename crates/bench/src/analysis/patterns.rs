//! Variants as ways to connect: whether each jumps between repeats, and what its labels do.

mod dimensions;

use weir_record::results::NoiseFloor;
use weir_record::{Pattern, PatternPlan, Patterns, Run, Trial, VariantInfo};
use weir_stats::Censored;
use weir_stats::compare::holm_adjusted;
use weir_stats::order::{mean, median};
use weir_stats::repeats::{Components, Repeat, Repeatability, components, twin_spread};

use super::ALPHA;
use super::measured::{Measured, Subject};

/// The average of a trial, which the table's columns show, as people do.
const METRIC: &str = "rtt_mean_ns";

/// The judged metric: the median. A different path moves every round trip. One stall of 20 ms moves the average of a thousand by
/// a per cent, although no path has changed.
const JUDGED: &str = "rtt_p50_ns";

/// The distribution behind it.
const HISTOGRAM: &str = "rtt";

/// p-value below which the baseline itself is taken to jump, so that its twin says nothing of the place. A real jump is far
/// below it; at 5 % a restless place would often be mistaken for one, and nothing would be left to hold the others against.
const BEYOND_DOUBT: f64 = 0.001;

/// The medians of a trial's windows.
const WINDOWS: &str = "window_p50_ns";

/// Concludes patterns from the trials; `None` if the run made no repeats.
pub(super) fn conclude(
    run: &Run,
    measured: &Measured<'_>,
    plan: &PatternPlan,
    floors: &[NoiseFloor],
) -> Option<Patterns> {
    let margin = run.plan.equivalence_margin;
    let mut found: Vec<Found<'_>> = run
        .variants
        .iter()
        .filter(|v| v.twin_of.is_none())
        .map(|variant| Found::of(variant, measured, plan, margin))
        .collect();
    if found.iter().all(|f| f.averages.is_empty() && f.failed == 0) {
        return None;
    }
    let differences = twin_differences(run, measured, &plan.repeats);
    let baseline = found.iter().find(|f| f.variant.baseline);
    let baseline_jumps = baseline.is_some_and(|f| f.p.is_some_and(|p| p < BEYOND_DOUBT));
    let baseline_mean = baseline.and_then(|f| mean(&f.centres)).filter(|_| !baseline_jumps);
    if let Some(baseline_mean) = baseline_mean {
        for f in &mut found {
            f.hold_against(&differences, baseline_mean);
        }
    }
    let p: Vec<f64> = found.iter().filter_map(|f| f.p).collect();
    let mut adjusted = holm_adjusted(&p).into_iter();
    let patterns = found
        .iter()
        .map(|f| {
            let p_holm = f.p.and_then(|_| adjusted.next());
            f.pattern(run, measured, plan, p_holm)
        })
        .collect();
    // If the baseline jumps, its twin shows how the baseline jumps, and nothing about the testbed.
    let floor = floors
        .iter()
        .find(|f| f.workload == plan.repeats && f.metric == JUDGED)
        .and_then(|f| f.floor)
        .filter(|_| !baseline_jumps);
    Some(Patterns {
        metric: METRIC.to_owned(),
        judged: JUDGED.to_owned(),
        repeats: plan.repeats.clone(),
        once: plan.once.clone(),
        margin,
        twin_spread_ns: twin_spread(&differences).filter(|_| !baseline_jumps),
        patterns,
        dimensions: dimensions::effects(run, measured, &plan.repeats, floor),
    })
}

/// Returns the average of a trial, if it has one. A failed trial has none: it would cover only the few transactions that did not
/// fail.
fn average(trial: &Trial) -> Option<f64> {
    trial.metrics.get(METRIC).copied().filter(|v| v.is_finite() && *v > 0.0 && !failed(trial))
}

/// The median of a trial, if it has one, over all its transactions.
fn typical(trial: &Trial) -> Option<Censored> {
    trial.histograms.get(HISTOGRAM)?.quantile(0.5)
}

/// True if half of a trial's transactions or more failed or did not end.
fn failed(trial: &Trial) -> bool {
    typical(trial).is_some_and(|median| median.seen().is_none())
}

/// The medians of a trial's windows.
fn windows(trial: &Trial) -> Vec<f64> {
    let series = trial.series.iter().find(|s| s.name == WINDOWS);
    series.map(|s| s.points.iter().map(|p| p.1).collect()).unwrap_or_default()
}

/// Returns the value by which a repeat is judged: the mean of its windows' medians, which shows its noise. For a repeat too short
/// for a window, it is the median; for a failed one, `None`.
fn centre(trial: &Trial) -> Option<f64> {
    let median = typical(trial).map(|median| median.seen());
    if median == Some(None) { None } else { mean(&windows(trial)).or(median.flatten()) }
}

/// The twin's medians less those of its original, by round.
fn twin_differences(run: &Run, measured: &Measured<'_>, workload: &str) -> Vec<f64> {
    let Some((twin, original)) = run.variants.iter().find_map(|v| Some((&v.name, v.twin_of.as_deref()?)))
    else {
        return Vec::new();
    };
    measured
        .trials(Subject { workload, variant: twin })
        .into_iter()
        .filter_map(|(round, trial)| {
            let other = measured.trial(Subject { workload, variant: original }, round)?;
            Some(centre(trial)? - centre(other)?)
        })
        .collect()
}

/// One pattern while the others are being looked at.
struct Found<'a> {
    variant: &'a VariantInfo,
    averages: Vec<f64>,
    failed: usize,
    centres: Vec<f64>,
    split: Option<Components>,
    /// p-value of "it does not jump".
    p: Option<f64>,
}

impl<'a> Found<'a> {
    fn of(variant: &'a VariantInfo, measured: &Measured<'_>, plan: &PatternPlan, margin: f64) -> Self {
        let subject = Subject { workload: &plan.repeats, variant: &variant.name };
        let trials = measured.trials(subject);
        let repeat = |trial: &Trial| Some(Repeat { average: centre(trial)?, windows: windows(trial) });
        let failed = trials.iter().filter(|(_, trial)| failed(trial)).count();
        let averages = trials.iter().filter_map(|(_, trial)| average(trial)).collect();
        let repeats: Vec<Repeat> = trials.iter().filter_map(|(_, trial)| repeat(trial)).collect();
        let split = components(&repeats);
        let p = split.map(|s| s.p_above(margin * s.mean));
        let centres = repeats.into_iter().map(|r| r.average).collect();
        Found { variant, averages, failed, centres, split, p }
    }

    /// The testbed's own changes between trials are no jump of the path: both tests must show more than that. A longer path may
    /// move by more, in proportion.
    fn hold_against(&mut self, differences: &[f64], baseline_mean: f64) {
        let of_place = self.split.and_then(|s| {
            let longer = (s.mean / baseline_mean).max(1.0);
            let scaled: Vec<f64> = differences.iter().map(|d| d * longer).collect();
            s.p_above_twins(&scaled)
        });
        if let (Some(p), Some(of_place)) = (&mut self.p, of_place) {
            *p = p.max(of_place);
        }
    }

    fn pattern(
        &self,
        run: &Run,
        measured: &Measured<'_>,
        plan: &PatternPlan,
        p_holm: Option<f64>,
    ) -> Pattern {
        let margin = run.plan.equivalence_margin;
        let of = |workload| Subject { workload, variant: &self.variant.name };
        let once = plan.once.as_deref().map(|once| {
            measured.trials(of(once)).into_iter().filter_map(|(_, t)| average(t)).collect::<Vec<f64>>()
        });
        let verdict = match (self.split, p_holm) {
            (Some(split), Some(p)) => match split.verdict(p, margin, ALPHA) {
                // Those that are left are steady; the way is not.
                Repeatability::Steady { .. } if self.failed > 0 => Repeatability::Open { more_repeats: None },
                verdict => verdict,
            },
            _ => Repeatability::TooFew,
        };
        let levels = match (self.split, verdict) {
            (Some(split), Repeatability::Jumps) => split.levels(&self.centres, margin),
            _ => Vec::new(),
        };
        let range = self.averages.iter().fold(None, |range: Option<(f64, f64)>, v| {
            Some(range.map_or((*v, *v), |(low, high)| (low.min(*v), high.max(*v))))
        });
        Pattern {
            variant: self.variant.name.clone(),
            once_ns: once.and_then(|averages| median(&averages)),
            repeats: self.averages.len(),
            void: measured.void(of(&plan.repeats)),
            failed: self.failed,
            mean_ns: mean(&self.averages),
            range_ns: range,
            components: self.split,
            p: self.p,
            p_holm,
            verdict,
            levels,
        }
    }
}

#[cfg(test)]
mod tests;
