//! How far one change has come, and what became of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far one change has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum StepState {
    /// Not begun.
    Planned,
    /// About to be made; whether it was is not written down.
    Writing,
    /// Made.
    Applied {
        /// The value at that time.
        made: Option<String>,
    },
    /// About to be undone; whether it was, or half of it, is not written down.
    Undoing {
        /// How far it had come before.
        #[serde(skip)]
        before: Box<StepState>,
    },
    /// Rolled back, or not to be rolled back.
    Reverted {
        /// Its outcome.
        #[serde(flatten)]
        outcome: RevertOutcome,
    },
    /// It could not be restored; the next command tries again.
    Stuck {
        /// Why.
        why: String,
        /// How far it had come.
        #[serde(skip)]
        before: Box<StepState>,
    },
}

/// The outcome of a change when its set was rolled back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum RevertOutcome {
    /// It was never made.
    Untouched,
    /// The value before is there again, and was read back.
    Restored,
    /// Another program changed it since: it was left alone.
    LeftToOthers {
        /// The value found; `None`: it is gone.
        found: Option<String>,
    },
    /// It is gone, with its interface, its network namespace or by a reboot, and what was changed with it.
    Gone,
    /// It could not be restored; the next command tries again.
    Failed {
        /// Why.
        why: String,
    },
}

impl RevertOutcome {
    /// For people, in a few words.
    pub fn words(&self) -> String {
        match self {
            RevertOutcome::Untouched => "was never changed".into(),
            RevertOutcome::Restored => "restored".into(),
            RevertOutcome::LeftToOthers { found } => match found {
                Some(found) => format!("left alone: another program set it to `{found}`"),
                None => "left alone: another program removed it".into(),
            },
            RevertOutcome::Gone => "gone, and the change with it".into(),
            RevertOutcome::Failed { why } => format!("could not be restored: {why}"),
        }
    }
}

/// A change as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StepNow {
    /// As weir made it.
    Ours,
    /// As before.
    Before,
    /// Another program's value.
    Others {
        /// The value.
        found: String,
    },
    /// It does not exist.
    Absent,
    /// It cannot be read.
    Unknown {
        /// Why.
        why: String,
    },
}
