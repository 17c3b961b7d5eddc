//! The steps of a change set that commands take: apply, confirm, roll back, look.

use std::fs::File;
use std::time::{Duration, Instant};

use weir_sys::ProcRoot;
use weir_sys::process::Identity;
use weir_sys::state::boot_id;

use crate::change::{Change, Host};
use crate::error::{Error, unfit};
use crate::journal::{Begin, ChangeSet, Entry, Phase, Step, VERSION, When};
use crate::new_set::NewSet;
use crate::revert::revert;
use crate::sentinel::{Post, Sentinel};
use crate::slot;
use crate::step_state::{RevertOutcome, StepNow, StepState};
use crate::store::{Folder, Store};
use crate::time::{boot_ns, unix_s};
use crate::timer::{Backstop, Timer};

/// How long a command waits for another one to finish its step.
const PATIENCE: Duration = Duration::from_secs(10);
/// As above, where waiting means that the answer is no in any case.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// Longer than the time between two attempts of another process to get the lock.
const LET_OTHERS: Duration = Duration::from_millis(50);
/// Longest time to confirm, s: a day.
const LONGEST_S: u64 = 86_400;

/// The change sets of one command on this machine.
#[derive(Debug, Clone)]
pub struct ChangeGuard {
    pub(crate) folder: Folder,
    pub(crate) by: String,
    pub(crate) root: ProcRoot,
}

/// The result of a confirmation.
#[derive(Debug, Clone)]
pub struct Confirmed {
    /// The set.
    pub set: ChangeSet,
    /// It had been confirmed before.
    pub already: bool,
    /// Files that could not be written, and values that another program changed meanwhile.
    pub problems: Vec<String>,
}

impl ChangeGuard {
    /// Opens the guard of the command `by` (a short word, which is the journal's name), in the usual place: the folder `guard` in
    /// `$WEIR_STATE_DIR`, or in `/var/lib/weir`.
    pub fn new(by: &str) -> Self {
        ChangeGuard { folder: Folder::usual(), by: by.to_owned(), root: ProcRoot::default() }
    }

    #[cfg(test)]
    pub(crate) fn for_test(by: &str, folder: std::path::PathBuf, root: std::path::PathBuf) -> Self {
        ChangeGuard { folder: Folder::at(folder), by: by.to_owned(), root: ProcRoot::new(root) }
    }

    /// Makes the changes on trial, and leaves a guard process behind that takes them back unless they are confirmed. If one
    /// cannot be made, those before it are rolled back.
    ///
    /// # Errors
    /// Nothing is changed then, or nothing any more; the message says so.
    pub fn apply(&self, new: NewSet, sentinel: &Sentinel) -> Result<ChangeSet, Error> {
        self.apply_with(new, |by, id| sentinel.start(by, id))
    }

    /// Arms the timer where a set needs one. To be called before anything is changed.
    ///
    /// # Errors
    /// If systemd runs and refuses.
    pub fn arm(&self, new: &NewSet, sentinel: &Sentinel) -> Result<Backstop, Error> {
        let (backstop, id) = (new.backstop(), new.id());
        if backstop == Backstop::Timer {
            Timer::of(&self.by, &id).arm(&self.by, &id, sentinel, new.timeout_s)?;
        }
        Ok(backstop)
    }

