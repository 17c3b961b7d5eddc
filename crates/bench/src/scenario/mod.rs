//! The scenario: which testbed, which variants, which workloads, and how many rounds.
//!
//! A scenario is TOML text. [`Scenario::load`] reads it once, completely, and refuses what it does not understand with one
//! message that names file, line and the nearest valid value. Presets, `--set`, `--variant` and `--workload` change the
//! text itself, so [`Scenario::to_toml`] is what was run, comments included, and loading it again gives the same scenario.

mod assign;
mod built_in;
mod check;
mod document;
mod edit;
mod error;
mod kubernetes;
pub(crate) mod load;
mod patterns;
mod ports;
mod problem;
mod read;
mod section;
mod span;
mod sweep;
mod testbed;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use weir_cost::CostBlock;
use weir_lab::{Family, LabOptions, Link};
use weir_packets::Delay;
use weir_record::run::Point;
use weir_record::{PatternPlan, WorkloadPair};

pub use assign::Change;
pub use built_in::{built_in, find};
pub use error::{ScenarioError, nearest};
pub use kubernetes::{KubernetesTestbed, NodeEnd, NodeGateway, PodSettings};
pub use load::Load;
pub use ports::Ports;
pub use weir_agent::HostAddress;

/// The content of one scenario file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name, `[a-z0-9-]+`.
    pub name: String,
    /// The question that it answers, for people.
    pub title: String,
    /// Hosts of the run.
    pub testbed: Testbed,
    /// How it is measured.
    pub plan: Plan,
    /// Changes that `--preset NAME` chooses between.
    pub presets: BTreeMap<String, Preset>,
    /// Ways to build the hop, at least one. The A/A twin is not among them: see [`Scenario::runs`].
    pub variants: Vec<VariantEntry>,
    /// The traffic to send and measure, at least one entry.
    pub workloads: Vec<WorkloadEntry>,
    /// The `[[compare]]` entries: workloads to be held against each other inside each variant.
    pub compare: Vec<WorkloadPair>,
    /// `[patterns]`: which workloads ask whether a variant jumps between repeats.
    pub patterns: Option<PatternPlan>,
    /// Prices, where the scenario asks for them.
    pub cost: Option<CostBlock>,
    /// Bounds to be met, as written: see [`crate::require`].
    pub require: Vec<String>,
    /// Parts other than variants and workloads that a preset or a selection left out, for the user and the record.
    pub notes: Vec<String>,
    text: String,
    origin: String,
}

/// Hosts of the run.
#[derive(Debug, Clone, PartialEq)]
pub enum Testbed {
    /// Hosts that weir builds on this machine.
    Lab(LabTestbed),
    /// Hosts that are there.
    Hosts(HostsTestbed),
    /// Pods that weir makes on nodes that are there.
    Kubernetes(KubernetesTestbed),
}

impl Testbed {
    /// The lab's links; hosts that are there have their own.
    pub fn link(&self) -> Option<&Link> {
        match self {
            Testbed::Lab(lab) => Some(&lab.link),
            Testbed::Hosts(_) | Testbed::Kubernetes(_) => None,
        }
    }

    /// How single frames are timed: the lab's hosts have one clock.
    pub fn delay(&self) -> Delay {
        match self {
            Testbed::Lab(_) => Delay::OneWay,
            Testbed::Hosts(_) | Testbed::Kubernetes(_) => Delay::RoundTrip,
        }
    }

    /// IP version of the traffic.
    pub fn family(&self) -> Family {
        match self {
            Testbed::Lab(lab) => lab.options.family,
            Testbed::Hosts(hosts) => hosts.family,
            Testbed::Kubernetes(pods) => pods.family,
        }
    }

    /// True if a hop lies between the hosts that weir may change.
    pub fn has_gateway(&self) -> bool {
        match self {
            Testbed::Lab(_) => true,
            Testbed::Hosts(hosts) => hosts.gateway.is_some(),
            Testbed::Kubernetes(pods) => pods.gateway.is_some(),
        }
    }
}

/// Hosts that weir builds on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct LabTestbed {
    /// Their properties.
    pub options: LabOptions,
    /// The responder's link, of variants that say nothing else.
    pub link: Link,
    /// Sysctls that are global to this machine, to be set for the run and put back.
    pub host_sysctls: BTreeMap<String, String>,
    /// Ports on which the responder answers.
    pub ports: Ports,
}

