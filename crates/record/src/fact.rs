//! Costs of a variant apart from traffic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::Unit;

/// Something that was measured of a variant itself, once, while it was in effect: memory, time to load. It does not depend on the
/// workload, and nothing is compared by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantFact {
    /// Name with its unit as suffix, e.g. `load_ns`.
    pub name: String,
    /// Short label for tables, e.g. "load".
    pub label: String,
    /// Unit of the value.
    pub unit: Unit,
    /// Median of what was measured; absent where it could not be, and `how` says why.
    pub value: Option<f64>,
    /// Measurements behind the value.
    pub n: u32,
    /// How it was measured, and what that cannot tell, in one sentence for people.
    pub how: String,
}
