//! A system call or a kernel file that did not do what was asked, with what was being done.

use std::{fmt, io};

/// Failure with its context. The cause stays available as [`std::error::Error::source`] and by [`Error::raw_os_error`].
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Error {
    /// The attempted operation, e.g. `create veth inside`.
    pub what: String,
    /// The system's error. Netlink failures carry the kernel's own text (extended ack).
    pub source: io::Error,
}

/// Result of a system call with context.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Attach what was being done to its cause.
    pub fn new(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error { what: what.into(), source: source.into() }
    }

    /// A failure that is not an error number, in words.
    pub fn other(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::new(what, io::Error::other(why.into()))
    }

    /// The error number, if it came from the kernel.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error().or_else(|| {
            let inner = self.source.get_ref()?.downcast_ref::<KernelError>()?;
            Some(inner.errno)
        })
    }

    /// The kind of the cause.
    pub fn kind(&self) -> io::ErrorKind {
        match self.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno).kind(),
            None => self.source.kind(),
        }
    }
}

/// `map_err` with the context built only when it is needed.
pub trait Context<T> {
    /// Attach what was being done.
    ///
    /// # Errors
    /// The failure itself, with its context.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(what(), e))
    }
}

/// A refusal by the kernel with its own words (extended ack), which often say what the error number does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelError {
    /// Error number.
    pub errno: i32,
    /// The kernel's text; empty if it gave none.
    pub text: String,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = io::Error::from_raw_os_error(self.errno);
        if self.text.is_empty() { write!(f, "{number}") } else { write!(f, "{} ({number})", self.text) }
    }
}

impl std::error::Error for KernelError {}

impl From<KernelError> for io::Error {
    fn from(e: KernelError) -> Self {
        io::Error::new(io::Error::from_raw_os_error(e.errno).kind(), e)
    }
}
