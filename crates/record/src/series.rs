//! Values over time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Values over time within a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Name with unit suffix, e.g. `goodput_bps`.
    pub name: String,
    /// Points (seconds since the start of the measuring window, value).
    pub points: Vec<(f64, f64)>,
}
