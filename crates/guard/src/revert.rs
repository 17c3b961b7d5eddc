//! Taking a set back.

use serde::{Deserialize, Serialize};
use weir_sys::ProcRoot;

use crate::change::Host;
use crate::error::Error;
use crate::journal::{Entry, Phase, Step, StepState};
use crate::store::{Store, boot_id};

/// What became of a change when its set was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was never made.
    Untouched,
    /// The value before is there again, and was read back.
    Restored,
    /// Somebody else changed it since: it was left alone.
    LeftToOthers {
        /// What is there; `None`: it is gone.
        found: Option<String>,
    },
    /// It is gone, with its interface, its network namespace or by a reboot, and what was changed with it.
    Gone,
    /// It could not be put back; the next command tries again.
    Failed {
        /// Why.
        why: String,
    },
}

impl Outcome {
    /// For people, in a few words.
    pub fn words(&self) -> String {
        match self {
            Outcome::Untouched => "was never changed".into(),
            Outcome::Restored => "put back".into(),
            Outcome::LeftToOthers { found } => match found {
                Some(found) => format!("left alone: somebody else set it to `{found}`"),
                None => "left alone: somebody else removed it".into(),
            },
            Outcome::Gone => "gone, and the change with it".into(),
            Outcome::Failed { why } => format!("could not be put back: {why}"),
        }
    }
}

/// Seconds since 1970; 0 on a machine that believes to be before.
pub(crate) fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Takes a set back, in reverse order, goes on where a step fails, and writes down what became of each. Calling it again does
/// what is left to do. The caller holds the lock.
///
/// # Errors
/// If the journal cannot be written; everything was put back nevertheless as far as that was possible.
pub(crate) fn revert(store: &mut Store, root: &ProcRoot, why: &str) -> Result<(), Error> {
    // A full disk must not keep the values from being put back: the first failure is told at the end.
    let mut journal = Ok(());
    let mut note = |store: &mut Store, entry: Entry| {
        let outcome = store.append(entry);
        if journal.is_ok() {
            journal = outcome;
        }
    };
    if !matches!(store.set.phase, Phase::Reverting { .. }) {
        note(store, Entry::Reverting { why: why.to_owned(), unix_s: unix_s() });
    }
    let same_boot = boot_id().is_ok_and(|boot| boot == store.set.begin.boot);
    let confirmed = store.set.confirmed_unix_s.is_some();
    let namespace = match &store.set.begin.namespace {
        Some(namespace) => namespace.find(same_boot)?,
        None => None,
    };
    let host = Host { root, namespace: namespace.as_ref() };
    let lost = store.set.begin.namespace.is_some() && namespace.is_none();
    let mut failed = false;
    for n in (0..store.set.begin.steps.len()).rev() {
        let (step, state) = (store.set.begin.steps[n].clone(), store.set.states[n].clone());
        let outcome = match &state {
            StepState::Reverted { .. } => continue,
            StepState::Planned => Outcome::Untouched,
            _ if lost && step.change.is_in_namespace() => Outcome::Gone,
            // What was on trial went with the reboot. What had been confirmed came back with it, from the files.
            _ if !same_boot && !step.change.outlives_reboot() && !confirmed => Outcome::Gone,
            StepState::Stuck { before, .. } => put_back(&host, &step, before),
            _ => put_back(&host, &step, &state),
        };
        failed |= matches!(outcome, Outcome::Failed { .. });
        note(store, Entry::Reverted { step: n, outcome });
    }
    if !failed {
        note(store, Entry::Ended { unix_s: unix_s() });
    }
    journal
}

fn put_back(host: &Host<'_>, step: &Step, state: &StepState) -> Outcome {
    let change = &step.change;
    let old = step.old.as_deref();
    let attempt = || -> Result<Outcome, Error> {
        let now = change.read(host)?;
        if change.same(now.as_deref(), old) {
            return Ok(Outcome::Restored);
        }
        if !change.is_ours(state, now.as_deref()) {
            let gone = now.is_none() && !change.outlives_reboot();
            return Ok(if gone { Outcome::Gone } else { Outcome::LeftToOthers { found: now } });
        }
        change.unmake(host, old)?;
        let now = change.read(host)?;
        if change.same(now.as_deref(), old) {
            return Ok(Outcome::Restored);
        }
        let shown = |value: Option<&str>| value.map_or("absent".to_owned(), |v| format!("`{v}`"));
        Ok(Outcome::Failed { why: format!("it is {} and was {}", shown(now.as_deref()), shown(old)) })
    };
    attempt().unwrap_or_else(|e| Outcome::Failed { why: e.to_string() })
}
