//! Undo lists on disk: what an agent changed on a host whose network namespace outlives it.
//!
//! Each list is a file of its own per task and network namespace. A lock beside it says whether its agent still lives.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use weir_gateway::Journal;
use weir_lab::registry;
use weir_sys::NetNs;

use crate::error::TaskError;

/// A new list, with the lock to be held as long as it is answered for. A list that an agent left that was killed is
/// worked off first.
pub(crate) fn open(owner: &str) -> Result<(Journal, File), TaskError> {
    let folder = registry::prepare_directory().map_err(|e| TaskError::failed(e.to_string()))?;
    let path = folder.join(format!("undo-{owner}-{}.journal", NetNs::current()?.inode()?));
    let Some(held) = lock(&path).map_err(TaskError::failed)? else {
        return Err(TaskError::failed("another run of weir works on this host now"));
    };
    if path.exists()
        && let Err(error) = work_off(&path)
    {
        return Err(TaskError::failed(format!("an earlier run left changes that cannot be undone: {error}")));
    }
    Ok((Journal::stored_at(path)?, held))
}

/// A list that was found, and what went wrong with it.
pub type Leftover = (PathBuf, Result<(), String>);

/// Works off the lists in this network namespace that killed agents left; returns each with what went wrong.
///
/// # Errors
/// If the lists cannot be looked for.
pub fn clear_leftovers() -> Result<Vec<Leftover>, String> {
    let folder = registry::prepare_directory().map_err(|e| e.to_string())?;
    let mut done = Vec::new();
    for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with("undo-") {
            continue;
        }
        // The holder of the lock is responsible for its list.
        let Some(held) = lock(&path)? else { continue };
        if name.ends_with(".journal") {
            let outcome = work_off(&path);
            done.push((path.clone(), outcome));
        }
        drop(held);
        if !path.with_extension("journal").exists() {
            // An empty file that carries no information any more; it does no harm if it stays.
            let _ = fs::remove_file(path.with_extension("lock"));
        }
    }
    Ok(done)
}

fn work_off(path: &Path) -> Result<(), String> {
    let errors = Journal::recover(path).map_err(|e| e.to_string())?.undo();
    errors.first().map_or(Ok(()), |error| Err(error.to_string()))
}

/// The lock of a list; `None` if another process has it.
fn lock(journal: &Path) -> Result<Option<File>, String> {
    let path = journal.with_extension("lock");
    let named = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = File::create(&path).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(named(e)),
    }
}
