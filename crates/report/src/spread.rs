//! How much the trials of a cell differ from each other, where ways to measure are set side by side: of two that measure the same
//! thing the one that repeats better tells smaller differences apart.

use weir_record::results::Results;
use weir_record::{Better, Run, Scale, Unit};

use crate::escape::line;
use crate::units::{display_for_all, in_display, percent};
use crate::view;

/// Title of the table.
pub(crate) const TITLE: &str = "spread of the trials";

/// A rate of one workload on one variant.
pub(crate) struct Spread {
    pub(crate) workload: String,
    pub(crate) metric: String,
    pub(crate) variant: String,
    pub(crate) value: String,
    /// Coefficient of variation, with the number of trials.
    pub(crate) said: String,
}

/// The rates of workloads that are compared with each other, in the run's order, with twins left out.
pub(crate) fn rows(run: &Run, results: &Results) -> Vec<Spread> {
    let mut all = Vec::new();
    let paired = |name: &str| run.compare.iter().any(|p| p.workload == name || p.with == name);
    for workload in view::workloads(run).filter(|w| paired(&w.name)) {
        for variant in view::compared(run) {
            let mut told = Vec::new();
            for def in &workload.metrics {
                let is_rate = matches!(def.unit, Unit::Bps | Unit::Pps | Unit::PerSecond);
                if !is_rate || def.better != Better::Higher || def.scale != Scale::Ratio {
                    continue;
                }
                let cell = results.cell(&workload.name, &def.name, &variant.name);
                let Some(estimate) = cell.and_then(|c| c.estimate).filter(|e| e.n > 1) else { continue };
                // Some values have a second name, for comparisons; twice they tell nothing new.
                if told.contains(&estimate) {
                    continue;
                }
                told.push(estimate);
                let shown = display_for_all(def.unit, [estimate.center]);
                all.push(Spread {
                    workload: line(&workload.name),
                    metric: line(&def.label),
                    variant: line(&variant.name),
                    value: in_display(def.unit, estimate.center, None, shown),
                    said: format!("varies by {}, n = {}", percent(estimate.cv), estimate.n),
                });
            }
        }
    }
    all
}
