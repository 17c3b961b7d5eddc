//! The doctor's findings at the gateway, over the trials of a variant and workload.

use std::collections::BTreeMap;

use weir_record::{DiagnosedFinding, Run, VariantInfo, WorkloadInfo};
use weir_text::order;

use crate::escape::line;
use crate::view::trials;

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
    /// Returns its place: `nft-masquerade, http`.
    pub(crate) fn place(&self) -> String {
        format!("{}, {}", line(&self.variant.name), line(&self.workload.name))
    }

    /// True of the same cause at an A/A twin.
    fn repeats(&self, other: &Said<'_>) -> bool {
        self.variant.twin_of.as_deref() == Some(other.variant.name.as_str())
            && self.workload.name == other.workload.name
            && self.finding.cause == other.finding.cause
    }

    /// How often.
    pub(crate) fn often(&self) -> String {
        format!("in {} of {} trials", self.trials, self.watched)
    }

    /// In one sentence, with the commands that help, what may go wrong, and the way back.
    pub(crate) fn sentence(&self) -> String {
        let help = match self.finding.commands.as_slice() {
            [] => String::new(),
            commands => format!(" To do: {}", line(&commands.join("; "))),
        };
        let after: String =
            self.aftermath().iter().map(|(what, text)| format!(" ({what}: {text})")).collect();
        format!("{}: {}{help}{after}", line(&self.finding.cause), line(&self.finding.summary))
    }

    /// Returns the risk of the commands that help, and the commands that undo them, each with its label.
    pub(crate) fn aftermath(&self) -> Vec<(&'static str, String)> {
        let (risk, undo) = (line(&self.finding.risk), line(&self.finding.undo.join("; ")));
        [("risk", risk), ("undo", undo)].into_iter().filter(|(_, text)| !text.is_empty()).collect()
    }
}

/// Every cause that was found, by variant and workload in the run's order, the most frequent first.
pub(crate) fn said(run: &Run) -> Vec<Said<'_>> {
    let mut all = Vec::new();
    for variant in &run.variants {
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
            order::by_key(&mut causes, |(times, finding)| {
                std::cmp::Reverse((*times, finding.explains_packets))
            });
            let one = |(trials, finding)| Said { variant, workload, finding, trials, watched: watched.len() };
            all.extend(causes.into_iter().map(one));
        }
    }
    // A finding at an A/A twin is left out if the twin's original has it, too.
    let twins: Vec<bool> = all.iter().map(|said| all.iter().any(|other| said.repeats(other))).collect();
    let mut twins = twins.into_iter();
    all.retain(|_| !twins.next().unwrap_or(false));
    all
}

/// True if the doctor watched any trial.
pub(crate) fn any(run: &Run) -> bool {
    run.trials.iter().any(|t| t.diagnosed.is_some())
}

/// Returns notes beside the findings: which trials the doctor watched, whether it found nothing, and what it could not see.
pub(crate) fn notes(run: &Run) -> Vec<String> {
    let (whole, place) = extent(run);
    let blind = blind(run);
    let nothing = run.trials.iter().filter_map(|t| t.diagnosed.as_ref()).all(|d| d.findings.is_empty());
    let mut notes = Vec::new();
    if nothing {
        let seen = if blind.is_empty() { "" } else { " in what it could see" };
        notes.push(format!("The doctor watched the gateway {place} and found nothing wrong{seen}."));
    } else if !whole {
        notes.push(format!("The doctor watched the gateway {place}."));
    }
    notes.extend(blind);
    notes
}

/// Whether every trial was watched, and which were, in words.
fn extent(run: &Run) -> (bool, String) {
    let count = |variant: &VariantInfo| {
        let of: Vec<_> = run.trials.iter().filter(|t| t.variant == variant.name).collect();
        (of.iter().filter(|t| t.diagnosed.is_some()).count(), of.len())
    };
    let counts: Vec<_> = run.variants.iter().map(|v| (v, count(v))).collect();
    let sum = counts.iter().fold((0, 0), |sum, (_, n)| (sum.0 + n.0, sum.1 + n.1));
    if sum.0 == sum.1 {
        return (true, "in every trial".to_owned());
    }
    let gaps = counts.iter().filter(|(_, (watched, all))| watched < all);
    let gaps: Vec<_> =
        gaps.map(|(v, (watched, all))| format!("{}: {watched} of {all}", line(&v.name))).collect();
    (false, format!("in {} of {} trials ({})", sum.0, sum.1, gaps.join(", ")))
}

/// Returns what the doctor could not see, with the reason and the number of watched trials affected.
fn blind(run: &Run) -> Vec<String> {
    let watched: Vec<_> = run.trials.iter().filter_map(|t| Some((t, t.diagnosed.as_ref()?))).collect();
    let mut gaps: Vec<(&str, Vec<&str>)> = Vec::new();
    for (trial, diagnosed) in &watched {
        for gap in &diagnosed.not_in_sight {
            match gaps.iter_mut().find(|(known, _)| known == gap) {
                Some((_, places)) => places.push(&trial.variant),
                None => gaps.push((gap, vec![&trial.variant])),
            }
        }
    }
    let words = |(gap, mut places): (&str, Vec<&str>)| {
        let times = places.len();
        let whole = times == watched.len();
        places.sort_unstable();
        places.dedup();
        let of = format!(" in {times} of {} watched trials, {}", watched.len(), line(&places.join(", ")));
        format!("The doctor could not see{}: {}.", if whole { String::new() } else { of }, line(gap))
    };
    gaps.into_iter().map(words).collect()
}
