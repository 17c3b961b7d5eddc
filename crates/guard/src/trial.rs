//! Changes that are made and rolled back in turn, to be measured.

use std::fs::File;

use crate::change_guard::ChangeGuard;
use crate::error::{Error, unfit};
use crate::journal::{ChangeSet, Phase};
use crate::new_set::NewSet;
use crate::revert::revert;
use crate::sentinel::{Post, Sentinel, Started};
use crate::step_state::StepState;
use crate::store::Store;

/// Changes on trial. The journal always lists them as made, so that a rollback checks each one: a change with its old value needs
/// nothing. Dropping it rolls them back.
#[derive(Debug)]
#[expect(private_bounds, reason = "only tests replace the guard process")]
pub struct ChangeTrial<G: Post = Started> {
    pub(crate) keeper: ChangeGuard,
    pub(crate) store: Store,
    /// Whether the changes are made now.
    pub(crate) made: bool,
    /// Its standard input is what tells the guard process that we are there.
    pub(crate) post: G,
    pub(crate) _lock: File,
}

impl ChangeGuard {
    /// Makes the changes for as long as the value lives, to try them: they are rolled back at its end, and by the guard process
    /// when this process is killed.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn try_out(&self, new: NewSet, sentinel: &Sentinel) -> Result<ChangeTrial, Error> {
        self.try_out_with(new, |by, id| sentinel.start(by, id))
    }

    pub(crate) fn try_out_with<G: Post>(
        &self,
        new: NewSet,
        start: impl FnOnce(&str, &str) -> Result<G, Error>,
    ) -> Result<ChangeTrial<G>, Error> {
        let (lock, store, post) = self.make(new, start)?;
        Ok(ChangeTrial { keeper: self.clone(), store, made: true, post, _lock: lock })
    }
}

#[expect(private_bounds, reason = "as above")]
impl<G: Post> ChangeTrial<G> {
    /// The set.
    pub fn set(&self) -> &ChangeSet {
        &self.store.set
    }

    /// Takes the changes back (`false`) or makes them again (`true`), each only where it is what we left.
    ///
    /// # Errors
    /// If another program changed a value meanwhile, or the system refuses. The trial should end then.
    pub fn switch(&mut self, made: bool) -> Result<(), Error> {
        // It is to take everything back when we cannot.
        if !self.post.is_there()? {
            return Err(unfit("the trial", "its guard processes are gone"));
        }
        if self.made == made {
            return Ok(());
        }
        let host = self.keeper.host(&self.store.set)?;
        let set = &self.store.set;
        let mut steps: Vec<_> = set.begin.steps.iter().zip(&set.states).collect();
        if !made {
            steps.reverse();
        }
        for (step, state) in steps {
            let StepState::Applied { made: value } = state else { continue };
            let (from, to) = if made { (&step.old, value) } else { (value, &step.old) };
            let now = step.change.read(&host)?;
            if !step.change.same(now.as_deref(), from.as_deref()) {
                return Err(unfit(step.change.target(), "another program changed it during the trial"));
            }
            if made {
                step.change.make(&host)?
            } else {
                step.change.unmake(&host, to.as_deref())?
            }
            let now = step.change.read(&host)?;
            if !step.change.same(now.as_deref(), to.as_deref()) {
                return Err(unfit(step.change.target(), "it did not change as before"));
            }
        }
        self.made = made;
        Ok(())
    }

    /// Takes everything back, and says what became of it.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn end(mut self) -> Result<ChangeSet, Error> {
        self.finish()?;
        Ok(self.store.set.clone())
    }

    fn finish(&mut self) -> Result<(), Error> {
        if matches!(self.store.set.phase, Phase::Reverted { .. }) {
            return Ok(());
        }
        revert(&mut self.store, &self.keeper.root, "the trial is over")?;
        self.keeper.dismiss(&self.store.set.begin.id)
    }
}

impl<G: Post> Drop for ChangeTrial<G> {
    fn drop(&mut self) {
        // Callers call `end` to learn of failures; the journal lists them too, and the next command tries again.
        let _ = self.finish();
    }
}
