//! Latency and packet delay variation at the throughput rate: RFC 2544 section 26.2, RFC 8219 sections 7.2 and 7.3.1.

use weir_record::FaultCode;
use weir_stats::Histogram;

use super::course::{Course, Halt, Shot, Ways};
use super::{Delay, throughput};

/// Tagged frames of a stream: with 20,000 there are 20 beyond the 99.9th percentile. RFC 8219 asks for at least 500.
const TAGGED: u64 = 20_000;

/// Fewest tagged frames that make a result (RFC 8219 section 7.2).
const LEAST_TAGGED: u64 = 500;

/// RFC 8219's typical latency is the median, its worst case the 99.9th percentile; PDV reaches to that one, too.
pub(super) const WORST: f64 = 0.999;

pub(super) fn run(course: &mut Course<'_>, variation: bool) -> Result<(), Halt> {
    let flows = course.packets.flow_count();
    let rate = match course.packets.rate {
        Some(rate) => rate,
        None => {
            let (found, ceiling) = throughput::find(course, Ways::Egress)?;
            throughput::tell(course, &found, ceiling);
            let Some(rate) = found.lower else {
                let detail =
                    "the gateway loses frames at any rate: there is no throughput at which to measure delay";
                return Err(course.halt(FaultCode::ConnectionFailed, detail));
            };
            rate
        }
    };
    let length = course.plan.stream.unwrap_or(course.setting.duration);
    let settle = course.plan.settle;
    let seen = course.steadily(rate, |course| {
        course.fill(flows)?;
        if !variation && !settle.is_zero() {
            course.shoot(&Shot::of_existing(Ways::Egress, flows, rate, settle))?;
        }
        let shot = Shot::of_existing(Ways::Egress, flows, rate, length);
        // PDV is about all frames.
        let stamp_every = if variation { 1 } else { (shot.frames / TAGGED).max(1) as u32 };
        Ok(course.shoot(&Shot { stamp_every, ..shot })?)
    })?;
    course.set("offered_pps", rate);
    course.set("loss_ratio", seen.loss_ratio());
    let Some((_, received)) = seen.outcome.egress else { return Ok(()) };
    let delay = received.delay;
    if delay.len() < LEAST_TAGGED {
        let did = match course.setting.delay {
            Delay::OneWay => "arrived",
            Delay::RoundTrip => "came back",
        };
        let detail = format!("{} tagged frames {did}: RFC 8219 asks for {LEAST_TAGGED}", delay.len());
        return Err(course.halt(FaultCode::ConnectionFailed, detail));
    }
    if let Some(pdv) = pdv_ns(&delay).filter(|_| variation) {
        course.set("pdv_ns", pdv as f64);
    }
    course.findings.histograms.insert(course.setting.delay.histogram().to_owned(), delay);
    Ok(())
}

/// PDV = D(99.9th percentile) - Dmin.
fn pdv_ns(delay: &Histogram) -> Option<u64> {
    delay.quantile(WORST).map(|worst| worst - delay.min())
}
