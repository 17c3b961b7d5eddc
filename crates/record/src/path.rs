//! A trial's findings about the path itself: packets of some kinds that it does not carry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kinds of finding, stable across versions, the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PathCause {
    /// Only the fragment with the UDP header arrives, and the other fragments of the datagram do not.
    HeaderlessFragmentsDropped,
    /// No fragment arrives.
    FragmentsDropped,
    /// Large datagrams vanish although small ones arrive; what becomes of single fragments was not seen.
    LargeDatagramsVanish,
    /// Packets above the path MTU vanish, and no router says so (RFC 2923 section 2.1).
    PathMtuBlackHole,
    /// A router named an MTU that is not the path's.
    TooBigWrong,
    /// The two directions carry packets of different lengths.
    AsymmetricMtu,
    /// Fragments arrive in another order than they were sent in.
    FragmentsReordered,
    /// The path carries less than the own link, and a router says so, as it should.
    SmallerMtu,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathFinding {
    /// Kind of finding.
    pub cause: PathCause,
    /// The problem and the remedy, in one sentence with figures.
    pub summary: String,
    /// Observations and remedies: one sentence or command each.
    pub advice: Vec<String>,
}
