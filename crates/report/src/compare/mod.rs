//! Two runs of one scenario: what changed.
//!
//! The runs were made at different times, so their trials are independent samples, not pairs
//! ([`weir_stats::two_sample`]). Two questions are answered: did a cell's own value change, and did a
//! variant's cost against the baseline of its own run change. The second one does not suffer from what the
//! whole machine did differently, because each run is its own reference.

mod render;
mod warning;

use schemars::JsonSchema;
use serde::Serialize;
use weir_record::{MetricDef, Run, Scale, VariantInfo, WorkloadInfo};
use weir_stats::compare::holm;
use weir_stats::{Comparison, Equivalence, Margins, Verdict, two_sample};

use crate::view::{floor_value, trial_value, trials};

pub use render::{comparison_markdown, comparison_terminal};

/// Version of the layout of [`RunComparison`] as JSON.
pub const COMPARISON_SCHEMA: u32 = 1;

/// Level of significance, as within a run.
const ALPHA: f64 = 0.05;

/// What changed from one run to another.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunComparison {
    /// [`COMPARISON_SCHEMA`] of the writer.
    pub schema: u32,
    /// Scenario of the first run.
    pub scenario: String,
    /// The first run's identifier and start.
    pub before: RunName,
    /// The second run's.
    pub after: RunName,
    /// Differences between the runs that may explain a change: kernel, offloads, versions, scenario text.
    pub warnings: Vec<String>,
    /// Values of single cells: after against before.
    pub values: Vec<Change>,
    /// Costs within each run (variant against its run's baseline): after against before.
    pub costs: Vec<Change>,
}

/// Which run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunName {
    /// Identifier.
    pub id: String,
    /// Start, RFC 3339.
    pub started: String,
    /// Version of weir that made it.
    pub weir: String,
}

/// One value or cost in both runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Change {
    /// Workload.
    pub workload: String,
    /// Definition of the metric, from the second run.
    pub metric: MetricDef,
    /// Variant.
    pub variant: String,
    /// Median of the trials' values in the first run, in the metric's unit; for a cost, median over rounds of
    /// the ratio (or difference) to the baseline.
    pub before: f64,
    /// The same in the second run.
    pub after: f64,
    /// Valid trials (for a cost, rounds) in the first and second run.
    pub n: (usize, usize),
    /// After against before. A ratio where all values are positive and the metric is compared by ratio, else
    /// a difference.
    pub comparison: Comparison,
    /// What may be said. The noise floor is the larger one of both runs; Holm's correction is over the
    /// variants of one metric.
    pub verdict: Verdict,
}

/// Compare two runs of one scenario. Only workloads, metrics and variants that both have are compared; what
/// only one has is a warning. A/A twins are left out: they are the noise floors.
pub fn compare_runs(before: &Run, after: &Run) -> RunComparison {
    let mut out = RunComparison {
        schema: COMPARISON_SCHEMA,
        scenario: after.scenario.clone(),
        before: name_of(before),
        after: name_of(after),
        warnings: warning::warnings(before, after),
        values: Vec::new(),
        costs: Vec::new(),
    };
    for workload in &after.workloads {
        let Some(old) = before.workloads.iter().find(|w| w.name == workload.name) else { continue };
        for def in workload.metrics.iter().filter(|m| m.headline) {
            // A metric whose meaning changed under its name has nothing to be compared with.
            if old.metrics.iter().any(|m| m.name == def.name && m.unit == def.unit && m.source == def.source)
            {
                let pair = Pair { before, after, workload, def };
                out.values.extend(pair.changes(Pair::values));
                out.costs.extend(pair.changes(Pair::costs));
            }
        }
    }
    out
}

fn name_of(run: &Run) -> RunName {
    RunName { id: run.id.clone(), started: run.started.clone(), weir: run.weir.clone() }
}

