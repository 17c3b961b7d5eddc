//! Faults: what the tester itself did wrong in a trial. They never count against the gateway.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kinds of fault, stable across versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultCode {
    /// The sender fell behind its own schedule.
    LateSends,
    /// The sender's kernel refused datagrams (ENOBUFS): they never reached the link.
    SendBufferFull,
    /// The receiving socket's buffer overflowed: the datagrams did arrive at the host.
    ReceiverDrops,
    /// A core of a testing host was saturated by the tester although the workload has a set rate.
    TesterCpu,
    /// The hypervisor took CPU time away (`steal`).
    Steal,
    /// An operation of the tester ran into its own time limit.
    Timeout,
    /// Connections or streams failed, so the trial does not measure what it names.
    ConnectionFailed,
    /// Local ports, descriptors or memory of the tester ran out.
    TesterResources,
    /// An agent or a host went away during the trial.
    AgentLost,
    /// The external program failed or printed something that could not be read.
    External,
    /// The variant was no longer in effect at the end of the trial.
    VariantLost,
    /// A host's clock does not run as fast as the runner's, so its times and rates are wrong.
    ClockDrift,
    /// The lab's link held packets longer than it was asked to.
    LinkLate,
    /// The lab's link dropped packets that it could not hold in time.
    LinkOverflow,
    /// Trials were so short that what the hop's queues held at their end is a part of the result.
    ShortTrial,
    /// The user stopped the run during the trial.
    Interrupted,
}

/// One fault of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// Kind of fault.
    pub code: FaultCode,
    /// Role of the host where it was seen: `initiator`, `gateway`, `responder`, or `runner`.
    pub host: String,
    /// The observation, in words with figures.
    pub detail: String,
    /// True if the trial is excluded from every comparison because of it.
    pub void: bool,
}

impl Fault {
    /// A fault that excludes its trial.
    pub fn void(code: FaultCode, host: &str, detail: impl Into<String>) -> Self {
        Fault { code, host: host.to_owned(), detail: detail.into(), void: true }
    }

    /// A fault that is shown but leaves the trial in.
    pub fn noted(code: FaultCode, host: &str, detail: impl Into<String>) -> Self {
        Fault { void: false, ..Fault::void(code, host, detail) }
    }
}