/// Hosts that are there.
#[derive(Debug, Clone, PartialEq)]
pub struct HostsTestbed {
    /// IP version of the traffic.
    pub family: Family,
    /// Hosts that open connections, at least one.
    pub initiators: Vec<EndHost>,
    /// The hop; absent where every variant does without (`direct`, `path`).
    pub gateway: Option<GatewayHost>,
    /// Hosts that answer, at least one.
    pub responders: Vec<EndHost>,
    /// Sysctls of the gateway that are global to its machine, to be set for the run and put back.
    pub host_sysctls: BTreeMap<String, String>,
    /// Ports on which the responders answer.
    pub ports: Ports,
}

/// An initiator or a responder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndHost {
    /// The host of its agent.
    pub host: HostAddress,
    /// Its address on the measured path.
    pub address: IpAddr,
    /// The `weir` program there; absent: weir copies itself there.
    pub program: Option<PathBuf>,
    /// Start its agent through `sudo -n`, where the login is not root.
    pub sudo: bool,
    /// Cores of its load threads; empty leaves them to the scheduler.
    pub cpus: Vec<usize>,
}

/// The hop under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayHost {
    /// The host of its agent.
    pub host: HostAddress,
    /// The `weir` program there; absent: weir copies itself there.
    pub program: Option<PathBuf>,
    /// Start its agent through `sudo -n`, where the login is not root.
    pub sudo: bool,
    /// Interface towards the initiators.
    pub inside_interface: String,
    /// Interface towards the responders; the same one on a one-armed gateway.
    pub outside_interface: String,
    /// Its address towards the initiators.
    pub inside_address: IpAddr,
    /// Its address towards the responders.
    pub outside_address: IpAddr,
    /// A further outside address that is routed to it and that nothing else uses (`nft-stateless` needs it).
    pub spare_address: Option<IpAddr>,
    /// Its table of connections may be emptied, which breaks what others have through it: RFC 9693's procedures must.
    pub flush_conntrack: bool,
}

/// How it is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Name of the variant that the others are compared with.
    pub baseline: String,
    /// Whether the baseline runs a second time in each round, as its own A/A twin.
    pub twin: bool,
    /// Rounds at least, 1..=1000. Below 6 there is no 95 % interval.
    pub min_rounds: u32,
    /// Rounds at most, `min_rounds`..=1000.
    pub max_rounds: u32,
    /// Time after which no new round is started.
    pub budget: Duration,
    /// Traffic before each measuring window, not counted; a workload may have its own.
    pub warmup: Duration,
    /// Each measuring window; a workload may have its own.
    pub duration: Duration,
    /// Relative half-width of the headline intervals at which the run ends before its budget.
    pub target: f64,
    /// Relative margin within which two variants are called equivalent.
    pub equivalence: f64,
    /// Share of CPU time taken by the hypervisor above which a trial is void, 0..=1.
    pub max_steal: f64,
    /// Whether the doctor watches the gateway in every trial.
    pub diagnose: bool,
}

impl Plan {
    /// The plan as the record keeps it.
    pub fn to_record(&self) -> weir_record::RunPlan {
        weir_record::RunPlan {
            min_rounds: self.min_rounds,
            max_rounds: self.max_rounds,
            budget_s: self.budget.as_secs_f64(),
            target_half_width: self.target,
            equivalence_margin: self.equivalence,
            max_steal_ratio: self.max_steal,
        }
    }
}

/// The changes that `--preset NAME` makes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preset {
    /// Variants that remain; absent: all.
    pub variants: Option<Vec<String>>,
    /// Workloads that remain; absent: all.
    pub workloads: Option<Vec<String>>,
    /// The plan with the preset's changes.
    pub plan: Option<Plan>,
    /// Further changes, as `--set` takes them, in this order.
    pub set: Vec<String>,
}

/// One `[[variant]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantEntry {
    /// Name, unique in the scenario.
    pub name: String,
    /// How the hop is built.
    pub variant: weir_gateway::VariantKind,
    /// Dimensions for grouping (`zone`, `sku`).
    pub labels: BTreeMap<String, String>,
    /// The responder's link in the lab: its own, or the testbed's.
    pub link: Link,
    /// Sysctls that are global to the gateway's machine, to be set for this variant's trials.
    pub host_sysctls: BTreeMap<String, String>,
    /// Its point in the sweep that produced it, if any.
    pub point: Option<Point>,
}

impl VariantEntry {
    fn named(&self) -> (&str, Option<&Point>) {
        (&self.name, self.point.as_ref())
    }
}

/// One `[[workload]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadEntry {
    /// Name, unique in the scenario.
    pub name: String,
    /// The traffic to send and measure.
    pub workload: Load,
    /// Traffic before the measuring window: its own, or the plan's.
    pub warmup: Duration,
    /// The measuring window: its own, or the plan's.
    pub duration: Duration,
    /// Rounds that it takes part in, the first ones; absent: all.
    pub rounds: Option<u32>,
    /// The load on the path at the same time, if any. It starts first, ends last, and is not compared.
    pub under: Option<weir_load::Workload>,
    /// Its point in the sweep that produced it, if any.
    pub point: Option<Point>,
}

