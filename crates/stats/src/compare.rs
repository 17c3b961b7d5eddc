//! A variant against the baseline, within rounds, and the verdict in words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Outcome of comparing a variant with the baseline over rounds.
///
/// On a ratio scale the figures are ratios variant / baseline (1 is equal); on a difference scale they are
/// differences variant - baseline (0 is equal) in the metric's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Hodges-Lehmann estimate, or the ratio of the merged quantiles.
    pub estimate: f64,
    /// 95 % interval; absent with fewer than six rounds.
    pub interval: Option<(f64, f64)>,
    /// Rounds in which both have a valid trial.
    pub n: usize,
    /// Two-sided p-value of "no effect"; 1 with fewer than six rounds.
    pub p: f64,
    /// The same after Holm's correction over the variants of one metric.
    pub p_holm: f64,
    /// True on the ratio scale.
    pub ratio: bool,
}

/// Bounds that turn figures into a verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margins {
    /// Relative margin of equivalence (0.03: within 3 %).
    pub equivalence: f64,
    /// A/A noise floor on the comparison's own scale (|ln ratio| or |difference|), if known.
    pub floor: Option<f64>,
    /// Level of significance, 0.05.
    pub alpha: f64,
    /// Relative half-width of the interval that the run aims at, for the forecast of rounds.
    pub target_half_width: f64,
}

/// What may be said. `better`/`worse` follow the metric's own direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The variant's value is higher (significant after Holm, and above the noise floor).
    Higher,
    /// The variant's value is lower (likewise).
    Lower,
    /// The two one-sided tests put the effect within the margin.
    Equivalent {
        /// The relative margin.
        margin: f64,
    },
    /// Whatever there is lies below the noise floor of the baseline against itself.
    NoDifferenceSeen {
        /// The floor, on the comparison's scale.
        floor: f64,
    },
    /// Neither a difference nor equivalence is shown.
    Inconclusive {
        /// Rounds that would probably be needed on top, if that can be said.
        more_rounds: Option<u32>,
    },
    /// Fewer than six rounds: no interval, no verdict.
    TooFewRounds,
}