/// One metric of one workload in both runs.
struct Pair<'a> {
    before: &'a Run,
    after: &'a Run,
    workload: &'a WorkloadInfo,
    def: &'a MetricDef,
}

impl Pair<'_> {
    fn changes(&self, samples: impl Fn(&Self, &Run, &VariantInfo) -> Vec<f64>) -> Vec<Change> {
        let mut found: Vec<(String, Vec<f64>, Vec<f64>, Comparison)> = Vec::new();
        for variant in self.after.variants.iter().filter(|v| v.twin_of.is_none()) {
            let Some(old) = self.before.variants.iter().find(|v| v.name == variant.name) else { continue };
            let (a, b) = (samples(self, self.before, old), samples(self, self.after, variant));
            let ratio = if self.def.scale == Scale::Ratio { two_sample::ratio(&a, &b) } else { None };
            if let Some(comparison) = ratio.or_else(|| two_sample::shift(&a, &b)) {
                found.push((variant.name.clone(), a, b, comparison));
            }
        }
        let mut comparisons: Vec<Comparison> = found.iter().map(|f| f.3).collect();
        holm(&mut comparisons);
        found
            .into_iter()
            .zip(comparisons)
            .map(|((variant, a, b, _), comparison)| Change {
                workload: self.workload.name.clone(),
                metric: self.def.clone(),
                variant,
                n: (a.len(), b.len()),
                verdict: self.verdict(&comparison),
                before: median(a),
                after: median(b),
                comparison,
            })
            .collect()
    }

    fn values(&self, run: &Run, variant: &VariantInfo) -> Vec<f64> {
        let valid = trials(run, &self.workload.name, &variant.name).filter(|t| !t.is_void());
        valid.filter_map(|t| trial_value(t, self.def)).collect()
    }

    /// Ratios or differences to the run's own baseline, round by round; nothing for the baseline itself.
    fn costs(&self, run: &Run, variant: &VariantInfo) -> Vec<f64> {
        let Some(baseline) = run.baseline().filter(|b| *b != variant.name) else { return Vec::new() };
        let value = |name: &str, round: u32| {
            let mut valid =
                trials(run, &self.workload.name, name).filter(|t| t.round == round && !t.is_void());
            valid.find_map(|t| trial_value(t, self.def))
        };
        let rounds = run.trials.iter().map(|t| t.round + 1).max().unwrap_or(0);
        let pairs = (0..rounds).filter_map(|r| Some((value(&variant.name, r)?, value(baseline, r)?)));
        if self.def.scale == Scale::Ratio {
            pairs.map(|(v, b)| v / b).filter(|r| r.is_finite()).collect()
        } else {
            pairs.map(|(v, b)| v - b).collect()
        }
    }

    fn verdict(&self, c: &Comparison) -> Verdict {
        let floors = [self.before, self.after].map(|run| {
            run.results.as_ref().and_then(|r| floor_value(r, &self.workload.name, &self.def.name))
        });
        // A floor belongs to the scale on which it was measured.
        let same_scale = c.ratio == (self.def.scale == Scale::Ratio);
        let floor = floors.into_iter().flatten().reduce(f64::max).filter(|_| same_scale);
        let margins = Margins {
            equivalence: self.after.plan.equivalence_margin,
            floor,
            alpha: ALPHA,
            target_half_width: self.after.plan.target_half_width,
        };
        // The 95 % interval within the margin is two one-sided tests at 2.5 %: stricter than the 5 % within a
        // run.
        let margin = margins.equivalence.ln_1p();
        let equivalence = c.ratio.then(|| {
            let inside = c.effect_interval().is_some_and(|(low, high)| -margin < low && high < margin);
            Equivalence { margin, p: if inside { ALPHA / 2.0 } else { 1.0 } }
        });
        match weir_stats::verdict(c, equivalence.as_ref(), &margins) {
            // A run that has ended gets no more rounds.
            Verdict::Inconclusive { .. } => Verdict::Inconclusive { more_rounds: None },
            said => said,
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}
