//! The run record: the whole of `run.json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::environment::HostFacts;
use crate::fact::VariantFact;
use crate::fault::FaultCode;
use crate::metric::MetricDef;
use crate::patterns::PatternPlan;
use crate::results::Results;
use crate::summary::Summary;
use crate::trial::Trial;

/// How far a run got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Status {
    /// Still going, or killed: what is here was measured.
    Running,
    /// Every headline interval is as narrow as asked for.
    Precise,
    /// All planned rounds were made.
    RoundsDone,
    /// The time budget ended.
    BudgetSpent,
    /// The user stopped it.
    Interrupted,
    /// It could not go on.
    Failed {
        /// The reason, as reported to the user.
        message: String,
    },
}

/// The plan of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPlan {
    /// Rounds at least (6 is the least that can give a 95 % interval).
    pub min_rounds: u32,
    /// Rounds at most.
    pub max_rounds: u32,
    /// Seconds after which no new round is started.
    pub budget_s: f64,
    /// Stop once the half-width of every headline interval is below this (relative: 0.02 is 2 %).
    pub target_half_width: f64,
    /// Margin within which two variants are called equivalent (relative).
    pub equivalence_margin: f64,
    /// Trials whose steal share is above this are void, 0..=1.
    pub max_steal_ratio: f64,
}

/// One point of a curve: an entry of the scenario that was measured at several values of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Name of the entry in the scenario; the points of one curve have it in common.
    pub family: String,
    /// The key whose value changes from point to point, dotted where it lies deeper.
    pub key: String,
    /// Its value here, in the unit of the key.
    pub value: f64,
}

/// A variant as it was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantInfo {
    /// Name, unique in the run.
    pub name: String,
    /// Kind (`direct`, `nft-masquerade`, ...).
    pub kind: String,
    /// Description in words, with its options.
    pub description: String,
    /// True for the baseline.
    pub baseline: bool,
    /// For the A/A twin: the name of the variant it doubles.
    pub twin_of: Option<String>,
    /// How it was proved to be in effect: one line per check.
    pub proof: Vec<String>,
    /// Costs apart from traffic, measured at setup: memory, time to load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<VariantFact>,
    /// Dimensions for grouping (`zone`, `sku`).
    pub labels: BTreeMap<String, String>,
    /// Its point on a curve, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
}

/// A workload as it was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadInfo {
    /// Name, unique in the run.
    pub name: String,
    /// Kind (`tcp-stream`, ...).
    pub kind: String,
    /// Description in words, with its options.
    pub description: String,
    /// Its metrics, headline ones first.
    pub metrics: Vec<MetricDef>,
    /// Rounds that it takes part in, the first ones; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// Its point on a curve, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
}

/// Two workloads of a run that are compared with each other inside each variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadPair {
    /// The one that is judged.
    pub workload: String,
    /// The one that it is compared with.
    pub with: String,
}

impl WorkloadInfo {
    /// Whether it takes part in a round, counted from 0.
    pub fn is_in_round(&self, round: u32) -> bool {
        self.rounds.is_none_or(|rounds| round < rounds)
    }
}

/// One execution of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema: u32,
    /// Version of weir that wrote it.
    pub weir: String,
    /// Identifier, unique per machine: start time and a random part.
    pub id: String,
    /// Name of the scenario.
    pub scenario: String,
    /// Title of the scenario.
    pub title: String,
    /// The scenario's whole TOML text after `--set` and defaults of the preset: what to run again.
    pub scenario_toml: String,
    /// Seed of every random draw of the run.
    pub seed: u64,
    /// Start, RFC 3339.
    pub started: String,
    /// End, RFC 3339.
    pub ended: Option<String>,
    /// How far it got.
    pub status: Status,
    /// Its plan.
    pub plan: RunPlan,
    /// Variants in the scenario's order, the A/A twin behind its original.
    pub variants: Vec<VariantInfo>,
    /// Workloads in the scenario's order.
    pub workloads: Vec<WorkloadInfo>,
    /// Workloads to be compared with each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<WorkloadPair>,
    /// Variants as ways to connect: which workloads ask whether they jump between repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patterns: Option<PatternPlan>,
    /// The testbed in words: `lab` with offloads, MTU and CPU placement, or the hosts.
    pub testbed: String,
    /// Hosts.
    pub hosts: Vec<HostFacts>,
    /// Trials in the order they were made.
    pub trials: Vec<Trial>,
    /// Conclusions; every reader of this version recomputes them from the trials.
    pub results: Option<Results>,
    /// The conclusions in a few sentences, once the run has ended; every reader of this version writes them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// Information for the reader that no field holds.
    pub notes: Vec<String>,
}

impl Run {
    /// The baseline's name.
    pub fn baseline(&self) -> Option<&str> {
        self.variants.iter().find(|v| v.baseline).map(|v| v.name.as_str())
    }

    /// Trials of a workload on a variant that are void for what a hop can bring about, and all trials. Trials that the hypervisor or
    /// the user spoilt are none of either: they say nothing about a hop.
    pub fn void_trials(&self, workload: &str, variant: &str) -> (usize, usize) {
        let of_hop = |code: FaultCode| !matches!(code, FaultCode::Steal | FaultCode::Interrupted);
        let mut counts = (0, 0);
        for trial in self.trials.iter().filter(|t| t.workload == workload && t.variant == variant) {
            let void = trial.faults.iter().filter(|f| f.void).any(|f| of_hop(f.code));
            if void || !trial.is_void() {
                counts.0 += usize::from(void);
                counts.1 += 1;
            }
        }
        counts
    }
}
