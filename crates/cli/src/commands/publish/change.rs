//! Ports led by BPF as a change on trial: the same for `weir publish apply` and for `weir tune apply`.

use std::path::Path;
use std::time::Duration;

use weir_guard::{Change, ChangeGuard, Phase, Status};
use weir_publish::{Store, Wanted};

use super::BY;
use crate::commands::on_trial::loading;
use crate::commands::tune;
use crate::exit::{CommandResult, Failure};

/// Its name in plans and journals.
pub(in crate::commands) const NAME: &str = "published ports";
/// Longest time for a loading, s: some tables and two programs for each container, on a busy machine.
const LIMIT_S: u64 = 60;

/// Returns the change that puts `wanted` into effect; a rollback restores the mappings in effect before.
pub(in crate::commands) fn change(wanted: &Wanted, before: Option<&Wanted>, trial_s: u64) -> Change {
    let store = Store::usual();
    // If the one before cannot be loaded any more, because its container is gone, the kernel has the packets.
    let before = before.map(|before| store.path(&before.id()));
    loading(BY, NAME, (&store.path(&wanted.id()), before.as_deref()), trial_s, LIMIT_S)
}

/// Writes the mappings that the change refers to to disk. It deletes mappings that no rollback can restore any more.
///
/// # Errors
/// If the disk refuses, or a journal cannot be read.
pub(in crate::commands) fn keep(wanted: &Wanted, before: Option<&Wanted>) -> Result<(), Failure> {
    let store = Store::usual();
    store.keep(wanted)?;
    let mut ids = vec![wanted.id()];
    ids.extend(before.map(Wanted::id));
    for by in [BY, tune::BY] {
        if let Some(status) = ChangeGuard::new(by).status()? {
            ids.extend(status.set.begin.steps.iter().flat_map(|step| referred(&step.change)));
        }
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    Ok(store.forget_but(&ids)?)
}

/// Names of what a change loads, or would restore.
fn referred(change: &Change) -> Vec<String> {
    let Change::Commands { name, apply, undo, .. } = change else { return Vec::new() };
    let files = [apply, undo].into_iter().filter_map(|program| program.argv.last());
    let stems = files.filter_map(|file| Path::new(file).file_stem()).filter(|_| name == NAME);
    stems.map(|stem| stem.to_string_lossy().into_owned()).collect()
}

/// Returns the mappings in effect, as far as they are on disk. Changes nothing.
///
/// # Errors
/// If the kernel does not tell, or the file cannot be read.
pub(in crate::commands) fn in_effect() -> Result<Option<Wanted>, Failure> {
    match weir_publish::loaded_id()? {
        Some(id) => Ok(Store::usual().find(&id)?),
        None => Ok(None),
    }
}

/// Takes away what is in effect no more, and says what is.
///
/// # Errors
/// If it finds a state that could not be restored.
pub(in crate::commands) fn tidy() -> Result<Option<Wanted>, Failure> {
    let store = Store::usual();
    let Some(id) = weir_publish::loaded_id()? else {
        if weir_publish::state()?.lines().any(|line| !line.starts_with("tables ")) {
            return Err(Failure::failed(
                "programs of weir's are attached whose tables are gone: weir publish remove takes them away; nothing was \
                 changed",
            ));
        }
        // Tables that nothing uses, of something that was killed.
        weir_publish::unload()?;
        return Ok(None);
    };
    let Some(before) = store.find(&id)? else {
        return Err(Failure::failed(format!(
            "the mappings in effect ({id}) are not on disk in {}, so they could not be restored (weir publish remove removes them)",
            store.path(&id).display()
        )));
    };
    if weir_publish::is_whole(&before)? {
        return Ok(Some(before));
    }
    // The remaining mappings are loaded as a set of their own, to which a rollback leads.
    match weir_publish::alive(&before)? {
        None => {
            weir_publish::unload()?;
            Ok(None)
        }
        Some(alive) => {
            store.keep(&alive)?;
            weir_publish::load(&alive, None)?;
            Ok(Some(alive))
        }
    }
}

/// The last set of `weir tune`, if it leads ports by BPF and was not rolled back.
///
/// # Errors
/// If its journal cannot be read.
pub(super) fn of_tune() -> Result<Option<Status>, Failure> {
    let status = ChangeGuard::new(tune::BY).status()?;
    Ok(status.filter(|status| {
        let leads = |change: &Change| matches!(change, Change::Commands { name, .. } if name == NAME);
        let set = &status.set;
        !matches!(set.phase, Phase::Reverted { .. }) && set.begin.steps.iter().any(|s| leads(&s.change))
    }))
}

/// `weir publish load`: what the guard calls to make and to take back.
pub(super) fn load_now(path: &Path, or_unload: bool, trial: Option<u64>) -> CommandResult {
    let trial = trial.map(Duration::from_secs);
    let loaded = Store::read(path).and_then(|wanted| weir_publish::load(&wanted, trial));
    if loaded.is_err() && or_unload {
        return Ok(weir_publish::unload()?);
    }
    Ok(loaded?)
}
