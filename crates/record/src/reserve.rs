//! The other side of a blame.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why the side that a comparison is made with is no winner, though the judged side is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reserve {
    /// It fails more operations.
    FailsMore,
    /// More of its trials are void.
    VoidMore,
}
