//! Taking a set back.

use weir_sys::ProcRoot;
use weir_sys::state::boot_id;

use crate::change::Host;
use crate::error::Error;
use crate::journal::{Entry, Phase, Step};
use crate::step_state::{RevertOutcome, StepState};
use crate::store::Store;
use crate::time::unix_s;

/// Takes a set back, in reverse order, goes on where a step fails, and writes down what became of each. Calling it again does
/// what is left to do. The caller holds the lock.
///
/// # Errors
/// If the journal cannot be written; everything was restored nevertheless as far as that was possible.
pub(crate) fn revert(store: &mut Store, root: &ProcRoot, why: &str) -> Result<(), Error> {
    // A full disk must not keep the values from being restored: the first failure is returned at the end.
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
    let lost = store.set.begin.namespace.is_some() && namespace.is_none();
    let host = Host { root, namespace };
    let mut failed = false;
    for n in (0..store.set.begin.steps.len()).rev() {
        let (step, state) = (store.set.begin.steps[n].clone(), store.set.states[n].clone());
        let outcome = match &state {
            StepState::Reverted { .. } => continue,
            StepState::Planned => RevertOutcome::Untouched,
            _ if lost && step.change.is_in_namespace() => RevertOutcome::Gone,
            // A reboot removed changes on trial. It brought confirmed changes back, from the files.
            _ if !same_boot && !step.change.outlives_reboot() && !confirmed => RevertOutcome::Gone,
            _ => {
                let state = if let StepState::Stuck { before, .. } = &state { before } else { &state };
                put_back(&host, &step, state, || note(store, Entry::Undoing { step: n }))
            }
        };
        failed |= matches!(outcome, RevertOutcome::Failed { .. });
        note(store, Entry::Reverted { step: n, outcome });
    }
    if !failed {
        note(store, Entry::Ended { unix_s: unix_s() });
    }
    journal
}

/// Puts the value before back. Calls `about_to` before it changes anything: killed on the way, the next process knows whose half it
/// finds.
fn put_back(host: &Host<'_>, step: &Step, state: &StepState, about_to: impl FnOnce()) -> RevertOutcome {
    let change = &step.change;
    let old = step.old.as_deref();
    let attempt = || -> Result<RevertOutcome, Error> {
        let now = change.read(host)?;
        if change.same(now.as_deref(), old) {
            return Ok(RevertOutcome::Restored);
        }
        if !change.is_ours(state, now.as_deref()) {
            let gone = now.is_none() && !change.outlives_reboot();
            return Ok(if gone { RevertOutcome::Gone } else { RevertOutcome::LeftToOthers { found: now } });
        }
        about_to();
        change.unmake(host, old)?;
        let now = change.read(host)?;
        if change.same(now.as_deref(), old) {
            return Ok(RevertOutcome::Restored);
        }
        let shown = |value: Option<&str>| value.map_or("absent".to_owned(), |v| format!("`{v}`"));
        Ok(RevertOutcome::Failed { why: format!("it is {} and was {}", shown(now.as_deref()), shown(old)) })
    };
    attempt().unwrap_or_else(|e| RevertOutcome::Failed { why: e.to_string() })
}
