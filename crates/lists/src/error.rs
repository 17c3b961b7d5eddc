//! The errors of this crate.

use std::io;
use std::path::Path;

/// Why something could not be done. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address that is not used.
    #[error("{url}: {reason}")]
    Url {
        /// The address.
        url: String,
        /// Why it is not used.
        reason: String,
    },
    /// No authority to verify servers with.
    #[error("certificate authorities: {path}: {reason}")]
    Authorities {
        /// The file.
        path: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A server did not give a file.
    #[error("{url}: {reason}")]
    Answer {
        /// The requested address.
        url: String,
        /// The failure.
        reason: String,
    },
    /// More than a list has.
    #[error("{url}: it has more than {most} bytes, which no such file has: refused")]
    TooLarge {
        /// The requested address.
        url: String,
        /// Bytes at most.
        most: u64,
    },
    /// The folder of the cache, or a file in it.
    #[error("{path}: {reason}")]
    Cache {
        /// Folder or file.
        path: String,
        /// The failure.
        reason: String,
    },
    /// Another process updates the same cache.
    #[error("another update is at work in {path} (its lock is taken): nothing was done")]
    Busy {
        /// Folder of the cache.
        path: String,
    },
}

impl Error {
    pub(crate) fn answer(url: &str, reason: impl Into<String>) -> Self {
        Error::Answer { url: url.to_owned(), reason: reason.into() }
    }
}

/// For `map_err`.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |e| Error::Cache { path: path.display().to_string(), reason: e.to_string() }
}
