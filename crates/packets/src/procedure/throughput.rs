//! Throughput: RFC 2544 section 26.1, and with frames in both directions RFC 9693.

use std::time::Duration;

use weir_record::FaultCode;
use weir_stats::mlrsearch::Found;
use weir_stats::order::median;

use super::progress::{Halt, RunProgress, Seen, Shot, Ways};
use super::seek::Ceiling;

/// One trial: from an empty table, over flows that were opened before.
pub(super) fn trial(
    progress: &mut RunProgress<'_>,
    ways: Ways,
    rate: Option<f64>,
    duration: Duration,
) -> Result<Seen, Halt> {
    let flows = progress.packets.flow_count();
    let none_open = progress.fill(flows)? == u64::from(flows);
    // The responder can answer no flow that it has not seen: nothing arrives in either direction.
    let silent = none_open && ways == Ways::Both;
    let shot =
        Shot::of_existing(if silent { Ways::Egress } else { ways }, flows, rate.unwrap_or(1.0), duration);
    Ok(progress.shoot(&if rate.is_some() { shot } else { shot.unlimited() })?)
}

/// Throughput and the greatest rate that was tried.
pub(super) fn find(progress: &mut RunProgress<'_>, ways: Ways) -> Result<(Found, Ceiling), Halt> {
    let decides = progress.plan.trial();
    let mut drained = Vec::new();
    let mut once = |progress: &mut RunProgress<'_>, rate: Option<f64>, duration| {
        let seen = trial(progress, ways, rate, duration)?;
        if let Some(rate) = rate.filter(|_| duration == decides && !seen.slipped) {
            drained.push((rate, seen.drained_ns() as f64));
        }
        Ok(seen)
    };
    let ceiling = progress.ceiling(&mut once)?;
    let method = progress.plan.method.clone();
    // Ten frames in the shortest trial, so that a loss ratio means something.
    let least = 10.0 / progress.plan.probe().as_secs_f64();
    let found = progress.seek(&method, least, ceiling, &mut once)?;
    drained.retain(|(rate, _)| Some(*rate) == found.lower);
    let drained: Vec<f64> = drained.iter().map(|(_, ns)| *ns).collect();
    if let Some(ns) = median(&drained) {
        progress.tell_drain(ns, decides);
    }
    Ok((found, ceiling))
}

impl RunProgress<'_> {
    /// Says how long queues gave frames after the trials that decided, ns. The frames in them at the end are more than the hop forwards
    /// in that time: RFC 2544 section 24 asks for trials of 60 s.
    fn tell_drain(&mut self, ns: f64, trial: Duration) {
        self.set("queue_drain_ns", ns);
        let share = ns / trial.as_nanos() as f64;
        if share > self.plan.width() {
            let (ms, trial_ms) = (ns / 1e6, trial.as_secs_f64() * 1e3);
            let words = format!(
                "the hop's queues gave frames for {ms:.1} ms after trials of {trial_ms:.0} ms: the throughput of long trials is up to {:.1} % less",
                100.0 * share / (1.0 + share)
            );
            self.note(FaultCode::ShortTrial, words);
        }
    }
}

/// Sets the values of a search for throughput. A gateway that loses frames at any rate has none.
pub(super) fn tell(progress: &mut RunProgress<'_>, found: &Found, ceiling: Ceiling) {
    progress.set("throughput_pps", found.lower.unwrap_or(0.0));
    progress.set("offered_max_pps", ceiling.rate);
    if let Some(upper) = found.upper {
        progress.set("throughput_upper_pps", upper);
    }
    if let Some(conditional) = found.conditional {
        progress.set("conditional_throughput_pps", conditional);
    }
}

pub(super) fn run(progress: &mut RunProgress<'_>, both_ways: bool) -> Result<(), Halt> {
    let ways = if both_ways { Ways::Both } else { Ways::Egress };
    let (found, ceiling) = find(progress, ways)?;
    tell(progress, &found, ceiling);
    Ok(())
}
