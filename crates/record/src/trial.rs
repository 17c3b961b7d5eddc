//! One trial: the unit of replication.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_stats::Histogram;

use crate::diagnosed::Diagnosed;
use crate::fault::Fault;
use crate::link::LinkPassed;
use crate::path::PathFinding;
use crate::profile::Profile;
use crate::sample::HostSample;

/// Values over time within a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Name with unit suffix, e.g. `goodput_bps`.
    pub name: String,
    /// Points (seconds since the start of the measuring window, value).
    pub points: Vec<(f64, f64)>,
}

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
    /// Raw distributions by name, nanoseconds.
    pub histograms: BTreeMap<String, Histogram>,
    /// Values over time, from the load engine.
    pub series: Vec<Series>,
    /// Samples by role: `initiator`, `gateway`, `responder`.
    pub hosts: BTreeMap<String, HostSample>,
    /// Where the gateway's time went, if it was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// What the doctor said of the gateway, if it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosed: Option<Diagnosed>,
    /// What the workload found out about the path: kinds of packets that it does not carry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<PathFinding>,
    /// What the lab's link did, where it was asked to be worse than it is: `egress`, `ingress`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub link: BTreeMap<String, LinkPassed>,
    /// What the tester did wrong.
    pub faults: Vec<Fault>,
}

impl Trial {
    /// True if a fault excludes the trial from comparisons.
    pub fn is_void(&self) -> bool {
        self.faults.iter().any(|f| f.void)
    }
}
