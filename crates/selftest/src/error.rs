//! Why a case could not be tried.

/// A failure of the self-test itself, not of the doctor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lab could not be built.
    #[error(transparent)]
    Lab(#[from] weir_lab::Error),
    /// A system call failed, or the evidence could not be taken.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
    /// The machine's settings could not be changed, or the keeper of the old ones not be started.
    #[error("settings of the machine: {0}")]
    Machine(#[from] weir_agent::Error),
    /// A step of a recipe failed.
    #[error("{what}: {words}")]
    Step {
        /// The action that failed.
        what: String,
        /// Its output.
        words: String,
    },
    /// The recipe and the lab do not fit.
    #[error("recipe: {0}")]
    Recipe(String),
    /// Asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl Error {
    /// True if privilege or a part of the kernel is missing.
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Lab(e) => matches!(e, weir_lab::Error::Privilege(_)),
            Error::System(e) => e.kind() == std::io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}
