//! How long one run of a procedure will probably take.

use std::time::Duration;

use super::plan::{ASSUMED_RATE, Method, fill_rate};
use super::{back_to_back, capacity};
use crate::workload::{Packets, Procedure};

/// Time of a transfer in addition to traffic and drain: messages to the hosts.
const OVERHEAD_S: f64 = 0.03;

impl Packets {
    /// Seconds that one run of the procedure will probably take, for a measuring window of that length.
    pub fn expected_seconds(&self, warmup: Duration, window: Duration) -> f64 {
        let plan = self.plan();
        let window = window.as_secs_f64();
        let flows = f64::from(self.flow_count());
        let one = plan.drain.as_secs_f64() + OVERHEAD_S;
        // Filling and measuring: two transfers.
        let fill = one + flows / fill_rate(self);
        let around = fill + one + 2.0 * OVERHEAD_S;
        let of = |(trials, seconds): (f64, f64), around: f64| seconds + trials * around;
        let throughput = of(estimate(&plan.method), around) + 4.0 * around;
        let stream = plan.stream.map_or(window, |s| s.as_secs_f64());
        let (establishments, _) = estimate(&plan.establishment());
        let establish = (establishments + 4.0) * (one + flows / ASSUMED_RATE + 2.0 * OVERHEAD_S);
        match self.procedure {
            Procedure::Rate => warmup.as_secs_f64() + window + fill + one,
            Procedure::Throughput | Procedure::ThroughputBidirectional => throughput,
            // Half of the steps down to nothing, and what finds the greatest rate.
            Procedure::FrameLoss => 6.0 * (plan.trial().as_secs_f64() + around) + 4.0 * around,
            Procedure::BackToBack => {
                // The first search halves the longest burst, each failure being made sure of; the steps after the first few,
                // and the later searches, take little time but the waiting.
                let fine = 1.5 * (1.0 / back_to_back::ERROR).log2() * around;
                let first = 4.0 * plan.burst.as_secs_f64() + 12.0 * 2.0 * around;
                throughput + first + f64::from(plan.bursts) * fine
            }
            Procedure::Latency | Procedure::Pdv => {
                let settle = if self.procedure == Procedure::Pdv { 0.0 } else { plan.settle.as_secs_f64() };
                let found = if self.rate.is_some() { 0.0 } else { throughput };
                found + settle + stream + around
            }
            Procedure::Establishment => establish,
            // The search that validates begins with what mostly is its result.
            Procedure::EstablishmentValidated => 1.5 * establish,
            Procedure::TearDown => f64::from(plan.tear_downs) * (fill + 3.0 * OVERHEAD_S),
            Procedure::Capacity => {
                // As if the table held a kernel's default of 262,144 entries, or what is tried at most.
                let held = flows.min(262_144.0);
                let error = if plan.capacity_error > 0.0 { plan.capacity_error } else { 1.0 / held };
                // Every second step of the bisection fails, which takes three trials and two slower rates.
                let doublings = (held / capacity::FIRST).max(2.0).log2();
                let steps = (1.0 / error).log2();
                let each = one + 2.0 * OVERHEAD_S;
                let longest = held / capacity::FIRST_RATE;
                doublings * 2.0 * each + 4.0 * longest + steps * (2.5 * each + 4.0 * longest)
            }
        }
    }
}

/// Trials and seconds of traffic that a search will probably take.
fn estimate(method: &Method) -> (f64, f64) {
    match method {
        Method::Mlr(goal) => goal.estimate(),
        Method::Bisect { trial, error } => {
            let trials = 1.0 + (2.0 * ASSUMED_RATE / error).log2().ceil();
            (trials, trials * trial.as_secs_f64())
        }
    }
}
