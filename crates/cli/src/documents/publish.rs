//! Documents of `weir publish`.

use schemars::JsonSchema;
use serde::Serialize;
use weir_guard::Phase;
use weir_publish::{Mapping, Wanted};

use super::{Set, StatusSet};

/// `weir publish apply`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PublishApply<'a> {
    /// Name of the mappings.
    pub(crate) id: &'a str,
    /// The mappings.
    pub(crate) wanted: &'a Wanted,
    /// The change on trial; null if the mappings were in effect already.
    pub(crate) set: Option<Set<'a>>,
}

/// `weir publish status`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PublishStatus<'a> {
    /// Programs attached later, which do not see these packets.
    pub(crate) behind: &'a [String],
    /// The interface that clients come in by.
    pub(crate) outer: Option<&'a str>,
    /// Containers with mappings in the kernel.
    pub(crate) containers: Vec<Container<'a>>,
    /// Links of containers without anything in the kernel.
    pub(crate) missing: &'a [String],
    /// True if everything that was applied is in effect.
    pub(crate) in_effect: bool,
    /// State of weir's parts in the kernel, a line for each part.
    pub(crate) kernel: Vec<String>,
    /// The last change.
    pub(crate) set: Option<StatusSet<'a>>,
    /// The set of `weir tune` that forwards ports, if one does.
    pub(crate) tune: Option<TuneSet<'a>>,
}

/// Mappings of one container.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Container<'a> {
    /// The host's end of its link.
    pub(crate) link: &'a str,
    /// True if both programs are attached.
    pub(crate) attached: bool,
    /// The problems, in words.
    pub(crate) wrong: &'a [String],
    /// The mappings.
    pub(crate) mappings: &'a [Mapping],
    /// Packets by direction and reason; null for tables of another version of weir.
    pub(crate) counts: Option<Vec<Count>>,
}

/// Packets of one direction and reason.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Count {
    /// `in` from clients, `out` from the container.
    pub(crate) direction: String,
    /// Verdict on the packets.
    pub(crate) reason: String,
    /// Packets.
    pub(crate) packets: u64,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// A set of `weir tune`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TuneSet<'a> {
    /// Name of the set.
    pub(crate) id: &'a str,
    /// How far the set has come.
    pub(crate) progress: &'a Phase,
    /// Time left to confirm, s.
    pub(crate) remaining_s: Option<u64>,
}
