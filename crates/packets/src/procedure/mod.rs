//! The procedures: which transfers are made, and what follows from them. They need no host, only a [`Testbed`].
//!
//! Each measuring transfer starts from an empty table of connections: the table is flushed, the flows are opened by a fill (one
//! frame for each flow; RFC 9693's first phase), and only then is anything measured (its second phase). A procedure measures either
//! how connections are made or how frames of existing ones are forwarded, never a mixture. docs/explanation/packets.md says step by
//! step what follows an RFC to the letter.

mod back_to_back;
mod capacity;
mod delay;
mod describe;
mod establishment;
mod estimate;
mod fill;
mod frame_loss;
mod metrics;
mod plan;
mod progress;
mod rate;
mod seek;
#[cfg(test)]
mod simulated;
mod tear_down;
#[cfg(test)]
mod tests;
mod throughput;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_record::{Fault, Series};
use weir_stats::Delays;

use crate::testbed::{Testbed, TestbedError};
use crate::transfer::Family;
use crate::workload::{Packets, Procedure};
use progress::{Halt, RunProgress};

/// The meaning of the delay of stamped frames: it follows from whether the hosts have one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delay {
    /// From the initiator to the responder (RFC 7679): both read one clock, as in the lab.
    OneWay,
    /// There and back to the initiator (RFC 2681): between machines, whose clocks differ.
    RoundTrip,
}

impl Delay {
    /// The distribution's name among the findings.
    fn histogram(self) -> &'static str {
        match self {
            Delay::OneWay => "delay",
            Delay::RoundTrip => "rtt",
        }
    }
}

/// The runner's settings for one run of a procedure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcedureSettings {
    /// `rate`: traffic before the measuring window, not counted.
    pub warmup: Duration,
    /// `rate`: the measuring window. `latency`, `pdv`: the stream's length, unless the preset sets it.
    pub duration: Duration,
    /// IP version of the testbed.
    pub family: Family,
    /// The kind of delay of the testbed's transfers.
    pub delay: Delay,
    /// Seed of the orders of flows. The same in all trials of a run, as RFC 4814 asks for.
    pub seed: u64,
}

/// The outcome of a run of a procedure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Values by name, unit in the name.
    pub values: BTreeMap<String, f64>,
    /// Distributions by name, ns: `delay`, or `rtt` with [`Delay::RoundTrip`].
    pub histograms: BTreeMap<String, Delays>,
    /// The search step by step: what was offered (`offered_pps`) and lost (`loss_ratio`), over the seconds of traffic so far.
    pub series: Vec<Series>,
    /// Faults of the tester, and bounds of the result.
    pub faults: Vec<Fault>,
}

impl Findings {
    fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), value);
    }
}

/// Runs the procedure once. The result is what the gateway does, however bad; faults say what the tester did wrong.
pub fn run(
    packets: &Packets,
    setting: &ProcedureSettings,
    testbed: &mut dyn Testbed,
) -> Result<Findings, TestbedError> {
    let mut progress = RunProgress::new(packets, setting, testbed)?;
    let done = match packets.procedure {
        Procedure::Rate => rate::run(&mut progress),
        Procedure::Throughput => throughput::run(&mut progress, false),
        Procedure::ThroughputBidirectional => throughput::run(&mut progress, true),
        Procedure::FrameLoss => frame_loss::run(&mut progress),
        Procedure::BackToBack => back_to_back::run(&mut progress),
        Procedure::Latency => delay::run(&mut progress, false),
        Procedure::Pdv => delay::run(&mut progress, true),
        Procedure::Establishment => establishment::run(&mut progress, false),
        Procedure::EstablishmentValidated => establishment::run(&mut progress, true),
        Procedure::TearDown => tear_down::run(&mut progress),
        Procedure::Capacity => capacity::run(&mut progress),
    };
    match done {
        Err(Halt::Testbed(error)) => Err(error),
        // Values measured before a fault stay in the record.
        Ok(()) | Err(Halt::Fault) => Ok(progress.finish()),
    }
}
