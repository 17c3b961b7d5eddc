//! Effects of a lab link on the packets of a trial.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One direction of a link that the lab was asked to make worse than it is, over one trial with its warm-up. A super-packet
/// (GSO) counts as one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkPassed {
    /// Packets that were held and went on; 0 where none are held.
    #[serde(default)]
    pub packets: u64,
    /// Packets among these that were overtaken on purpose.
    #[serde(default)]
    pub reordered: u64,
    /// Packets that were lost on purpose.
    #[serde(default)]
    pub lost: u64,
    /// Fragments that were dropped on purpose.
    #[serde(default)]
    pub fragments_dropped: u64,
    /// Packets that took each of several gateways side by side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<u64>,
    /// Packets that were dropped because the tester did not keep up.
    #[serde(default)]
    pub overflows: u64,
    /// Median of how much later than due packets were let go, ns; absent with too few packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p50_ns: Option<u64>,
    /// The same of the latest in a hundred, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p99_ns: Option<u64>,
}
