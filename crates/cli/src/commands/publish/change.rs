//! Ports led by BPF as a change on trial: the same for `weir publish apply` and for `weir tune apply`.

use std::path::Path;

use weir_guard::{Change, Keeper, Phase, Status};
use weir_publish::{Store, Wanted};

use super::BY;
use crate::commands::on_trial::{own, text};
use crate::commands::tune;
use crate::exit::{Failure, Outcome};

/// What it is called in plans and journals.
pub(in crate::commands) const NAME: &str = "published ports";
/// Longest time for a loading, s: some tables and two programs for each container, on a busy machine.
const LIMIT_S: u64 = 60;

/// The change that puts it into effect; what is in effect before is what it goes back to.
pub(in crate::commands) fn change(wanted: &Wanted, before: Option<&Wanted>) -> Change {
    let store = Store::usual();
    let undo = match before {
        // If it cannot be loaded any more, because its container is gone, the kernel has the packets.
        Some(before) => own(&["publish", "load", "--or-unload", &text(&store.path(&before.id()))]),
        None => own(&["publish", "unload"]),
    };
    Change::Commands {
        name: NAME.into(),
        apply: own(&["publish", "load", &text(&store.path(&wanted.id()))]),
        undo,
        read: own(&["publish", "state"]),
        limit_s: LIMIT_S,
        outlives_reboot: false,
    }
}

/// Writes down what the change refers to. What nobody can come back to is forgotten.
///
/// # Errors
/// If the disk refuses, or a journal cannot be read.
pub(in crate::commands) fn keep(wanted: &Wanted, before: Option<&Wanted>) -> Result<(), Failure> {
    let store = Store::usual();
    store.keep(wanted)?;
    let mut ids = vec![wanted.id()];
    ids.extend(before.map(Wanted::id));
    for by in [BY, tune::BY] {
        if let Some(status) = Keeper::new(by).status()? {
            ids.extend(status.set.begin.steps.iter().flat_map(|step| referred(&step.change)));
        }
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    Ok(store.forget_but(&ids)?)
}

/// Names of what a change loads, or would put back.
fn referred(change: &Change) -> Vec<String> {
    let Change::Commands { name, apply, undo, .. } = change else { return Vec::new() };
    let files = [apply, undo].into_iter().filter_map(|program| program.argv.last());
    let stems = files.filter_map(|file| Path::new(file).file_stem()).filter(|_| name == NAME);
    stems.map(|stem| stem.to_string_lossy().into_owned()).collect()
}

/// What is in effect, as far as it is on disk. Changes nothing.
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
/// If there is something that could not be put back.
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
            "what is in effect ({id}) is not on disk in {}: it could not be put back (weir publish remove takes it away)",
            store.path(&id).display()
        )));
    };
    if weir_publish::is_whole(&before)? {
        return Ok(Some(before));
    }
    // What is left is loaded as a set of its own, to which the way back leads.
    match weir_publish::alive(&before)? {
        None => {
            weir_publish::unload()?;
            Ok(None)
        }
        Some(alive) => {
            store.keep(&alive)?;
            weir_publish::load(&alive)?;
            Ok(Some(alive))
        }
    }
}

/// The last set of `weir tune`, if it leads ports by BPF and was not taken back.
///
/// # Errors
/// If its journal cannot be read.
pub(super) fn of_tune() -> Result<Option<Status>, Failure> {
    let status = Keeper::new(tune::BY).status()?;
    Ok(status.filter(|status| {
        let leads = |change: &Change| matches!(change, Change::Commands { name, .. } if name == NAME);
        let set = &status.set;
        !matches!(set.phase, Phase::Reverted { .. }) && set.begin.steps.iter().any(|s| leads(&s.change))
    }))
}

/// `weir publish load`: what the guard calls to make and to take back.
pub(super) fn load_now(path: &Path, or_unload: bool) -> Outcome {
    let loaded = Store::read(path).and_then(|wanted| weir_publish::load(&wanted));
    if loaded.is_err() && or_unload {
        return Ok(weir_publish::unload()?);
    }
    Ok(loaded?)
}
