//! Many short TCP connections out of one thread and into one thread: what `tcp-connect` and `tcp-crr` share.

mod initiator;
mod responder;
mod slab;
mod tally;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::{Fault, FaultCode};

use crate::latency::preamble;

pub(crate) use initiator::drive;
pub(crate) use responder::ConnectionResponder;
pub(crate) use tally::{FAILURES, Failure, failed};

/// When connections are begun.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arrival {
    /// So many at a time: the next when one is done.
    Closed { parallel: u32 },
    /// On a schedule, whatever is still open.
    Open { per_second: u32 },
}

/// Who ends a connection, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Close {
    /// In order: the responder closes behind its response, then the initiator. The TIME-WAIT state (RFC 9293 section
    /// 3.6.1) is left at the responder, so the initiator may use the same port again at once: a new SYN ends the old
    /// state there (section 3.10.7.4, RFC 6191), and ports do not run out. Connection tracking on the way sees FIN and keeps the
    /// entry for its own time-wait timeout (120 s by default).
    #[default]
    Fin,
    /// The initiator resets when it has the response: no TIME-WAIT anywhere; connection tracking keeps the entry for 10 s.
    Reset,
}

/// The data exchanged over an established connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    pub(crate) close: Close,
}

/// The task of the initiator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) arrival: Arrival,
    /// Nothing: the connection is reset as soon as it stands.
    pub(crate) exchange: Option<Exchange>,
    /// For the whole of one connection.
    pub(crate) timeout: Duration,
}

impl Exchange {
    /// Least bytes of a request and of a response: each carries the proof.
    pub(crate) const LEAST: u32 = preamble::LEN as u32;
}

/// The trial is void: whatever was measured, the far end is not known to be the responder.
pub(crate) fn unproven(error: &std::io::Error) -> Fault {
    Fault::void(
        FaultCode::ConnectionFailed,
        "initiator",
        format!("the responder did not prove itself: {error}"),
    )
}
