//! Why a run could not be made, or not to its end.

use weir_agent::remote;

/// Failure of a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lab could not be built.
    #[error("{0}")]
    Lab(#[source] weir_lab::Error),
    /// An agent failed.
    #[error("{0}")]
    Agent(#[from] remote::Error),
    /// Something that the scenario needs is not there; the message names it and what provides it.
    #[error("{0}")]
    Missing(String),
    /// A variant is not in effect although it was applied.
    #[error("variant `{variant}`: {reason}")]
    NotProved {
        /// Which.
        variant: String,
        /// The observation instead.
        reason: String,
    },
    /// Testbed and variants do not fit each other.
    #[error("{0}")]
    Unfit(String),
    /// The run record could not be written.
    #[error("cannot write {path}: {source}")]
    Store {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The cluster cannot be a testbed, or a pod has ended.
    #[error("{0}")]
    Pods(#[from] weir_agent::pods::Error),
    /// A run that failed could not remove all that it made.
    #[error("{failure}; {left}")]
    LeftBehind {
        /// Why the run failed.
        failure: Box<Error>,
        /// The rest.
        left: weir_agent::pods::Error,
    },
    /// A contradiction in weir itself.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// True if something that weir needs is missing here (exit code 4).
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Missing(_) | Error::Lab(weir_lab::Error::Privilege(_)) => true,
            Error::Lab(weir_lab::Error::Build { source, .. }) => {
                source.kind() == std::io::ErrorKind::PermissionDenied
            }
            Error::Agent(e) => e.is_missing(),
            Error::Pods(e) => e.is_missing(),
            Error::LeftBehind { failure, .. } => failure.is_missing(),
            _ => false,
        }
    }

    /// True if the user stopped the run.
    pub fn is_interrupted(&self) -> bool {
        matches!(
            self,
            Error::Agent(remote::Error::Interrupted) | Error::Pods(weir_agent::pods::Error::Interrupted)
        )
    }
}

/// An agent answered something that its task has no use for.
pub(crate) fn unexpected(answer: &impl std::fmt::Debug) -> Error {
    Error::Internal(format!("unexpected answer {answer:?}"))
}
