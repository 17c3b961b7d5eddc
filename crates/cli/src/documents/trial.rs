//! Change sets: what the trial commands of `weir tune`, `weir allow` and `weir publish` print.

use schemars::JsonSchema;
use serde::Serialize;
use weir_guard::{ChangeSet, Confirmed, Phase, Status, StepNow, StepState, WatchedNumber, When};

/// A set of changes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Set<'a> {
    /// Name: the same changes have the same name.
    id: &'a str,
    /// Command that made it: tune, allow or publish.
    by: &'a str,
    /// The changes in words.
    title: &'a str,
    /// When it was applied, seconds since 1970.
    applied_unix_s: u64,
    /// Time to confirm, s.
    timeout_s: u64,
    /// How far the set has come.
    progress: &'a Phase,
    /// When it was confirmed, seconds since 1970.
    confirmed_unix_s: Option<u64>,
    /// Numbers whose worsening rolls it back.
    watches: &'a [WatchedNumber],
    /// The changes, in their order.
    steps: Vec<Step<'a>>,
}

/// One change of a set.
#[derive(Debug, Serialize, JsonSchema)]
struct Step<'a> {
    /// Name of the setting, file or program.
    target: String,
    /// When it is made.
    when: When,
    /// The value before; null if it did not exist.
    old: Option<&'a str>,
    /// The new value; null if it is not one text.
    new: Option<&'a str>,
    /// How far the change has come.
    progress: &'a StepState,
    /// How things are now; only in a status.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<&'a StepNow>,
}

impl<'a> Set<'a> {
    /// Builds the document from a change set.
    pub(crate) fn of(set: &'a ChangeSet) -> Self {
        let steps = set.begin.steps.iter().zip(&set.states).map(|(step, state)| Step {
            target: step.change.target(),
            when: step.when,
            old: step.old.as_deref(),
            new: step.change.wanted(),
            progress: state,
            now: None,
        });
        Set {
            id: &set.begin.id,
            by: &set.begin.by,
            title: &set.begin.title,
            applied_unix_s: set.begin.unix_s,
            timeout_s: set.begin.timeout_s,
            progress: &set.phase,
            confirmed_unix_s: set.confirmed_unix_s,
            watches: &set.begin.watches,
            steps: steps.collect(),
        }
    }
}

/// A set, and how things are now.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatusSet<'a> {
    #[serde(flatten)]
    set: Set<'a>,
    /// True if a guard process runs.
    guarded: bool,
    /// Number of guard processes.
    guards: usize,
    /// True if a timer of systemd rolls it back should the guards be killed.
    timer: bool,
    /// Time left to confirm, s.
    remaining_s: Option<u64>,
    /// True if the machine was rebooted since.
    rebooted: bool,
    /// True if another command works on the set now.
    busy: bool,
}

impl<'a> StatusSet<'a> {
    /// Builds the document from a status.
    pub(crate) fn of(status: &'a Status) -> Self {
        let mut set = Set::of(&status.set);
        for (step, now) in set.steps.iter_mut().zip(&status.now) {
            step.now = Some(now);
        }
        StatusSet {
            set,
            guarded: status.guards > 0,
            guards: status.guards,
            timer: status.timer,
            remaining_s: status.remaining_s,
            rebooted: status.rebooted,
            busy: status.busy,
        }
    }
}

/// The end of `confirm`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Confirm<'a> {
    /// The set that stays.
    set: ConfirmedSet<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ConfirmedSet<'a> {
    #[serde(flatten)]
    set: Set<'a>,
    /// True if it had been confirmed before.
    already: bool,
    /// Files that could not be written, and values that another program changed.
    problems: &'a [String],
}

impl<'a> Confirm<'a> {
    pub(crate) fn of(confirmed: &'a Confirmed) -> Self {
        let Confirmed { set, already, problems } = confirmed;
        Confirm { set: ConfirmedSet { set: Set::of(set), already: *already, problems } }
    }
}

/// The end of `rollback`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rollback<'a> {
    /// The set that was rolled back.
    pub(crate) set: Set<'a>,
}

/// The end of `remove`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Remove<'a> {
    /// Names of what was removed: settings, parts of the filter, or mappings.
    pub(crate) removed: &'a [String],
}
