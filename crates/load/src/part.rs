//! The results of one end of a workload.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_record::{Fault, PathFinding, Series};
use weir_stats::Delays;

/// Raw figures of one end; after [`crate::Engine::combine`], the trial's metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Values by name, unit in the name.
    pub values: BTreeMap<String, f64>,
    /// Distributions by name, ns; of delays with the operations that did not end.
    pub histograms: BTreeMap<String, Delays>,
    /// Values over time; t = 0 is the start of the measuring window.
    pub series: Vec<Series>,
    /// Findings about the path: kinds of packets that it does not carry.
    #[serde(default)]
    pub path: Vec<PathFinding>,
    /// Faults of this end.
    pub faults: Vec<Fault>,
    /// CPU seconds (user and system) that this end's own threads or child processes used in the measuring window.
    pub cpu_s: f64,
}

impl Part {
    /// The value of that name, or 0.
    pub fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    /// Set a value.
    pub fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), value);
    }
}

/// Sum of a value over parts.
pub fn sum(parts: &[Part], name: &str) -> f64 {
    parts.iter().map(|p| p.value(name)).sum()
}

/// All histograms of that name merged.
pub fn merged(parts: &[Part], name: &str) -> Delays {
    let mut all = Delays::new();
    for histogram in parts.iter().filter_map(|p| p.histograms.get(name)) {
        all.merge(histogram);
    }
    all
}
