//! The errors of this crate.

use std::io;
use std::path::Path;

/// Why a policy could not be put into effect, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy cannot be put into effect like this.
    #[error("{0}")]
    Unfit(String),
    /// A program is missing here.
    #[error("{program} is missing here: {provide}")]
    Missing {
        /// Its name.
        program: String,
        /// The command that installs it.
        provide: String,
    },
    /// Something that the kernel lacks, with what provides it.
    #[error("{0}")]
    Lacking(String),
    /// Another process is using it.
    #[error("{0}")]
    Busy(String),
    /// A program failed.
    #[error("{command}: {output}")]
    Command {
        /// The command that failed.
        command: String,
        /// Its output.
        output: String,
    },
    /// A file of ours.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not do what was loaded.
    #[error("it was loaded and does not do what it should: {0}")]
    Verify(String),
    /// BPF.
    #[error(transparent)]
    Bpf(#[from] weir_filter::BpfError),
    /// A filter that cannot be opened.
    #[error(transparent)]
    Filter(#[from] weir_filter::OpenError),
    /// The system refused.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
}

impl Error {
    /// True where something is missing on this machine: a program, a privilege, a part of the kernel.
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Missing { .. } | Error::Lacking(_) => true,
            Error::Bpf(e) => e.is_missing(),
            Error::Filter(weir_filter::OpenError::Bpf(e)) => e.is_missing(),
            Error::System(e) => e.kind() == io::ErrorKind::PermissionDenied,
            Error::File { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// True where the request itself is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Unfit(_))
    }
}

/// For `map_err` with a path.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { path, source }
}
