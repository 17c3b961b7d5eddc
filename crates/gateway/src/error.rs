//! Why a variant could not be put into effect, proved or removed.

use std::io;
use std::path::Path;

/// Failure on the host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that the variant needs is not installed.
    #[error("{program} is not installed on this host; {provide}")]
    Missing {
        /// Which.
        program: String,
        /// The command that provides it.
        provide: String,
    },
    /// A command failed.
    #[error("`{command}` failed: {output}")]
    Command {
        /// The command line.
        command: String,
        /// Its output.
        output: String,
    },
    /// A file of the kernel could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// After removal something differs from before.
    #[error("{what} is not as it was before: {difference}")]
    NotRestored {
        /// The object that differs.
        what: String,
        /// How it differs.
        difference: String,
    },
    /// Parts of the applied variant are missing.
    #[error("{0}")]
    NotInEffect(String),
    /// This kernel or place cannot have the variant.
    #[error("{0}")]
    Unsupported(String),
    /// A journal on disk that cannot be used.
    #[error("journal {path}: {reason}")]
    Journal {
        /// The file.
        path: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The system refused.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
    /// The variant could not be put into effect, and the rollback of its earlier changes failed too.
    #[error("{cause}; taking back what had been done failed too: {left}")]
    Stuck {
        /// Why it could not be put into effect.
        cause: Box<Error>,
        /// The failures of the rollback, as one text.
        left: String,
    },
}

/// For `map_err` with a path.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { path, source }
}
