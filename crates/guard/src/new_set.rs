//! A set of changes that a command asks for.

use crate::change::Change;
use crate::journal::When;
use crate::namespace::Namespace;
use crate::watch::WatchedNumber;

/// A set of changes to make.
#[derive(Debug, Clone)]
pub struct NewSet {
    /// Its purpose, for people.
    pub title: String,
    /// Network namespace of its settings and programs; `None`: settings of the whole machine only, from wherever the process is.
    pub namespace: Option<Namespace>,
    /// The changes, in the order in which they are made.
    pub changes: Vec<(When, Change)>,
    /// Time to confirm, s: 1 to 86,400.
    pub timeout_s: u64,
    /// Numbers that must not get worse meanwhile.
    pub watches: Vec<WatchedNumber>,
}

impl NewSet {
    /// The name of a set with these changes: the same changes have the same name.
    pub fn id(&self) -> String {
        let place = self.namespace.as_ref().map(|n| n.inode);
        // Changes are plain texts and numbers: they always have a JSON form.
        let text = serde_json::to_string(&(place, &self.changes)).unwrap_or_default();
        crate::fingerprint(&text)[..12].to_owned()
    }
}
