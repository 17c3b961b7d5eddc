//! The network namespace that changes belong to, found again by later commands.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_sys::NetNs;

use crate::Error;

/// A network namespace as the journal remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its inode, until the next reboot.
    pub inode: u64,
    /// The kernel's number for it, which no later namespace gets (`SO_NETNS_COOKIE`); kernels before 5.14 have none.
    pub cookie: Option<u64>,
    /// The path where it was found; `None`: it was the caller's own.
    pub path: Option<PathBuf>,
}

impl Namespace {
    /// The calling thread's own.
    ///
    /// # Errors
    /// If `/proc` does not show it.
    pub fn own() -> Result<Self, Error> {
        Self::of(&NetNs::current()?, None)
    }

    /// One that was opened by a path.
    ///
    /// # Errors
    /// If it cannot be entered.
    pub fn at(namespace: &NetNs, path: PathBuf) -> Result<Self, Error> {
        Self::of(namespace, Some(path))
    }

    /// Whether it is that one, within the boot in which it was written down.
    ///
    /// # Errors
    /// If `/proc` does not show that one.
    pub fn is_of(&self, namespace: &NetNs) -> Result<bool, Error> {
        let other = Self::of(namespace, None)?;
        Ok(self.inode == other.inode && self.cookie == other.cookie)
    }

    fn of(namespace: &NetNs, path: Option<PathBuf>) -> Result<Self, Error> {
        Ok(Namespace { inode: namespace.inode()?, cookie: namespace.cookie()?, path })
    }

    /// Finds it again: among the caller's own, the place where it was, and those of all processes. `None` if it is gone.
    /// After a reboot (`same_boot` false) numbers say nothing, and the one at the same place is taken.
    pub(crate) fn find(&self, same_boot: bool) -> Result<Option<NetNs>, Error> {
        if !same_boot {
            return Ok(match &self.path {
                None => Some(NetNs::current()?),
                Some(path) => NetNs::open(path).ok(),
            });
        }
        let own = NetNs::current()?;
        if self.is(&own) {
            return Ok(Some(own));
        }
        // Processes come and go, and a path may name something else by now: what cannot be opened is not it.
        let known = self.path.iter().cloned();
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = processes.map(|entry| entry.path().join("ns/net"));
        Ok(known.chain(processes).filter_map(|path| NetNs::open(path).ok()).find(|found| self.is(found)))
    }

    fn is(&self, found: &NetNs) -> bool {
        // The inode first: asking for the cookie starts a thread.
        found.inode().is_ok_and(|inode| inode == self.inode)
            && (self.cookie.is_none() || found.cookie().is_ok_and(|cookie| cookie == self.cookie))
    }
}
