//! What the doctor said of a gateway during a trial.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One diagnosis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosed {
    /// What was found, the most important first. Notes, which harm nobody, are left out.
    pub findings: Vec<DiagnosedFinding>,
    /// Packets lost in the window, without those that every host loses.
    pub lost_packets: u64,
    /// Of these, explained by the findings.
    pub explained_packets: u64,
    /// What could not be seen, by its name, with the reason.
    pub not_in_sight: Vec<String>,
}

/// One finding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosedFinding {
    /// Stable id of the cause, e.g. `conntrack-full`; its page is docs/causes/ID.md.
    pub cause: String,
    /// True if a good part of the traffic is harmed.
    pub critical: bool,
    /// What happens, in one sentence.
    pub summary: String,
    /// Packets that it explains.
    pub explains_packets: u64,
    /// Commands that help: of the best fix that changes something, or those that look where none does.
    pub commands: Vec<String>,
    /// What may go wrong with them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub risk: String,
    /// Commands that take them back. None where nothing is changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
}
