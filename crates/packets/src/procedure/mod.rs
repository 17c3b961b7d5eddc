//! The procedures: which transfers are made, and what follows from them. They need no host, only a [`Rig`].
//!
//! Each measuring transfer starts from an empty table of connections: the table is flushed, the flows are opened by a fill (one
//! frame for each flow; RFC 9693's first phase), and only then is anything measured (its second phase). A procedure measures either
//! how connections are made or how frames of existing ones are forwarded, never a mixture. docs/packets.md says step by
//! step what follows an RFC to the letter.

mod back_to_back;
mod capacity;
mod course;
mod delay;
mod establishment;
mod frame_loss;
pub(crate) mod metrics;
mod plan;
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
use weir_stats::Histogram;

pub(crate) use plan::Plan;

use crate::rig::{Rig, RigError};
use crate::transfer::Family;
use crate::workload::{Packets, Procedure};
use course::{Course, Halt};

/// What the delay of stamped frames is: it follows from whether the hosts have one clock.
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

/// What the conductor sets for one run of a procedure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// `rate`: traffic before the measuring window, not counted.
    pub warmup: Duration,
    /// `rate`: the measuring window. `latency`, `pdv`: the stream's length, unless the preset sets it.
    pub duration: Duration,
    /// IP version of the testbed.
    pub family: Family,
    /// What the rig's transfers have as delay.
    pub delay: Delay,
    /// Seed of the orders of flows. The same in all trials of a run, as RFC 4814 asks for.
    pub seed: u64,
}

/// What a run of a procedure came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Values by name, unit in the name.
    pub values: BTreeMap<String, f64>,
    /// Distributions by name, ns: `delay`, or `rtt` with [`Delay::RoundTrip`].
    pub histograms: BTreeMap<String, Histogram>,
    /// The search step by step: what was offered (`offered_pps`) and lost (`loss_ratio`), over the seconds of traffic so far.
    pub series: Vec<Series>,
    /// What the tester did wrong, and what bounds the result.
    pub faults: Vec<Fault>,
}

impl Findings {
    fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), value);
    }
}

/// Runs the procedure once. The result is what the gateway does, however bad; faults say what the tester did wrong.
pub fn run(packets: &Packets, setting: &Setting, rig: &mut dyn Rig) -> Result<Findings, RigError> {
    let mut course = Course::new(packets, setting, rig)?;
    let done = match packets.procedure {
        Procedure::Rate => rate::run(&mut course),
        Procedure::Throughput => throughput::run(&mut course, false),
        Procedure::ThroughputBidirectional => throughput::run(&mut course, true),
        Procedure::FrameLoss => frame_loss::run(&mut course),
        Procedure::BackToBack => back_to_back::run(&mut course),
        Procedure::Latency => delay::run(&mut course, false),
        Procedure::Pdv => delay::run(&mut course, true),
        Procedure::Establishment => establishment::run(&mut course, false),
        Procedure::EstablishmentValidated => establishment::run(&mut course, true),
        Procedure::TearDown => tear_down::run(&mut course),
        Procedure::Capacity => capacity::run(&mut course),
    };
    match done {
        Err(Halt::Rig(error)) => Err(error),
        // What was measured before a fault stays in the record.
        Ok(()) | Err(Halt::Fault) => Ok(course.finish()),
    }
}
