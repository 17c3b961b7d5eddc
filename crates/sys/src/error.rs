//! A system call or a kernel file that did not do what was asked, with what was being done.

use std::io;

/// Failure with its context. The cause stays available as [`std::error::Error::source`] and by [`Error::raw_os_error`].
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Error {
    /// What was being done, e.g. `create veth inside`.
    pub what: String,
    /// What the system said. Netlink failures carry the kernel's own text (extended ack).
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
            let inner = self.source.get_ref()?.downcast_ref::<crate::netlink::KernelError>()?;
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
pub(crate) trait Context<T> {
    /// Attach what was being done.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(what(), e))
    }
}