impl WorkloadEntry {
    fn named(&self) -> (&str, Option<&Point>) {
        (&self.name, self.point.as_ref())
    }

    /// Whether it takes part in a round, counted from 0.
    pub fn is_in_round(&self, round: u32) -> bool {
        self.rounds.is_none_or(|rounds| round < rounds)
    }

    /// Describes the workload in one line for people.
    pub fn describe(&self) -> String {
        let own = self.workload.describe();
        match &self.under {
            Some(load) => format!("{own}, under load: {}", load.engine().describe()),
            None => own,
        }
    }
}

/// A variant as the rounds hold it: the scenario's, and the A/A twin of the baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantRun {
    /// Name, unique in the run.
    pub name: String,
    /// How the hop is built.
    pub variant: weir_gateway::VariantKind,
    /// True for the baseline.
    pub baseline: bool,
    /// For the twin: the name of the variant that it doubles.
    pub twin_of: Option<String>,
    /// Dimensions for grouping.
    pub labels: BTreeMap<String, String>,
    /// The responder's link in the lab.
    pub link: Link,
    /// Sysctls that are global to the gateway's machine, to be set for this variant's trials.
    pub host_sysctls: BTreeMap<String, String>,
    /// Its point in the sweep that produced it, if any. The twin has none.
    pub point: Option<Point>,
}

/// Time to apply, prove and remove a variant around a trial on hosts, seconds; in the lab the variant stays.
const OVERHEAD_HOSTS_S: f64 = 1.5;

impl Scenario {
    /// Variants in the order of the file, the A/A twin behind its original.
    pub fn runs(&self) -> Vec<VariantRun> {
        let mut runs = Vec::new();
        for entry in &self.variants {
            let run = VariantRun {
                name: entry.name.clone(),
                variant: entry.variant.clone(),
                baseline: entry.name == self.plan.baseline,
                twin_of: None,
                labels: entry.labels.clone(),
                link: entry.link.clone(),
                host_sysctls: entry.host_sysctls.clone(),
                point: entry.point.clone(),
            };
            let twin = (run.baseline && self.plan.twin).then(|| VariantRun {
                name: twin_name(&run.name),
                baseline: false,
                twin_of: Some(run.name.clone()),
                point: None,
                ..run.clone()
            });
            runs.push(run);
            runs.extend(twin);
        }
        runs
    }

    /// Trials in the first round; later ones are without the workloads that have had their `rounds`.
    pub fn trials_per_round(&self) -> usize {
        self.workloads.len() * (self.variants.len() + usize::from(self.plan.twin))
    }

    /// Seconds that so many rounds will probably take.
    fn seconds_of_rounds(&self, rounds: u32) -> f64 {
        let around = match self.testbed {
            Testbed::Lab(_) => 0.0,
            Testbed::Hosts(_) | Testbed::Kubernetes(_) => OVERHEAD_HOSTS_S,
        };
        let trial = |w: &WorkloadEntry| {
            let under =
                w.under.as_ref().map_or(0.0, |under| under.engine().properties().overhead.as_secs_f64());
            let one = around + w.workload.expected_seconds(w.warmup, w.duration) + under;
            one * f64::from(w.rounds.unwrap_or(rounds).min(rounds))
        };
        let traffic: f64 = self.workloads.iter().map(trial).sum();
        traffic * (self.variants.len() + usize::from(self.plan.twin)) as f64
    }

    /// Seconds that a further round will probably take, given how long those made took: they may have had workloads that the
    /// next one is without.
    pub(crate) fn next_round_s(&self, made: u32, elapsed_s: f64) -> f64 {
        let (planned, next) = (self.seconds_of_rounds(made), self.seconds_of_rounds(made + 1));
        elapsed_s * (next - planned) / planned
    }

    /// Least and greatest seconds that the rounds will probably take: the least number of rounds, and all of them or
    /// what the budget allows.
    pub fn expected_seconds(&self) -> (f64, f64) {
        let least = self.seconds_of_rounds(self.plan.min_rounds);
        let most = self.seconds_of_rounds(self.plan.max_rounds).min(self.plan.budget.as_secs_f64());
        (least.min(most), most.max(self.seconds_of_rounds(1)))
    }

    /// The scenario's whole text as it is in effect now. Loading it gives the same scenario.
    pub fn to_toml(&self) -> &str {
        &self.text
    }

    /// Returns the origin of the text, as messages name it.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

/// Name of the A/A twin of a variant.
pub fn twin_name(name: &str) -> String {
    format!("{name} (A/A)")
}

#[cfg(test)]
mod tests;
