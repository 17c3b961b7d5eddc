//! Errors on a host.

/// Why a host could not send or receive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that is needed is not there: a privilege, a kernel feature. The text says which, and what provides it.
    #[error("{0}")]
    Missing(String),
    /// The options cannot be met here (a frame too long for the link, say).
    #[error("{0}")]
    Unfit(String),
    /// BPF refused.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] weir_sys::Error),
}

impl Error {
    /// True if something that weir needs is missing (exit code 4).
    pub fn is_missing(&self) -> bool {
        match self {
            Error::Missing(_) => true,
            Error::Bpf(e) => e.is_missing(),
            Error::Unfit(_) | Error::Sys(_) => false,
        }
    }
}
