//! A fast path that was confirmed in this network namespace, as the journal of its trial tells it.

use std::path::PathBuf;

use weir_guard::{ChangeGuard, ChangeSet, Phase};
use weir_sys::{NetNs, state};

use crate::{Error, Result};

/// Whose change sets these are.
const BY: &str = "fastpath";

/// A fast path that was confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    /// Time of the confirmation, seconds since 1970, UTC.
    pub unix_s: u64,
    /// The machine was started again since.
    pub rebooted: bool,
}

impl Confirmed {
    /// The last fast path of the calling thread's namespace, if it was confirmed and not removed since. Whether it is still in effect is
    /// another question ([`crate::Visit`]). Changes nothing.
    ///
    /// # Errors
    /// If there is a journal, and it cannot be read.
    pub fn here() -> Result<Option<Self>> {
        let own = NetNs::current()?;
        // Commands with --netns keep a folder for each namespace.
        let number = own.cookie()?.unwrap_or(own.inode()?);
        let usual = state::folder("");
        let folders: [PathBuf; 2] = [usual.join("netns").join(number.to_string()), usual];
        for folder in folders {
            let set = ChangeGuard::read(&folder, BY).map_err(|e| Error::State(e.to_string()))?;
            let Some(set) = set else { continue };
            let rebooted = set.begin.boot != state::boot_id()?;
            if is_confirmed(&set) && is_of(&set, &own, rebooted)? {
                return Ok(Some(Confirmed {
                    unix_s: set.confirmed_unix_s.unwrap_or(set.begin.unix_s),
                    rebooted,
                }));
            }
        }
        Ok(None)
    }
}

fn is_confirmed(set: &ChangeSet) -> bool {
    matches!(set.phase, Phase::Confirmed { .. })
}

/// After a reboot numbers say nothing: only the machine's own namespace is the one that it was.
fn is_of(set: &ChangeSet, own: &NetNs, rebooted: bool) -> Result<bool> {
    let Some(namespace) = &set.begin.namespace else { return Ok(false) };
    if rebooted {
        return Ok(namespace.path.is_none() && own.inode()? == NetNs::of_pid(1)?.inode()?);
    }
    namespace.is_of(own).map_err(|e| Error::State(e.to_string()))
}
