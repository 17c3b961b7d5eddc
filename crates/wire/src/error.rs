//! Errors in bytes from a wire.

/// Why bytes are not the header that they should be, or do not hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes end too early.
    #[error("{header}: needs {needed} bytes, there are {there}")]
    Truncated {
        /// Which header.
        header: &'static str,
        /// Bytes that it takes, or claims.
        needed: usize,
        /// Bytes there are.
        there: usize,
    },
    /// A field has a value that no such header has.
    #[error("{header}: its {field} is {value}")]
    Malformed {
        /// Which header.
        header: &'static str,
        /// Which field.
        field: &'static str,
        /// Value of the field.
        value: usize,
    },
}
