//! How things are now.

use std::fs::File;

use serde::Serialize;

use crate::change::Host;
use crate::error::Error;
use crate::journal::{ChangeSet, Phase, Step, StepState};
use crate::keeper::{Keeper, SHORT, boot_ns};
use crate::store::{Store, boot_id};

/// A change as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepNow {
    /// As weir made it.
    Ours,
    /// As before.
    Before,
    /// Somebody else's value.
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

/// A change set, and how things are now.
#[derive(Debug, Clone)]
pub struct Status {
    /// As its journal tells it.
    pub set: ChangeSet,
    /// True while a guard process is there to take it back.
    pub guarded: bool,
    /// Time left to confirm, s; `None` when it does not wait.
    pub remaining_s: Option<u64>,
    /// Each change as it is now.
    pub now: Vec<StepNow>,
    /// True if the machine was rebooted since.
    pub rebooted: bool,
    /// True if another command is taking a step just now.
    pub busy: bool,
}

impl Keeper {
    /// The last set and how things are now; `None` if nothing was ever applied. A set that nobody answers for any more is
    /// taken back first.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        let Some((lock, set)) = self.look()? else { return Ok(None) };
        let busy = lock.is_none();
        drop(lock);
        let remaining_s = match set.phase {
            Phase::Waiting { deadline_ns } => {
                Some(deadline_ns.saturating_sub(boot_ns()).div_ceil(1_000_000_000))
            }
            _ => None,
        };
        let rebooted = boot_id()? != set.begin.boot;
        let guarded = set.guard.map_or(Ok(false), |g| g.is_running())? && !rebooted && set.is_in_flight();
        Ok(Some(Status { guarded, remaining_s, now: self.now(&set)?, rebooted, busy, set }))
    }

    /// The last set, settled unless another command is at work.
    fn look(&self) -> Result<Option<(Option<File>, ChangeSet)>, Error> {
        if !self.folder.exists()? {
            return Ok(None);
        }
        let lock = self.folder.lock(SHORT)?;
        let Some(mut store) = Store::open(&self.folder.journal(&self.by), lock.is_some())? else {
            return Ok(None);
        };
        if lock.is_some() {
            self.settle(&mut store)?;
        }
        Ok(Some((lock, store.set)))
    }

    pub(crate) fn now(&self, set: &ChangeSet) -> Result<Vec<StepNow>, Error> {
        let namespace = self.namespace(set)?;
        let lost = set.begin.namespace.is_some() && namespace.is_none();
        let host = Host { root: &self.root, namespace: namespace.as_ref() };
        let look = |(step, state): (&Step, &StepState)| {
            if lost && step.change.is_in_namespace() {
                return StepNow::Absent;
            }
            match step.change.read(&host) {
                Err(e) => StepNow::Unknown { why: e.to_string() },
                Ok(now) if step.change.is_ours(state, now.as_deref()) => StepNow::Ours,
                Ok(now) if step.change.same(now.as_deref(), step.old.as_deref()) => StepNow::Before,
                Ok(None) => StepNow::Absent,
                Ok(Some(found)) => StepNow::Others { found },
            }
        };
        Ok(set.begin.steps.iter().zip(&set.states).map(look).collect())
    }
}
