//! The record of a change set, and the state that follows from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::process::Identity;

use crate::change::Change;
use crate::namespace::Namespace;
use crate::step_state::{RevertOutcome, StepState};
use crate::watch::WatchedNumber;

/// Version of the format.
pub(crate) const VERSION: u32 = 2;

/// When a change is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// By `apply`, on trial.
    Apply,
    /// By `confirm`: what makes the others last.
    Confirm,
}

/// A change with the value before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// When.
    pub when: When,
    /// The value before; `None`: it did not exist.
    pub old: Option<String>,
}

/// The first line: everything that is needed to take the set back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// Version of the format.
    pub version: u32,
    /// weir's own.
    pub weir: String,
    /// The set's name: the fingerprint of its changes.
    pub id: String,
    /// The command whose set it is, e.g. `tune`.
    pub by: String,
    /// Its purpose, for people.
    pub title: String,
    /// The kernel's boot_id (random(4)): a reboot takes settings back by itself.
    pub boot: String,
    /// When it was applied, seconds since 1970.
    pub unix_s: u64,
    /// The process that applies it.
    pub applier: Identity,
    /// Time to confirm, s.
    pub timeout_s: u64,
    /// Network namespace of its settings and programs.
    pub namespace: Option<Namespace>,
    /// The changes, in the order in which they are made.
    pub steps: Vec<Step>,
    /// Numbers that must not get worse.
    pub watches: Vec<WatchedNumber>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Entry {
    /// Nothing was changed yet.
    Begin(Box<Begin>),
    /// About to be made.
    Writing { step: usize },
    /// Was made, and what was there then.
    Applied { step: usize, made: Option<String> },
    /// All were made; the set is rolled back at this time (CLOCK_BOOTTIME, ns) unless it is confirmed.
    Waiting { deadline_ns: u64 },
    /// The set was confirmed.
    Confirmed { unix_s: u64 },
    /// It is being rolled back.
    Reverting { why: String, unix_s: u64 },
    /// One change is about to be undone.
    Undoing { step: usize },
    /// The outcome of one change after that.
    Reverted { step: usize, outcome: RevertOutcome },
    /// There is nothing left to do about it.
    Ended { unix_s: u64 },
}

/// How far a change set has come.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "phase", rename_all = "kebab-case")]
pub enum Phase {
    /// Its changes are being made.
    Applying,
    /// All were made, and it waits to be confirmed.
    Waiting {
        /// Until then, ns of CLOCK_BOOTTIME.
        deadline_ns: u64,
    },
    /// It was confirmed.
    Confirmed {
        /// Seconds since 1970.
        unix_s: u64,
    },
    /// It is being rolled back, or was on the way when that process was killed or failed.
    Reverting {
        /// Why.
        why: String,
    },
    /// It was rolled back.
    Reverted {
        /// Why.
        why: String,
        /// Seconds since 1970.
        unix_s: u64,
    },
}

/// A change set as its journal tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeSet {
    /// The changes, and what they are for.
    pub begin: Begin,
    /// How far each change has come.
    pub states: Vec<StepState>,
    /// How far the set has come.
    pub phase: Phase,
    /// When it was confirmed, if ever; seconds since 1970.
    pub confirmed_unix_s: Option<u64>,
}

impl ChangeSet {
    /// From the lines of a journal.
    ///
    /// # Errors
    /// The line, from 1, and what is wrong with it.
    pub(crate) fn replay(entries: impl IntoIterator<Item = Entry>) -> Result<Self, (usize, String)> {
        let mut entries = entries.into_iter();
        let begin = match entries.next() {
            Some(Entry::Begin(begin)) if begin.version == VERSION => *begin,
            Some(Entry::Begin(begin)) => {
                return Err((
                    1,
                    format!("it has version {}; this weir reads version {VERSION}", begin.version),
                ));
            }
            Some(_) => return Err((1, "its beginning is missing".into())),
            None => return Err((1, "it is empty".into())),
        };
        let states = vec![StepState::Planned; begin.steps.len()];
        let mut set = ChangeSet { begin, states, phase: Phase::Applying, confirmed_unix_s: None };
        for (n, entry) in entries.enumerate() {
            set.take(entry).map_err(|why| (n + 2, why))?;
        }
        Ok(set)
    }

