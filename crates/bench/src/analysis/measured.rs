//! The trials of a run, by workload, variant and round.

use std::collections::{BTreeMap, HashMap};

use weir_record::{MetricDef, Run, Source, Trial};
use weir_stats::Delays;

/// One workload on one variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Subject<'a> {
    pub(crate) workload: &'a str,
    pub(crate) variant: &'a str,
}

/// The valid trials of a run.
pub(crate) struct Measured<'a> {
    valid: HashMap<Subject<'a>, BTreeMap<u32, &'a Trial>>,
    void: HashMap<Subject<'a>, usize>,
}

impl<'a> Measured<'a> {
    pub(crate) fn of(run: &'a Run) -> Self {
        let mut measured = Measured { valid: HashMap::new(), void: HashMap::new() };
        for trial in &run.trials {
            let subject = Subject { workload: &trial.workload, variant: &trial.variant };
            if trial.is_void() {
                *measured.void.entry(subject).or_default() += 1;
            } else {
                // Should a round hold two, the first one stands: a second look never replaces what was seen.
                measured.valid.entry(subject).or_default().entry(trial.round).or_insert(trial);
            }
        }
        measured
    }

    /// Void trials of a subject.
    pub(crate) fn void(&self, subject: Subject<'_>) -> usize {
        self.void.get(&subject).copied().unwrap_or(0)
    }

    /// Valid trials of a subject, by round.
    pub(crate) fn trials(&self, subject: Subject<'_>) -> Vec<(u32, &'a Trial)> {
        self.valid.get(&subject).into_iter().flatten().map(|(round, trial)| (*round, *trial)).collect()
    }

    /// The valid trial of a subject in a round.
    pub(crate) fn trial(&self, subject: Subject<'_>, round: u32) -> Option<&'a Trial> {
        self.valid.get(&subject)?.get(&round).copied()
    }
}

/// The value of a metric in one trial.
pub(crate) enum Reading<'a> {
    Value(f64),
    Delays(&'a Delays),
}

/// Reads the value of a metric in one trial; `None` if the trial did not measure it. A value that is no number, or no delays at
/// all, count as not measured, and not as zero.
pub(crate) fn read<'a>(trial: &'a Trial, def: &MetricDef) -> Option<Reading<'a>> {
    match &def.source {
        Source::Value => trial.metrics.get(&def.name).copied().filter(|v| v.is_finite()).map(Reading::Value),
        Source::Quantile { histogram, .. } => {
            trial.histograms.get(histogram).filter(|h| !h.is_empty()).map(Reading::Delays)
        }
    }
}
