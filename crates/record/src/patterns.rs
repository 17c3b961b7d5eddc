//! Ways to connect, measured repeatedly: what was asked, and what was concluded.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_stats::repeats::{Components, Level, Repeatability};
use weir_stats::{Comparison, Verdict};

use crate::reserve::Reserve;

/// Which workloads stand in the two columns of the table of patterns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PatternPlan {
    /// The workload whose trials are the repeats, each over a connection of its own.
    pub repeats: String,
    /// The one whose average is the first column, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
}

/// One variant as a way to connect. Times are averages over transactions, nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pattern {
    /// Variant.
    pub variant: String,
    /// Average over the one long trial; where there were several of them the median.
    pub once_ns: Option<f64>,
    /// Valid repeats.
    pub repeats: usize,
    /// Void repeats, left out.
    pub void: usize,
    /// Further valid repeats of which half of the transactions or more failed or did not end; no other figure covers them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: usize,
    /// Mean of the repeats' averages.
    pub mean_ns: Option<f64>,
    /// Least and greatest of the repeats' averages.
    pub range_ns: Option<(f64, f64)>,
    /// Components of the variance of the repeats' medians, which stalls do not move: the variance between repeats apart from that
    /// within them; absent with too few repeats or windows.
    pub components: Option<Components>,
    /// p-value of "it does not jump", and the same after Holm's correction over the patterns.
    pub p: Option<f64>,
    /// See `p`.
    pub p_holm: Option<f64>,
    /// The verdict.
    pub verdict: Repeatability,
    /// The few levels between which it jumps, if it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
}

/// One level of a dimension against another one, within rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DimensionEffect {
    /// Key of the label, e.g. `zone`.
    pub dimension: String,
    /// The value that is judged.
    pub level: String,
    /// The value that it is compared with.
    pub against: String,
    /// Variants with the first value that took part.
    pub variants: Vec<String>,
    /// Variants with the second value that took part.
    pub against_variants: Vec<String>,
    /// Dimensions in which both sides are the same, pair by pair.
    pub matched: Vec<String>,
    /// Dimensions over which a side was averaged: they have no meaning on the other side (a zone, where there is none), or,
    /// where nothing matches, differ between the sides.
    pub averaged: Vec<String>,
    /// True where nothing matched: what is seen may be the effect of the averaged dimensions.
    pub confounded: bool,
    /// Difference of the medians, nanoseconds.
    pub difference: Comparison,
    /// The same as a ratio, which is what is judged.
    pub ratio: Comparison,
    /// In words.
    pub verdict: Verdict,
    /// Why the second value is not better, though the first one is worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Reserve>,
    /// Differences per round, nanoseconds, without those in which half of the transactions or more failed or did not end.
    pub per_round_ns: Vec<f64>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Everything that was concluded about patterns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Patterns {
    /// The metric whose averages these are.
    pub metric: String,
    /// The metric that is judged: jumps by the medians of its windows, dimensions by itself.
    pub judged: String,
    /// The workload whose trials are the repeats.
    pub repeats: String,
    /// The workload of the first column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
    /// Variation below this share of the mean is not called a jump.
    pub margin: f64,
    /// Standard deviation that the place itself gives an average between trials, from the A/A twin, nanoseconds; absent
    /// without a twin, with too few rounds, or where the baseline jumps itself and its twin says nothing of the place.
    pub twin_spread_ns: Option<f64>,
    /// In the run's order, without the twin.
    pub patterns: Vec<Pattern>,
    /// By dimension, in the order in which their labels and values appear.
    pub dimensions: Vec<DimensionEffect>,
}