    /// Follows one line; in words if it does not follow from those before.
    pub(crate) fn take(&mut self, entry: Entry) -> Result<(), String> {
        let (name, step) = match &entry {
            Entry::Begin(_) => ("begin", None),
            Entry::Writing { step } => ("writing", Some(*step)),
            Entry::Applied { step, .. } => ("applied", Some(*step)),
            Entry::Waiting { .. } => ("waiting", None),
            Entry::Confirmed { .. } => ("confirmed", None),
            Entry::Reverting { .. } => ("reverting", None),
            Entry::Undoing { step } => ("undoing", Some(*step)),
            Entry::Reverted { step, .. } => ("reverted", Some(*step)),
            Entry::Ended { .. } => ("ended", None),
        };
        let misplaced = || format!("`{name}` does not follow from the lines before it");
        match step {
            Some(step) => {
                let next = next_state(self.state(step)?, &self.phase, entry);
                self.states[step] = next.ok_or_else(misplaced)?;
            }
            None => {
                self.phase = self.next_phase(entry).ok_or_else(misplaced)?;
                if let Phase::Confirmed { unix_s } = self.phase {
                    self.confirmed_unix_s = Some(unix_s);
                }
            }
        }
        Ok(())
    }

    /// How far the set is after a line about it; `None` if that does not follow.
    fn next_phase(&self, entry: Entry) -> Option<Phase> {
        let all_reverted = || self.states.iter().all(|s| matches!(s, StepState::Reverted { .. }));
        match (entry, &self.phase) {
            (Entry::Waiting { deadline_ns }, Phase::Applying) => Some(Phase::Waiting { deadline_ns }),
            (Entry::Confirmed { unix_s }, Phase::Waiting { .. }) => Some(Phase::Confirmed { unix_s }),
            (Entry::Reverting { .. }, Phase::Reverted { .. }) => None,
            (Entry::Reverting { why, .. }, _) => Some(Phase::Reverting { why }),
            (Entry::Ended { unix_s }, Phase::Reverting { why }) if all_reverted() => {
                Some(Phase::Reverted { why: why.clone(), unix_s })
            }
            _ => None,
        }
    }

    fn state(&self, step: usize) -> Result<&StepState, String> {
        self.states
            .get(step)
            .ok_or_else(|| format!("there is no change {step}; there are {}", self.states.len()))
    }

    /// True while the set needs a decision, or work to finish, before the next set may come.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.phase, Phase::Applying | Phase::Waiting { .. } | Phase::Reverting { .. })
    }

    /// Steps with their states, of one time.
    pub(crate) fn at(&self, when: When) -> impl Iterator<Item = (usize, &Step, &StepState)> {
        let steps = self.begin.steps.iter().zip(&self.states).enumerate();
        steps.filter(move |(_, (step, _))| step.when == when).map(|(n, (step, state))| (n, step, state))
    }
}

/// How far a change is after a line about it; `None` if that does not follow.
fn next_state(state: &StepState, phase: &Phase, entry: Entry) -> Option<StepState> {
    match (entry, state, phase) {
        (
            Entry::Writing { .. },
            StepState::Planned | StepState::Writing,
            Phase::Applying | Phase::Confirmed { .. },
        ) => Some(StepState::Writing),
        (Entry::Applied { made, .. }, StepState::Writing, _) => Some(StepState::Applied { made }),
        (Entry::Undoing { .. }, StepState::Planned, _) | (_, StepState::Reverted { .. }, _) => None,
        (Entry::Undoing { .. }, state, Phase::Reverting { .. }) => {
            let before = match state {
                StepState::Stuck { before, .. } | StepState::Undoing { before } => before.clone(),
                other => Box::new(other.clone()),
            };
            Some(StepState::Undoing { before })
        }
        (Entry::Reverted { outcome, .. }, state, Phase::Reverting { .. }) => {
            let before = match state {
                StepState::Stuck { before, .. } => before.clone(),
                other => Box::new(other.clone()),
            };
            Some(match outcome {
                RevertOutcome::Failed { why } => StepState::Stuck { why, before },
                outcome => StepState::Reverted { outcome },
            })
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
