//! Why an agent could not be used.

use std::time::Duration;

use super::SILENCE;
use crate::protocol::{PROTOCOL, TaskError};

/// Why an agent could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started.
    #[error("cannot start the agent on {host}: {reason}")]
    Start {
        /// Which host.
        host: String,
        /// Why, with what the host printed.
        reason: String,
    },
    /// A program that starts agents is missing here.
    #[error("cannot start the agent on {host}: `{program}` is not installed here")]
    NoProgram {
        /// Which host.
        host: String,
        /// ssh, docker, kubectl.
        program: String,
    },
    /// The agent is of another version.
    #[error(
        "the agent on {host} is weir {theirs} with protocol {protocol}, this is weir {} with protocol {PROTOCOL}: install the \
         same version there, or leave out `program` to have this one copied", env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// Which host.
        host: String,
        /// Its version of weir.
        theirs: String,
        /// Its protocol.
        protocol: u32,
    },
    /// The agent ended or its connection broke.
    #[error("lost the agent on {host}: {reason}")]
    Lost {
        /// Which host.
        host: String,
        /// How it ended, with the last it printed.
        reason: String,
    },
    /// The agent does not answer any more.
    #[error("the agent on {host} has not answered for {} s: the host hangs, or the way to it is cut", SILENCE.as_secs())]
    Hung {
        /// Which host.
        host: String,
    },
    /// The task took too long although the agent is alive.
    #[error("{host}: {what} was not done within {} s", .limit.as_secs_f64())]
    Slow {
        /// Which host.
        host: String,
        /// Which task.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The task failed on the host.
    #[error("{host}: {source}")]
    Task {
        /// Which host.
        host: String,
        /// The error on that host.
        source: TaskError,
    },
    /// The user asked to stop.
    #[error("stopped")]
    Interrupted,
}

impl Error {
    /// True if something that weir needs is missing (exit code 4).
    pub fn is_missing(&self) -> bool {
        match self {
            Error::NoProgram { .. } => true,
            Error::Task { source, .. } => source.missing,
            _ => false,
        }
    }

    /// True if the host cannot be used any more.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Error::Lost { .. } | Error::Hung { .. } | Error::Start { .. })
    }
}

pub(super) fn failed(host: &str, reason: impl ToString) -> Error {
    Error::Start { host: host.to_owned(), reason: reason.to_string() }
}
