//! The state of a back end in the kernel, and its counters there.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;

/// The state of a back end in the kernel.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The policy that lasts.
    pub(crate) lasting: Option<String>,
    /// The trial that replaces it for a time.
    pub(crate) trial: Option<OnTrial>,
}

/// A trial in a back end.
#[derive(Debug)]
pub(crate) struct OnTrial {
    /// The policy; `None`: the one of another back end.
    pub(crate) policy: Option<String>,
    /// Whether its time is not over yet.
    pub(crate) runs: bool,
}

/// The counters of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// `class N`, `established`, `link`.
    pub label: String,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A source of packets that were refused or logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Denied {
    /// Its address.
    pub source: IpAddr,
    /// Its packets, as far as they were counted.
    pub packets: u64,
    /// Number of its class, where that is known; 0: in no list.
    pub class: Option<usize>,
}