    /// Each change of a set as it is now.
    pub(crate) fn now(&self, set: &ChangeSet) -> Result<Vec<StepNow>, Error> {
        let host = self.host(set)?;
        let lost = set.begin.namespace.is_some() && host.namespace.is_none();
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

    pub(crate) fn apply_with<G: Post>(
        &self,
        new: NewSet,
        start: impl FnOnce(&str, &str) -> Result<G, Error>,
    ) -> Result<ChangeSet, Error> {
        let (lock, mut store, mut post) = self.make(new, start)?;
        let deadline_ns = boot_ns() + store.set.begin.timeout_s * 1_000_000_000;
        let told = store.append(Entry::Waiting { deadline_ns }).and_then(|()| post.applied());
        let result = told.map_err(|e| self.give_up(&mut store, e));
        drop(lock);
        if result.is_err() {
            self.dismiss(&store.set.begin.id)?;
        }
        result.map(|()| store.set)
    }

    /// Makes the changes, with the guard process ready and the right to take steps held.
    pub(crate) fn make<G: Post>(
        &self,
        new: NewSet,
        start: impl FnOnce(&str, &str) -> Result<G, Error>,
    ) -> Result<(File, Store, G), Error> {
        if !(1..=LONGEST_S).contains(&new.timeout_s) {
            return Err(unfit("the time to confirm", format!("1 to {LONGEST_S} s")));
        }
        self.folder.prepare()?;
        let lock = self.lock_without_guards()?;
        let begin = self.plan(new)?;
        let id = begin.id.clone();
        let mut store = Store::create(&self.folder.journal(&self.by), Entry::Begin(Box::new(begin)))?;
        let post = match start(&self.by, &id) {
            Ok(post) => post,
            Err(e) => {
                revert(&mut store, &self.root, "the guard process did not start")?;
                return Err(e);
            }
        };
        match self.carry_out(&mut store) {
            Ok(()) => Ok((lock, store, post)),
            Err(e) => {
                let error = self.give_up(&mut store, e);
                drop(lock);
                self.dismiss(&store.set.begin.id)?;
                Err(error)
            }
        }
    }

    /// Makes sure that a set may come: rolls back an abandoned one. A plan made before that may rest on values that are about to
    /// change.
    ///
    /// # Errors
    /// If another command's step is under way, or a set waits to be confirmed.
    pub fn make_way(&self) -> Result<(), Error> {
        if !self.folder.exists()? {
            return Ok(());
        }
        let _lock = self.folder.lock(SHORT)?.ok_or(Error::Busy)?;
        self.clear()
    }

    /// The lock, when nothing is in flight and the guards of the set before have ended. One of them may wait for this very lock: while
    /// it does, it occupies the place of a new guard.
    fn lock_without_guards(&self) -> Result<File, Error> {
        let deadline = Instant::now() + SHORT;
        loop {
            let lock = self.folder.lock(SHORT)?.ok_or(Error::Busy)?;
            self.clear()?;
            if slot::holders(&self.folder, &self.by)?.is_empty() {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                // Guards of a settled set that do not end are stopped; with the lock held, no other set can begin.
                slot::dismiss(&self.folder, &self.by)?;
                return Ok(lock);
            }
            drop(lock);
            std::thread::sleep(LET_OTHERS);
        }
    }

    /// The caller holds the lock.
    fn clear(&self) -> Result<(), Error> {
        for path in self.folder.journals()? {
            let Some(mut store) = Store::open(&path, true)? else { continue };
            self.settle(&mut store)?;
            if store.set.is_in_flight() {
                let Begin { id, by, .. } = store.set.begin;
                return Err(Error::InFlight { id, by });
            }
        }
        Ok(())
    }

    fn carry_out(&self, store: &mut Store) -> Result<(), Error> {
        let host = self.host(&store.set)?;
        for n in 0..store.set.begin.steps.len() {
            if store.set.begin.steps[n].when == When::Apply {
                take_step(store, &host, n)?;
            }
        }
        Ok(())
    }

    /// Rolls back what was made of a set that cannot be made as a whole.
    fn give_up(&self, store: &mut Store, error: Error) -> Error {
        let (what, why) = match error {
            Error::Unfit { what, why } => (what, why),
            e => (format!("change set {}", store.set.begin.id), e.to_string()),
        };
        let undone = match revert(store, &self.root, &format!("{what}: {why}")) {
            Ok(()) if matches!(store.set.phase, Phase::Reverted { .. }) => {
                "nothing is changed, what had been made was rolled back".to_owned()
            }
            Ok(()) => "something could not be rolled back, see `status`".to_owned(),
            Err(e) => format!("what had been made was rolled back, but not written down: {e}"),
        };
        Error::Apply { what, why, undone }
    }

    /// The first line of the journal: what there is now is what to go back to.
    fn plan(&self, new: NewSet) -> Result<Begin, Error> {
        let id = new.id();
        if new.changes.is_empty() {
            return Err(unfit("a change set", "it has no changes"));
        }
        let namespace = new.namespace.as_ref().map(|n| n.find(true)).transpose()?.flatten();
        if new.namespace.is_some() && namespace.is_none() {
            return Err(unfit("the network namespace", "it is gone"));
        }
        let host = Host { root: &self.root, namespace };
        let mut steps: Vec<Step> = Vec::new();
        for (when, change) in new.changes {
            change.check(&host)?;
            if steps.iter().any(|s| s.change.target() == change.target()) {
                return Err(unfit(change.target(), "it is to be changed twice"));
            }
            let old = change.read(&host)?;
            if old.is_none() && matches!(change, Change::Sysctl { .. } | Change::KernelFile { .. }) {
                return Err(unfit(change.target(), "this kernel or network namespace does not have it"));
            }
            steps.push(Step { change, when, old });
        }
        Ok(Begin {
            version: VERSION,
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            id,
            by: self.by.clone(),
            title: new.title,
            boot: boot_id()?,
            unix_s: unix_s(),
            applier: Identity::own()?,
            timeout_s: new.timeout_s,
            namespace: new.namespace,
            steps,
            watches: new.watches,
        })
    }

    /// Rolls back an abandoned set: one whose command was killed on the way, whose time is up, which a reboot undid, or whose
    /// rollback did not finish.
    pub(crate) fn settle(&self, store: &mut Store) -> Result<(), Error> {
        let set = &store.set;
        let rebooted = boot_id()? != set.begin.boot;
        let why = match &set.phase {
            Phase::Confirmed { .. } | Phase::Reverted { .. } => return Ok(()),
            Phase::Reverting { why } => why.clone(),
            _ if rebooted => "the machine was rebooted before it was confirmed".to_owned(),
            Phase::Applying if set.begin.applier.is_running()? => return Ok(()),
            Phase::Applying => "the command that applied it was killed".to_owned(),
            Phase::Waiting { deadline_ns } if boot_ns() >= *deadline_ns => {
                format!("not confirmed within {} s", set.begin.timeout_s)
            }
            Phase::Waiting { .. } => return Ok(()),
        };
        revert(store, &self.root, &why)
    }

    /// This command's last set, settled; `None` if there never was one.
    fn open(&self) -> Result<Option<(File, Store)>, Error> {
        if !self.folder.exists()? {
            return Ok(None);
        }
        let lock = self.folder.lock(PATIENCE)?.ok_or(Error::Busy)?;
        let Some(mut store) = Store::open(&self.folder.journal(&self.by), true)? else { return Ok(None) };
        self.settle(&mut store)?;
        Ok(Some((lock, store)))
    }

    /// Makes the last set stay: ends its guard, and writes the files that make it last. Saying it twice does no harm; a second
    /// time also writes files that are still missing because the first one was killed.
    ///
    /// # Errors
    /// If there is no set, or it was rolled back already.
    pub fn confirm(&self) -> Result<Confirmed, Error> {
        let (lock, mut store) = self.open()?.ok_or_else(|| Error::NoSet(self.by.clone()))?;
        let already = match &store.set.phase {
            Phase::Waiting { .. } => false,
            Phase::Confirmed { .. } => true,
            Phase::Reverting { why } | Phase::Reverted { why, .. } => {
                return Err(Error::TakenBack { id: store.set.begin.id.clone(), why: why.clone() });
            }
            Phase::Applying => return Err(Error::Busy),
        };
        let mut problems = Vec::new();
        for ((step, now), state) in
            store.set.begin.steps.iter().zip(self.now(&store.set)?).zip(&store.set.states)
        {
            if let (StepNow::Others { found }, StepState::Applied { .. }) = (&now, state) {
                let into = match step.change {
                    Change::TextFile { .. } | Change::Commands { .. } => "changed it".to_owned(),
                    _ => format!("set it to `{found}`"),
                };
                problems.push(format!("{}: another program {into} meanwhile", step.change.target()));
            }
        }
        let host = self.host(&store.set)?;
        if !already {
            // Before the decision is written: killed in between, it is still a trial, which the guards end.
            for (step, state) in store.set.begin.steps.iter().zip(&store.set.states) {
                if matches!(state, StepState::Applied { .. }) {
                    step.change.make_last(&host)?;
                }
            }
            store.append(Entry::Confirmed { unix_s: unix_s() })?;
        }
        let left: Vec<usize> = store
            .set
            .at(When::Confirm)
            .filter(|(_, _, state)| matches!(state, StepState::Planned | StepState::Writing))
            .map(|(n, ..)| n)
            .collect();
        for n in left {
            if let Err(e) = take_step(&mut store, &host, n) {
                problems.push(format!("it holds until the next reboot only: {e}"));
            }
        }
        drop(lock);
        self.dismiss(&store.set.begin.id)?;
        Ok(Confirmed { set: store.set, already, problems })
    }

    /// Rolls back the last set, confirmed or not. The states show the outcome of each change.
    ///
    /// # Errors
    /// If there is no set, or its journal cannot be written.
    pub fn rollback(&self) -> Result<ChangeSet, Error> {
        let (lock, mut store) = self.open()?.ok_or_else(|| Error::NoSet(self.by.clone()))?;
        if !matches!(store.set.phase, Phase::Reverted { .. }) {
            revert(&mut store, &self.root, "asked for")?;
        }
        drop(lock);
        self.dismiss(&store.set.begin.id)?;
        Ok(store.set)
    }

    /// Ends the last set with things as they are, for a user who put them in order by other means. It changes nothing, and
    /// records each change that was not rolled back yet as left alone.
    ///
    /// # Errors
    /// If there is no set, or its journal cannot be written.
    pub fn abandon(&self, why: &str) -> Result<ChangeSet, Error> {
        let lock = self.folder.lock(PATIENCE)?.ok_or(Error::Busy)?;
        let Some(mut store) = Store::open(&self.folder.journal(&self.by), true)? else {
            return Err(Error::NoSet(self.by.clone()));
        };
        if store.set.is_in_flight() {
            if !matches!(store.set.phase, Phase::Reverting { .. }) {
                store.append(Entry::Reverting { why: why.to_owned(), unix_s: unix_s() })?;
            }
            let host = self.host(&store.set)?;
            for n in 0..store.set.begin.steps.len() {
                if matches!(store.set.states[n], StepState::Reverted { .. }) {
                    continue;
                }
                // A value that cannot be read counts as absent: it is not touched in any case.
                let found = store.set.begin.steps[n].change.read(&host).unwrap_or_default();
                store.append(Entry::Reverted { step: n, outcome: RevertOutcome::LeftToOthers { found } })?;
            }
            store.append(Entry::Ended { unix_s: unix_s() })?;
        }
        drop(lock);
        self.dismiss(&store.set.begin.id)?;
        Ok(store.set)
    }

    /// Ends the guards and the timer of a set that is settled.
    pub(crate) fn dismiss(&self, id: &str) -> Result<(), Error> {
        slot::dismiss(&self.folder, &self.by)?;
        Timer::of(&self.by, id).cancel();
        Ok(())
    }

    /// The host on which the changes of a set are made: in its namespace, if that is still there.
    pub(crate) fn host(&self, set: &ChangeSet) -> Result<Host<'_>, Error> {
        let same_boot = boot_id()? == set.begin.boot;
        let namespace = set.begin.namespace.as_ref().map(|n| n.find(same_boot)).transpose()?.flatten();
        Ok(Host { root: &self.root, namespace })
    }
}

