//! The doctor's diagnosis of a gateway during a trial.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One diagnosis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosed {
    /// Findings, the most important first. Harmless notes are left out.
    pub findings: Vec<DiagnosedFinding>,
    /// Packets lost in the window, without those that every host loses.
    pub lost_packets: u64,
    /// Packets among these that the findings explain.
    pub explained_packets: u64,
    /// Names of the things that the doctor could not see, with the reason.
    pub not_in_sight: Vec<String>,
}

/// One finding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosedFinding {
    /// Stable id of the cause, e.g. `conntrack-full`; its page is docs/reference/causes/ID.md.
    pub cause: String,
    /// True if a good part of the traffic is harmed.
    pub critical: bool,
    /// The problem, in one sentence.
    pub summary: String,
    /// Packets that it explains.
    pub explains_packets: u64,
    /// Commands that help: of the best fix that changes something, or those that look where none does.
    pub commands: Vec<String>,
    /// Risk of the commands.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub risk: String,
    /// Commands that take them back. None where nothing is changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
}
