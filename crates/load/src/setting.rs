//! The runner's settings for one trial, the same for both ends.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use weir_sys::Stop;

use crate::Observer;

/// Which way the data goes; the initiator opens the connections in every case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Initiator to responder.
    #[default]
    Egress,
    /// Responder to initiator.
    Ingress,
    /// Both ways at once.
    Both,
}

impl Direction {
    /// The single directions that it is made of.
    pub(crate) fn ways(self) -> &'static [Direction] {
        match self {
            Direction::Egress => &[Direction::Egress],
            Direction::Ingress => &[Direction::Ingress],
            Direction::Both => &[Direction::Egress, Direction::Ingress],
        }
    }
}

/// In words for people. Those of the single directions are also the prefixes of their metrics' names.
impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Egress => "egress",
            Direction::Ingress => "ingress",
            Direction::Both => "both ways",
        })
    }
}

/// One trial's settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrialSettings {
    /// Traffic before the measuring window, not counted.
    pub warmup: Duration,
    /// The measuring window.
    pub duration: Duration,
    /// Cores that this end's threads are pinned to, in turn; empty leaves it to the scheduler.
    pub cpus: Vec<usize>,
    /// Random number that marks this trial's connections and datagrams; others are not counted.
    pub cookie: u64,
    /// Ends the trial early. Each process has its own.
    #[serde(skip)]
    pub stop: Stop,
    /// Told what this end sees while it runs.
    #[serde(skip)]
    pub observer: Observer,
    /// The initiator begins with a handshake over UDP: the far end shares one port among many trials ([`crate::udp_handshake`]).
    #[serde(skip)]
    pub handshake: bool,
}

impl TrialSettings {
    /// A trial on unpinned threads, neither stopped nor watched, towards a port of its own.
    pub fn new(warmup: Duration, duration: Duration, cookie: u64) -> Self {
        TrialSettings {
            warmup,
            duration,
            cpus: Vec::new(),
            cookie,
            stop: Stop::default(),
            observer: Observer::default(),
            handshake: false,
        }
    }
}
