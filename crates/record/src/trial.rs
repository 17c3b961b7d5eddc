//! One trial: the unit of replication.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_stats::Delays;

use crate::diagnosed::Diagnosed;
use crate::fault::Fault;
use crate::link::LinkPassed;
use crate::path::PathFinding;
use crate::profile::Profile;
use crate::sample::HostSample;
use crate::series::Series;

/// One workload on one variant, once, from a fresh state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// Round (block), from 0.
    pub round: u32,
    /// Position in the round's random order, from 0.
    pub position: u32,
    /// Name of the variant.
    pub variant: String,
    /// Name of the workload.
    pub workload: String,
    /// Start, seconds since the start of the run (monotonic clock).
    pub start_s: f64,
    /// Length including set-up and tear-down, seconds.
    pub took_s: f64,
    /// Raw values by metric name. Units are in the names.
    pub metrics: BTreeMap<String, f64>,
    /// Raw distributions by name, nanoseconds; of delays with the operations that did not end.
    pub histograms: BTreeMap<String, Delays>,
    /// Values over time, from the load engine.
    pub series: Vec<Series>,
    /// Samples by role: `initiator`, `gateway`, `responder`.
    pub hosts: BTreeMap<String, HostSample>,
    /// How the gateway spent its time, if it was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The doctor's diagnosis of the gateway, if it was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosed: Option<Diagnosed>,
    /// The workload's findings about the path: kinds of packets that it does not carry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<PathFinding>,
    /// Effects of the lab's link, if the lab made it worse than it is: `egress`, `ingress`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub link: BTreeMap<String, LinkPassed>,
    /// Faults of the tester.
    pub faults: Vec<Fault>,
}

impl Trial {
    /// True if a fault excludes the trial from comparisons.
    pub fn is_void(&self) -> bool {
        self.faults.iter().any(|f| f.void)
    }
}
