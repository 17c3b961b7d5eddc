//! Two runs of one scenario: what changed.
//!
//! The runs were made at different times, so their trials are independent samples, not pairs
//! ([`weir_stats::two_sample`]). Two questions are answered: did a cell's own value change, and did a
//! variant's cost against the baseline of its own run change. The second one does not suffer from what the
//! whole machine did differently, because each run is its own reference.
//!
//! Failures count: percentiles cover all operations, and a run that fails more is never called better.

mod failing;
mod render;
mod samples;
mod warning;

use schemars::JsonSchema;
use serde::Serialize;
use weir_record::{MetricDef, Run, Scale, VariantInfo, WorkloadInfo};
use weir_stats::compare::holm;
use weir_stats::fisher::more_void;
use weir_stats::two_sample::{self, Bounds};
use weir_stats::unbounded::{self, Number};
use weir_stats::{Comparison, Equivalence, Margins, Verdict};

use crate::view::floor_value;
use failing::Failing;
use samples::{answered_only, middle};

pub use render::{comparison_markdown, comparison_terminal};

/// Level of significance, as within a run.
const ALPHA: f64 = 0.05;

/// Changes from one run to another.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunComparison {
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
    /// the ratio (or difference) to the baseline. Infinite among operations that failed.
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    pub before: f64,
    /// The same in the second run.
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    pub after: f64,
    /// True where `before` and `after` are but lower bounds: among operations that were not seen to end.
    pub at_least: (bool, bool),
    /// True where the first and second run's percentiles are of the operations that were answered, and leave out the others
    /// (records before schema 2).
    pub answered_only: (bool, bool),
    /// The variant (of a cost, it or the baseline) fails more in the second run, beyond the noise floor: nothing is called better then.
    pub fails_more: bool,
    /// It fails less in the second run: nothing is called worse then.
    pub fails_less: bool,
    /// More trials of the variant (of a cost, of it or the baseline) are void in the second run: nothing is called better then, since
    /// those that are left may be its lucky ones.
    pub void_more: bool,
    /// More are void in the first run: nothing is called worse then.
    pub void_less: bool,
    /// Valid trials (for a cost, rounds) in the first and second run.
    pub n: (usize, usize),
    /// After against before. A ratio where all values are positive and the metric is compared by ratio, else
    /// a difference.
    pub comparison: Comparison,
    /// The verdict. The noise floor is the larger one of both runs; Holm's correction is over the variants of one metric.
    pub verdict: Verdict,
}

/// Compare two runs of one scenario. Only workloads, metrics and variants that both have are compared; what
/// only one has is a warning. A/A twins are left out: they are the noise floors.
pub fn compare_runs(before: &Run, after: &Run) -> RunComparison {
    let mut out = RunComparison {
        scenario: after.scenario.clone(),
        before: name_of(before),
        after: name_of(after),
        warnings: warning::warnings(before, after),
        values: Vec::new(),
        costs: Vec::new(),
    };
    for workload in &after.workloads {
        let Some(old) = before.workloads.iter().find(|w| w.name == workload.name) else { continue };
        let (failures, others): (Vec<_>, Vec<_>) = workload
            .metrics
            .iter()
            .filter(|m| m.headline || m.failure.is_some())
            .partition(|m| m.failure.is_some());
        for def in failures.into_iter().chain(others) {
            // A metric whose meaning changed under its name has nothing to be compared with.
            if old.metrics.iter().any(|m| m.name == def.name && m.unit == def.unit && m.source == def.source)
            {
                let pair = Pair { before, after, workload, def };
                out.values.extend(pair.changes(Kind::Values));
                out.costs.extend(pair.changes(Kind::Costs));
            }
        }
    }
    out
}

fn name_of(run: &Run) -> RunName {
    RunName { id: run.id.clone(), started: run.started.clone(), weir: run.weir.clone() }
}

/// Subject of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Values,
    Costs,
}

/// One metric of one workload in both runs.
struct Pair<'a> {
    before: &'a Run,
    after: &'a Run,
    workload: &'a WorkloadInfo,
    def: &'a MetricDef,
}

impl Pair<'_> {
    fn changes(&self, kind: Kind) -> Vec<Change> {
        let mut found: Vec<(&VariantInfo, Vec<Bounds>, Vec<Bounds>, Comparison)> = Vec::new();
        for variant in self.after.variants.iter().filter(|v| v.twin_of.is_none()) {
            let Some(old) = self.before.variants.iter().find(|v| v.name == variant.name) else { continue };
            let (a, b) = (self.samples(kind, self.before, old), self.samples(kind, self.after, variant));
            let ratio = if self.def.scale == Scale::Ratio { two_sample::ratio_between(&a, &b) } else { None };
            if let Some(comparison) = ratio.or_else(|| two_sample::shift_between(&a, &b)) {
                found.push((variant, a, b, comparison));
            }
        }
        // A failure that occurs in neither run has no row.
        let nothing = |values: &[Bounds]| values.iter().all(|value| *value == (0.0, 0.0));
        found.retain(|(_, a, b, _)| self.def.headline || !nothing(a) || !nothing(b));
        let mut comparisons: Vec<Comparison> = found.iter().map(|f| f.3).collect();
        holm(&mut comparisons);
        let change = |((variant, a, b, _), comparison): ((&VariantInfo, Vec<Bounds>, Vec<Bounds>, _), _)| {
            let failing = self.failing(kind, variant);
            let (before, after) = (middle(&a), middle(&b));
            Change {
                workload: self.workload.name.clone(),
                metric: self.def.clone(),
                variant: variant.name.clone(),
                n: (a.len(), b.len()),
                verdict: self.verdict(&comparison),
                before: before.value,
                after: after.value,
                at_least: (!before.known, !after.known),
                answered_only: (answered_only(self.before, self.def), answered_only(self.after, self.def)),
                fails_more: failing.more,
                fails_less: failing.less,
                void_more: self.is_void_more(kind, variant, (self.after, self.before)),
                void_less: self.is_void_more(kind, variant, (self.before, self.after)),
                comparison,
            }
        };
        found.into_iter().zip(comparisons).map(change).collect()
    }

    fn samples(&self, kind: Kind, run: &Run, variant: &VariantInfo) -> Vec<Bounds> {
        match kind {
            Kind::Values => samples::values(run, self.workload, self.def, variant),
            Kind::Costs => samples::costs(run, self.workload, self.def, variant),
        }
    }

    /// Returns whether the variant fails more or less; for a cost, whether it or the baseline does.
    fn failing(&self, kind: Kind, variant: &VariantInfo) -> Failing {
        let of = |name: &str| Failing::of(self.before, self.after, self.workload, name);
        let baseline = self.after.baseline().filter(|_| kind == Kind::Costs);
        let baseline = baseline.map(of).unwrap_or_default();
        let own = of(&variant.name);
        Failing { more: own.more || baseline.more, less: own.less || baseline.less }
    }

    /// Returns whether the variant's trials (for a cost, or the baseline's) are void more often in the first of two runs.
    fn is_void_more(&self, kind: Kind, variant: &VariantInfo, (one, other): (&Run, &Run)) -> bool {
        let of = |name: &str| {
            let [one, other] = [one, other].map(|run| run.void_trials(&self.workload.name, name));
            more_void(one, other).is_some()
        };
        of(&variant.name) || self.after.baseline().filter(|_| kind == Kind::Costs).is_some_and(of)
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
