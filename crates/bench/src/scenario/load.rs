//! What one `[[workload]]` sends: through sockets, or single frames.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use weir_load::Workload;
use weir_record::MetricDef;

/// What is sent and measured, told apart by `kind`.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// Through sockets, by two ends that talk to each other.
    Sockets(Workload),
}

/// What a trial takes besides its traffic, seconds, as measured in the lab: datagrams on their way are waited for, and
/// programs started and ended.
pub(super) fn overhead_s(workload: &Workload) -> f64 {
    match workload {
        Workload::UdpStream(_) => 0.35,
        Workload::External(_) => 0.75,
        _ => 0.05,
    }
}

impl Load {
    /// The kind as written in scenarios, e.g. `tcp-stream`.
    pub fn kind(&self) -> &'static str {
        match self {
            Load::Sockets(w) => w.engine().kind(),
        }
    }

    /// What it does with its options, in one line for people.
    pub fn describe(&self) -> String {
        match self {
            Load::Sockets(w) => w.engine().describe(),
        }
    }

    /// Options out of range or contradicting each other: one message that names the key and what is valid.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Load::Sockets(w) => w.engine().validate(),
        }
    }

    /// Its own metrics, headline ones first.
    pub fn metrics(&self) -> Vec<MetricDef> {
        match self {
            Load::Sockets(w) => w.engine().metrics(),
        }
    }

    /// Programs that must be installed on initiator and responder.
    pub fn programs(&self) -> Vec<&'static str> {
        match self {
            Load::Sockets(w) => w.engine().programs(),
        }
    }

    /// Seconds that a trial will probably take.
    pub fn expected_seconds(&self, warmup: Duration, window: Duration) -> f64 {
        match self {
            Load::Sockets(w) => (warmup + window).as_secs_f64() + overhead_s(w),
        }
    }
}

impl<'de> Deserialize<'de> for Load {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By way of a value, because the crates that know the kinds do not know each other.
        let value = serde_json::Value::deserialize(deserializer)?;
        Workload::deserialize(value).map(Load::Sockets).map_err(de::Error::custom)
    }
}
