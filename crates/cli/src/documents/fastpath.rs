//! Documents of `weir fastpath`.

use schemars::JsonSchema;
use serde::Serialize;
use weir_fastpath::{Exclusion, Explained, Flow, Now, Top, Wanted};

use super::{Set, StatusSet};

/// `weir fastpath apply`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FastpathApply<'a> {
    /// Name of what is carried.
    pub(crate) id: &'a str,
    /// The flows that are carried.
    pub(crate) wanted: &'a Wanted,
    /// The change on trial; null if it was in effect already.
    pub(crate) set: Option<Set<'a>>,
}

/// `weir fastpath status`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FastpathStatus<'a> {
    /// True if everything that was applied is in effect.
    pub(crate) in_effect: bool,
    /// The problems, in words.
    pub(crate) wrong: &'a [String],
    /// Share of all packets that came in since it began and were carried; null before the first packet.
    pub(crate) carried_ratio: Option<f64>,
    /// The fast path; null if there is none.
    pub(crate) now: Option<&'a Now>,
    /// Exclusions that are kept, in effect now or with the next apply.
    pub(crate) kept: &'a [Exclusion],
    /// Directions of flows in the table; null without --flows.
    pub(crate) flows: Option<&'a [Flow]>,
    /// Directions of flows with most bytes in a second; null without --top.
    pub(crate) top: Option<&'a Top>,
    /// The last change.
    pub(crate) set: Option<StatusSet<'a>>,
}

/// `weir fastpath explain`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FastpathExplain {
    /// The direction that was asked about, and the other one if conntrack knows it.
    pub(crate) directions: Vec<Explained>,
}
