//! What the doctor found at the gateway, over the trials of a variant and workload.

use std::collections::BTreeMap;

use weir_record::{DiagnosedFinding, Run, VariantInfo, WorkloadInfo};

use crate::escape::line;
use crate::view::{everyone, trials};

/// A cause that was found.
pub(crate) struct Said<'a> {
    pub(crate) variant: &'a VariantInfo,
    pub(crate) workload: &'a WorkloadInfo,
    /// As in the trial in which it explained most.
    pub(crate) finding: &'a DiagnosedFinding,
    /// Trials in which it was found.
    pub(crate) trials: usize,
    /// Trials in which the doctor watched.
    pub(crate) watched: usize,
}

impl Said<'_> {
    /// Where: `nft-masquerade, http`.
    pub(crate) fn place(&self) -> String {
        format!("{}, {}", line(&self.variant.name), line(&self.workload.name))
    }

    /// How often.
    pub(crate) fn often(&self) -> String {
        format!("in {} of {} trials", self.trials, self.watched)
    }

    /// In one sentence, with the commands that help.
    pub(crate) fn sentence(&self) -> String {
        let help = match self.finding.commands.as_slice() {
            [] => String::new(),
            commands => format!(" To do: {}", line(&commands.join("; "))),
        };
        format!("{}: {}{help}", line(&self.finding.cause), line(&self.finding.summary))
    }
}

/// Every cause that was found, by variant and workload in the run's order, the most frequent first.
pub(crate) fn said(run: &Run) -> Vec<Said<'_>> {
    let mut all = Vec::new();
    for variant in everyone(run) {
        for workload in &run.workloads {
            let watched: Vec<_> =
                trials(run, &workload.name, &variant.name).filter_map(|t| t.diagnosed.as_ref()).collect();
            let mut causes: BTreeMap<&str, (usize, &DiagnosedFinding)> = BTreeMap::new();
            for finding in watched.iter().flat_map(|d| &d.findings) {
                let (times, most) = causes.entry(&finding.cause).or_insert((0, finding));
                *times += 1;
                if finding.explains_packets > most.explains_packets {
                    *most = finding;
                }
            }
            let mut causes: Vec<_> = causes.into_values().collect();
            causes.sort_by_key(|(times, finding)| std::cmp::Reverse((*times, finding.explains_packets)));
            let one = |(trials, finding)| Said { variant, workload, finding, trials, watched: watched.len() };
            all.extend(causes.into_iter().map(one));
        }
    }
    all
}

/// True if the doctor watched any trial.
pub(crate) fn any(run: &Run) -> bool {
    run.trials.iter().any(|t| t.diagnosed.is_some())
}

/// What to say where it watched and found nothing.
pub(crate) const NOTHING: &str = "The doctor watched the gateway in every trial and found nothing wrong.";
