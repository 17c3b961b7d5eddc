//! Reasons why an end could not do its work at all. (A problem that still left a measurement is a fault.)

use std::io;
use std::net::SocketAddr;

/// Failure of one end of a workload.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The responder could not open its port.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The initiator could not reach the responder.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Whereto.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A socket or system call failed on the way.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// This host has not enough of something that the workload needs.
    #[error("{0}")]
    Resources(String),
    /// A program that the workload runs is missing or failed.
    #[error("{program}: {reason}")]
    Program {
        /// Which.
        program: String,
        /// Its message.
        reason: String,
    },
}

impl Error {
    /// For `map_err`: attach what was being done.
    pub fn io(what: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::Io { what, source }
    }
}
