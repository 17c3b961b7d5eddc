//! A comparison of two diagnoses as values; [`crate::since`] makes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::Severity;

/// A diagnosis against an earlier report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Since {
    /// File of the earlier report; text from outside.
    pub file: String,
    /// Time from the end of the earlier window to the end of this one, s.
    pub earlier_s: i64,
    /// Whether the host is better off.
    pub verdict: SinceVerdict,
    /// Reasons beyond the findings, in words; the most important first.
    pub why: Vec<String>,
    /// Lost packets as a share of those that came or were made here.
    pub lost_ratio: BeforeAfter,
    /// Packets delivered and forwarded per second, in all namespaces.
    pub handled_per_s: BeforeAfter,
    /// Every finding of either report: the new ones first, then those with more harm, with less, gone, and the same.
    pub changes: Vec<FindingChange>,
}

/// The verdict of a comparison. Only [`SinceVerdict::Better`] is praise, and any doubt excludes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SinceVerdict {
    /// A finding is gone or does less harm, nothing is new or does more, and neither loss, traffic nor evidence contradicts.
    Better,
    /// Something is new or does more harm.
    Worse,
    /// Something is better, and something else is worse or may be.
    Mixed,
    /// Nothing changed beyond chance.
    Same,
    /// The two windows do not tell: less traffic, less evidence, a shorter window.
    NotComparable,
}

/// A value in the earlier report and in this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BeforeAfter {
    /// In the earlier report.
    pub before: f64,
    /// In this one.
    pub after: f64,
}

/// A finding of either report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FindingChange {
    /// Its change.
    pub change: HowChanged,
    /// Id of the cause.
    pub cause: String,
    /// Name of the namespace; text from outside.
    pub place: String,
    /// The exact object, as the later of the two reports names it; text from outside.
    pub object: String,
    /// Its harm in the earlier report; null if it is new.
    pub before: Option<Harm>,
    /// Its harm in this one; null if it is gone.
    pub after: Option<Harm>,
    /// True if it counts for the verdict. False for what stayed the same, for a note without harm, for a loss that is gone but was
    /// so small that chance explains it, and for one that grew no more than the traffic: that only excludes the verdict better.
    pub counts: bool,
}

/// The change of a finding, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HowChanged {
    /// It is in this report only.
    New,
    /// It does more harm.
    More,
    /// It does less harm.
    Less,
    /// It is in the earlier report only.
    Gone,
    /// It differs by less than a tenth, or by less than chance explains.
    Same,
}

/// The harm of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Harm {
    /// Severity.
    pub severity: Severity,
    /// Lost packets that it explains, in the window.
    pub packets: u64,
    /// The same per second.
    pub packets_per_s: f64,
    /// Share of the traffic of its kind that it harms, if lost packets cannot express the harm.
    pub impact: f64,
}
