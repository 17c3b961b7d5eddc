//! What a number means: its unit, which direction is good, and how two of them are compared.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Unit of a metric's stored value. Stored values are never scaled (bits per second, not Mbit/s);
/// scaling is the renderer's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bits per second.
    Bps,
    /// Packets or datagrams per second.
    Pps,
    /// Operations (connections, transactions, requests) per second.
    PerSecond,
    /// Nanoseconds.
    Ns,
    /// A count.
    Count,
    /// A share of one, 0..=1.
    Ratio,
    /// CPU seconds per gigabit (1e9 bits) delivered.
    CpuSecondsPerGbit,
    /// CPU nanoseconds per operation or packet.
    CpuNs,
    /// Bytes.
    Bytes,
    /// Busy cores.
    Cores,
}

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

/// Where a trial's value of the metric comes from.
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
    /// Where its value comes from.
    pub source: Source,
    /// True if the metric gets a row in the result table and a say in the stop rule.
    pub headline: bool,
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
