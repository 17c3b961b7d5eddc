//! Documents of `weir tune`.

use schemars::JsonSchema;
use serde::Serialize;
use weir_tune::TunePlan;
use weir_tune::hidden::Figure;
use weir_tune::prove::Proof;

use super::{Set, StatusSet};

/// `weir tune apply`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TuneApply<'a> {
    /// The plan.
    pub(crate) plan: &'a TunePlan,
    /// The changes on trial; null if the plan has none.
    pub(crate) set: Option<Set<'a>>,
    /// Counters that cannot be watched, and why.
    pub(crate) unwatched: &'a [String],
}

/// `weir tune prove`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TuneProve<'a> {
    /// The plan.
    pub(crate) plan: &'a TunePlan,
    /// The load's own number, without and with the change.
    pub(crate) proof: &'a Proof,
    /// Failed operations, where the load prints them.
    pub(crate) failures: Option<&'a Proof>,
    /// The kernel's counters.
    pub(crate) kernel: &'a [Figure],
    /// The changes, rolled back.
    pub(crate) set: Set<'a>,
}

/// `weir tune status`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TuneStatus<'a> {
    /// The last changes; null if nothing was applied.
    pub(crate) set: Option<StatusSet<'a>>,
}