/// Makes one change, with its two lines in the journal.
fn take_step(store: &mut Store, host: &Host<'_>, n: usize) -> Result<(), Error> {
    let Step { change, old, .. } = store.set.begin.steps[n].clone();
    let now = change.read(host)?;
    let killed_here = store.set.states[n] == StepState::Writing;
    if killed_here && change.is_ours(&StepState::Writing, now.as_deref()) {
        return store.append(Entry::Applied { step: n, made: now });
    }
    if !change.same(now.as_deref(), old.as_deref()) {
        let shown = now.map_or("absent".to_owned(), |v| format!("`{v}`"));
        return Err(unfit(change.target(), format!("another program changed it meanwhile: it is {shown}")));
    }
    store.append(Entry::Writing { step: n })?;
    change.make(host)?;
    // The kernel rounds some settings, and some commands do nothing: only the value read back counts.
    let made = change.read(host)?;
    let ineffective = change.same(made.as_deref(), old.as_deref());
    let wanted_other = change.wanted().is_none_or(|w| !change.same(Some(w), old.as_deref()));
    if ineffective && wanted_other {
        return Err(unfit(change.target(), "it was written and has not changed"));
    }
    store.append(Entry::Applied { step: n, made })
}

#[cfg(test)]
#[path = "change_guard_tests.rs"]
mod tests;
