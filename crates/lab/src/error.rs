//! Why a lab could not be built or cleaned up.

/// Failure of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is out of range; the message names the key and what is valid.
    #[error("{0}")]
    Option(String),
    /// A host or link could not be made.
    #[error("lab `{site}`: {source}")]
    Build {
        /// Name of the site.
        site: String,
        /// The error that occurred.
        source: weir_sys::Error,
    },
    /// The list of labs on this machine could not be read or written.
    #[error("list of labs: {0}")]
    Registry(#[source] weir_sys::Error),
    /// This user may not build a lab here; the message names what forbids it.
    #[error("{0}")]
    Privilege(#[source] weir_sys::Error),
    /// There is no such run, site or host.
    #[error("{0}")]
    Unknown(String),
}
