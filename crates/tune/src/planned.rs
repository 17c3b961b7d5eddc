//! A plan: its settings and actions, and the change set that it becomes.

use schemars::JsonSchema;
use serde::Serialize;
use weir_guard::{Change, Namespace, NewSet, When};

use super::action::Action;
use super::beyond::{Advice, Beyond};
use super::knobs::Scope;
use super::metric::Counter;
use super::need::Need;

/// One setting: now, and as proposed.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// Full sysctl name.
    pub name: String,
    /// Its scope.
    pub scope: Scope,
    /// The value now.
    pub now: String,
    /// The value proposed.
    pub proposed: String,
    /// Why, by each who proposes it.
    pub why: Vec<String>,
    /// Memory that it takes more at most, bytes; negative if less.
    pub memory_bytes: i64,
    /// Risk of the change.
    pub risk: String,
    /// The command that rolls it back by hand.
    pub undo: String,
    /// Counters that roll it back during the trial if they get worse. If empty, only the time limit does.
    pub watched: Vec<Counter>,
    /// Why it is shown only, and `apply` leaves it out.
    pub held: Option<String>,
    /// True if it is held because it cannot be written here.
    pub read_only: bool,
    /// A file that sets it after ours when the machine starts, and to what.
    pub overridden_by: Option<String>,
}

/// The planned changes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TunePlan {
    /// Name of the change set: the same changes in the same place have the same name.
    pub id: String,
    /// Profiles and files that it follows from.
    pub from: Vec<String>,
    /// Which network namespace, for people; text from outside.
    pub place: String,
    /// The settings, in the order in which they are written.
    pub rows: Vec<Row>,
    /// Changes after the settings that are no settings themselves.
    pub actions: Vec<Action>,
    /// Changes of rules that weir does not edit: commands for their owner.
    pub advice: Vec<Advice>,
    /// Requirements that the profiles do not reach.
    pub beyond: Vec<Beyond>,
    /// The measured needs.
    pub need: Need,
    /// Memory that may be taken, bytes.
    pub budget_bytes: u64,
    /// Memory that all of it together takes more at most, bytes.
    pub memory_bytes: i64,
    /// Files that `confirm` writes, so that the values last; none where they cannot.
    pub files: Vec<String>,
    /// Notes to read before trusting the plan, with the gaps in the measurements.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub(super) changes: Vec<(When, Change)>,
    #[serde(skip)]
    pub(super) namespace: Option<Namespace>,
}

impl TunePlan {
    /// True if there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|r| r.held.is_some()) && self.actions.iter().all(|a| a.held.is_some())
    }

    /// True if there are settings to change, and they can be written nowhere but elsewhere.
    pub fn is_blocked(&self) -> bool {
        self.is_empty() && self.rows.iter().any(|r| r.read_only)
    }

    /// The changes, to be confirmed within so many seconds.
    pub fn change_set(&self, timeout_s: u64) -> NewSet {
        NewSet {
            title: self.from.join(", "),
            namespace: self.namespace.clone(),
            changes: self.changes.clone(),
            timeout_s,
            watches: Vec::new(),
        }
    }
}
