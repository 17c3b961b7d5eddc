//! Meaning of a number: its unit, which direction is good, and how two of them are compared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use weir_text::units::Unit;

/// Which direction is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// More is better (rates).
    Higher,
    /// Less is better (delays, loss, CPU).
    Lower,
    /// Neither: shown, never judged.
    Neither,
}

/// How a variant's value is set against the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// By ratio, on the logarithm: for quantities that are positive and spread by a factor.
    Ratio,
    /// By difference: for quantities that may be zero (loss, retransmits).
    Difference,
}

/// Source of a trial's value of the metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// [`crate::Trial::metrics`] under the metric's own name.
    Value,
    /// A quantile of the histogram of that name in [`crate::Trial::histograms`]. Over several trials the
    /// histograms are merged; quantiles are never averaged.
    Quantile {
        /// Name of the histogram.
        histogram: String,
        /// Which quantile, 0..=1 (0.5 is the median).
        q: f64,
    },
}

/// Two counts in [`crate::Trial::metrics`] whose ratio is a share of operations that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureCounts {
    /// Operations that failed, were refused or lost, or were not seen to end.
    pub failed: String,
    /// All operations, these included.
    pub of: String,
}

/// Definition of one metric of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricDef {
    /// Name with its unit as suffix, e.g. `goodput_bps`, `rtt_p99_ns`.
    pub name: String,
    /// Short label for tables, e.g. "goodput".
    pub label: String,
    /// Unit of the stored value.
    pub unit: Unit,
    /// Which direction is good.
    pub better: Better,
    /// How it is compared.
    pub scale: Scale,
    /// Source of its value.
    pub source: Source,
    /// True if the metric gets a row in the result table and a say in the stop rule.
    pub headline: bool,
    /// Set if it is the share of operations that failed: it gets a row wherever it is not 0, stands first, and a variant in
    /// which it is greater is called better in nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureCounts>,
    /// One sentence: what it is, with its source (RFC section).
    pub help: String,
}

impl MetricDef {
    /// A headline metric read from [`crate::Trial::metrics`] and compared by ratio.
    pub fn value(name: &str, label: &str, unit: Unit, better: Better, help: &str) -> Self {
        MetricDef {
            name: name.to_owned(),
            label: label.to_owned(),
            unit,
            better,
            scale: Scale::Ratio,
            source: Source::Value,
            headline: true,
            failure: None,
            help: help.to_owned(),
        }
    }

    /// A headline latency quantile (nanoseconds, lower is better) of `histogram`.
    pub fn quantile(name: &str, label: &str, histogram: &str, q: f64, help: &str) -> Self {
        MetricDef {
            source: Source::Quantile { histogram: histogram.to_owned(), q },
            ..MetricDef::value(name, label, Unit::Ns, Better::Lower, help)
        }
    }

    /// The share of operations that failed: `failed` of `of`, both counts of the trial.
    pub fn failure(name: &str, label: &str, (failed, of): (&str, &str), help: &str) -> Self {
        let counts = FailureCounts { failed: failed.to_owned(), of: of.to_owned() };
        MetricDef {
            failure: Some(counts),
            ..MetricDef::value(name, label, Unit::Ratio, Better::Lower, help).by_difference().detail()
        }
    }

    /// The same metric, shown in details only and without a say in the stop rule.
    #[must_use]
    pub fn detail(self) -> Self {
        MetricDef { headline: false, ..self }
    }

    /// The same metric, compared by difference.
    #[must_use]
    pub fn by_difference(self) -> Self {
        MetricDef { scale: Scale::Difference, ..self }
    }
}
