//! How things are now.

use std::fs::File;
use std::path::Path;

use weir_sys::state::boot_id;

use crate::change_guard::{ChangeGuard, SHORT};
use crate::error::Error;
use crate::journal::{ChangeSet, Phase, When};
use crate::slot;
use crate::step_state::StepNow;
use crate::store::{Folder, Store};
use crate::time::boot_ns;
use crate::timer::Timer;

/// A change set, and how things are now.
#[derive(Debug, Clone)]
pub struct Status {
    /// As its journal tells it.
    pub set: ChangeSet,
    /// Guard processes that run: 2, unless one is just being restarted.
    pub guards: usize,
    /// Whether a timer of systemd rolls it back should they be killed.
    pub timer: bool,
    /// Time left to confirm, s; `None` when it does not wait.
    pub remaining_s: Option<u64>,
    /// Each change as it is now.
    pub now: Vec<StepNow>,
    /// True if the machine was rebooted since.
    pub rebooted: bool,
    /// True if another command is taking a step just now.
    pub busy: bool,
}

impl Status {
    /// Who ends the trial, and when; `None` where there is none.
    pub fn trial(&self) -> Option<String> {
        let (left, by) = (self.remaining_s?, &self.set.begin.by);
        if self.guards > 0 {
            return Some(format!("on trial: rolls back in {left} s; keep it with: weir {by} confirm"));
        }
        let steps = self.set.begin.steps.iter().filter(|step| step.when == When::Apply);
        let end = if { steps }.all(|step| step.change.ends_by_itself()) {
            format!("the kernel ends the trial in {left} s")
        } else if self.timer {
            format!("a timer of systemd rolls it back in {left} s")
        } else {
            format!("the next weir {by} command rolls it back, in {left} s or later")
        };
        Some(format!(
            "on trial: both guard processes were killed; {end}; weir {by} confirm or weir {by} rollback settles it now"
        ))
    }
}

impl ChangeGuard {
    /// Returns the last set and its present state; `None` if nothing was ever applied. It rolls back an abandoned set first.
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
        let guards = if set.is_in_flight() { slot::holders(&self.folder, &self.by)?.len() } else { 0 };
        let timer = set.is_in_flight() && Timer::of(&self.by, &set.begin.id).is_armed();
        Ok(Some(Status { guards, timer, remaining_s, now: self.now(&set)?, rebooted, busy, set }))
    }

    /// The last set of a command as the journal in a folder of state tells it (`/var/lib/weir`, or that of a namespace in it). Changes
    /// nothing: an abandoned set stays as it is.
    ///
    /// # Errors
    /// If there is a journal, and it cannot be read.
    pub fn read(state: &Path, by: &str) -> Result<Option<ChangeSet>, Error> {
        let folder = Folder::of_state(state);
        if !folder.exists()? {
            return Ok(None);
        }
        Ok(Store::open(&folder.journal(by), false)?.map(|store| store.set))
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
}
