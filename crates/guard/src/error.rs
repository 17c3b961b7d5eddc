//! The errors of this crate.

use std::io;
use std::path::Path;

/// Why a change set could not be made, confirmed or rolled back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of ours.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The journal cannot be understood. Nothing is done on its account.
    #[error(
        "the journal {path} cannot be used, so nothing was changed: {reason} (look at it; move it away when its changes are settled)"
    )]
    Journal {
        /// Its path.
        path: String,
        /// With the line.
        reason: String,
    },
    /// The folder of journals may be written by others, who could make root write what they like.
    #[error("{path} is not fit for journals: {reason}")]
    Folder {
        /// The folder.
        path: String,
        /// Why.
        reason: String,
    },
    /// Another process of weir works on this host's changes now.
    #[error("another weir is changing this host right now; nothing was changed")]
    Busy,
    /// A set waits to be confirmed.
    #[error(
        "change set {id} (weir {by}) waits to be confirmed; confirm it or roll it back first; nothing was changed"
    )]
    InFlight {
        /// Its name.
        id: String,
        /// Whose it is.
        by: String,
    },
    /// Nothing was ever applied here.
    #[error("there is no change set of weir {0}: nothing was applied here")]
    NoSet(String),
    /// It is too late to confirm it.
    #[error("change set {id} cannot be confirmed, it was rolled back: {why}")]
    TakenBack {
        /// Its name.
        id: String,
        /// Why.
        why: String,
    },
    /// A change cannot be asked for like this.
    #[error("{what}: {why}")]
    Unfit {
        /// Which.
        what: String,
        /// Why.
        why: String,
    },
    /// One of the changes could not be made. The changes before it were rolled back.
    #[error("{what}: {why}; {undone}")]
    Apply {
        /// Which.
        what: String,
        /// Why.
        why: String,
        /// The outcome of the changes before it.
        undone: String,
    },
    /// The guard process did not come up.
    #[error("the guard process that would take the changes back did not start ({0}); nothing was changed")]
    Guard(String),
    /// The system refused.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
}

impl Error {
    /// True where a privilege is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            Error::File { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Error::System(e) => e.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// True where the request itself is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Unfit { .. })
    }
}

/// For `map_err` with a path.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { path, source }
}

/// A change that failed, in one line.
pub(crate) fn unfit(what: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Unfit { what: what.into(), why: why.into() }
}
