//! Latency and packet delay variation at the throughput rate: RFC 2544 section 26.2, RFC 8219 sections 7.2 and 7.3.1.

use std::time::Duration;

use weir_record::FaultCode;
use weir_stats::Delays;

use super::progress::{Halt, RunProgress, Shot, Ways};
use super::throughput;

/// Tagged frames of a stream: with 20,000 there are 20 beyond the 99.9th percentile. RFC 8219 asks for at least 500.
const TAGGED: u64 = 20_000;

/// Fewest tagged frames that make a result (RFC 8219 section 7.2).
const LEAST_TAGGED: u64 = 500;

/// RFC 8219's typical latency is the median, its worst case the 99.9th percentile; PDV reaches to that one, too.
pub(super) const WORST: f64 = 0.999;

/// Name of the distribution of delays less the least one.
pub(super) const VARIATION: &str = "pdv";

pub(super) fn run(progress: &mut RunProgress<'_>, variation: bool) -> Result<(), Halt> {
    let flows = progress.packets.flow_count();
    let length = progress.plan.stream.unwrap_or(progress.setting.duration);
    let rate = match progress.packets.rate {
        Some(rate) => rate,
        None => found_rate(progress, length)?,
    };
    let settle = progress.plan.settle;
    let seen = progress.steadily(rate, |progress| {
        progress.fill(flows)?;
        if !variation && !settle.is_zero() {
            progress.shoot(&Shot::of_existing(Ways::Egress, flows, rate, settle))?;
        }
        let shot = Shot::of_existing(Ways::Egress, flows, rate, length);
        // PDV is about all frames.
        let stamp_every = if variation { 1 } else { (shot.frames / TAGGED).max(1) as u32 };
        Ok(progress.shoot(&Shot { stamp_every, ..shot })?)
    })?;
    progress.set("offered_pps", rate);
    progress.set_loss(&seen);
    let Some((sent, received)) = &seen.outcome.egress else { return Ok(()) };
    if sent.stamped < LEAST_TAGGED {
        let detail = format!(
            "{} tagged frames were sent: RFC 8219 asks for {LEAST_TAGGED}, with a greater rate or duration",
            sent.stamped
        );
        return Err(progress.halt(FaultCode::TesterResources, detail));
    }
    let delays = received.delays(sent);
    if variation {
        progress.findings.histograms.insert(VARIATION.to_owned(), above_least(&delays));
    }
    progress.findings.histograms.insert(progress.setting.delay.histogram().to_owned(), delays);
    Ok(())
}

/// The throughput. A gateway without one, which loses frames at any rate, is asked at a rate at which all frames are tagged: its losses
/// are part of its delay.
fn found_rate(progress: &mut RunProgress<'_>, length: Duration) -> Result<f64, Halt> {
    let (found, ceiling) = throughput::find(progress, Ways::Egress)?;
    throughput::tell(progress, &found, ceiling);
    if let Some(rate) = found.lower {
        return Ok(rate);
    }
    let rate = (2 * LEAST_TAGGED) as f64 / length.as_secs_f64();
    let rate = rate.min(ceiling.rate);
    let words = "the gateway loses frames at any rate, so there is no throughput";
    progress.note(FaultCode::ConnectionFailed, format!("{words}: delay was measured at {rate:.0} a second"));
    Ok(rate)
}

/// Delays less the least of them (RFC 8219 section 7.3.1: PDV = D(99.9th percentile) - Dmin). Lost frames have none here, either.
fn above_least(delays: &Delays) -> Delays {
    let ended = delays.answered();
    let mut above = Delays::new();
    ended.buckets().for_each(|(ns, n)| above.record_n(ns - ended.min(), n));
    above.fail(delays.failed());
    above
}
