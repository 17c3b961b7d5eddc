//! Conclusions from the trials of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_stats::unbounded::{self, Number};
use weir_stats::{Comparison, Verdict};

use crate::fault::FaultCode;
use crate::patterns::Patterns;
use crate::reserve::Reserve;

/// A value with its interval over the valid trials of one cell. Units are the metric's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Median of the trials' values; for quantiles, the quantile of the merged histogram. Infinite among operations that
    /// failed.
    #[serde(with = "unbounded")]
    #[schemars(with = "Number")]
    pub center: f64,
    /// True if `center` is but a lower bound: the quantile lies among operations that were not seen to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// 95 % interval of it, absent below six trials.
    #[serde(with = "unbounded")]
    #[schemars(with = "Option<(Number, Number)>")]
    pub interval: Option<(f64, f64)>,
    /// Valid trials.
    pub n: usize,
    /// Coefficient of variation of the trials' values.
    pub cv: f64,
    /// Least and greatest trial.
    #[serde(with = "unbounded")]
    #[schemars(with = "(Number, Number)")]
    pub range: (f64, f64),
}

/// One metric of one workload on one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Workload.
    pub workload: String,
    /// Metric, by [`crate::MetricDef::name`].
    pub metric: String,
    /// Variant.
    pub variant: String,
    /// Its value; absent when no trial is valid or the metric was not measured.
    pub estimate: Option<Estimate>,
    /// Void trials, left out.
    pub void: usize,
    /// Against the baseline, within rounds; absent for the baseline itself.
    pub comparison: Option<Comparison>,
    /// In words; absent for the baseline itself and metrics that are not judged.
    pub verdict: Option<Verdict>,
    /// Ratios (or differences) to the baseline per round, for plots.
    #[serde(with = "unbounded")]
    #[schemars(with = "Vec<Number>")]
    pub per_round: Vec<f64>,
}

/// A/A noise floor of one metric of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoiseFloor {
    /// Workload.
    pub workload: String,
    /// Metric.
    pub metric: String,
    /// 95th percentile of |ln(A'/A)| (scale ratio) or |A'-A| (scale difference); absent with fewer than six pairs.
    /// Infinite where the baseline itself failed in some rounds.
    #[serde(with = "unbounded")]
    #[schemars(with = "Option<Number>")]
    pub floor: Option<f64>,
    /// Pairs.
    pub n: usize,
}

/// One metric of a workload against the same metric of another one, inside one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadComparison {
    /// Workload that is judged.
    pub workload: String,
    /// Workload that it is compared with.
    pub with: String,
    /// Metric, which both have.
    pub metric: String,
    /// Variant.
    pub variant: String,
    /// Within rounds; absent where no round has a valid trial of both.
    pub comparison: Option<Comparison>,
    /// In words; absent without a comparison, and for metrics that are not judged.
    pub verdict: Option<Verdict>,
    /// Why the second workload is not better, though the first one is worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Reserve>,
    /// Ratios (or differences) per round, for plots.
    #[serde(with = "unbounded")]
    #[schemars(with = "Vec<Number>")]
    pub per_round: Vec<f64>,
}

/// How often a fault was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultCount {
    /// Kind.
    pub code: FaultCode,
    /// Variant and workload.
    pub variant: String,
    /// Workload.
    pub workload: String,
    /// Trials that show it.
    pub trials: usize,
    /// Void trials among these.
    pub void: usize,
    /// The first one's words.
    pub example: String,
}

/// A variant whose trials of a workload are void more often than the baseline's, for what a hop can bring about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VoidBias {
    /// Workload.
    pub workload: String,
    /// Variant.
    pub variant: String,
    /// Its void trials; those that the hypervisor or the user spoilt are left out here and below.
    pub void: usize,
    /// All its trials.
    pub trials: usize,
    /// The same of the baseline.
    pub baseline_void: usize,
    /// The same of the baseline.
    pub baseline_trials: usize,
    /// Fisher's exact test, one-sided.
    pub p: f64,
}

/// All conclusions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Results {
    /// Rounds in which every trial was made.
    pub complete_rounds: u32,
    /// By workload, metric, variant, in the run's order.
    pub cells: Vec<Cell>,
    /// By workload and metric.
    pub floors: Vec<NoiseFloor>,
    /// By the run's pairs of workloads, metric, variant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workload_comparisons: Vec<WorkloadComparison>,
    /// Jumps between repeats and effects of dimensions, where the run asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patterns: Option<Patterns>,
    /// Faults by kind, variant and workload.
    pub faults: Vec<FaultCount>,
    /// Variants of which no winner is named, since too many of their trials are void.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void_biases: Vec<VoidBias>,
    /// Widest half-width of a headline comparison (relative), and where: `workload/metric/variant`.
    pub widest: Option<(f64, String)>,
}

impl Results {
    /// The cell of that workload, metric and variant.
    pub fn cell(&self, workload: &str, metric: &str, variant: &str) -> Option<&Cell> {
        self.cells.iter().find(|c| c.workload == workload && c.metric == metric && c.variant == variant)
    }
}
