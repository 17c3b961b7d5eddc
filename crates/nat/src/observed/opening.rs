//! New mappings: packets of one flow at once, and how long many take.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The first two packets of each of some flows, sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FirstPackets {
    /// Flows.
    pub flows: u32,
    /// Packets that did not arrive.
    pub lost: u32,
    /// Flows whose packets left by different outside ports.
    pub split: u32,
    /// The path loses nothing, and carried a control packet where one did not arrive.
    pub sure: bool,
}

/// SYNs of both inside hosts from the same port to one endpoint, sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FirstSyns {
    /// Pairs.
    pub pairs: u32,
    /// SYNs that did not arrive.
    pub lost: u32,
    /// Pairs that left by one outside port.
    pub shared: u32,
    /// The path loses nothing, and carried a control packet where one did not arrive.
    pub sure: bool,
}

/// Batches of packets, from the first one sent to the last one seen outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NewMappings {
    /// Packets of a batch, each of a mapping of its own.
    pub batch: u32,
    /// Times of batches that opened their mappings, s.
    pub new_s: Vec<f64>,
    /// Times of the same batches once more, s: what the ends and the path take by themselves.
    pub known_s: Vec<f64>,
}
