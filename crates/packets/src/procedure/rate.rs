//! Forwarding rate at an offered rate, or without one: RFC 2285 section 3.6.1.

use weir_record::FaultCode;

use super::course::{Course, Halt, Shot, Ways, per_second};

/// With a set rate every so many frames carry the time, for their delay.
const STAMP_EVERY: u32 = 16;

pub(super) fn run(course: &mut Course<'_>) -> Result<(), Halt> {
    let (packets, setting) = (course.packets, course.setting);
    let flows = packets.flow_count();
    course.fill(flows)?;
    // `max-rate` bounds what is otherwise sent as fast as it goes.
    let rate = packets.rate.or(packets.max_rate);
    let shot = |duration| {
        let shot = Shot::of_existing(Ways::Egress, flows, rate.unwrap_or(1.0), duration);
        if rate.is_some() { Shot { stamp_every: STAMP_EVERY, ..shot } } else { shot.unlimited() }
    };
    if !setting.warmup.is_zero() {
        course.shoot(&shot(setting.warmup))?;
    }
    let seen = course.shoot(&shot(setting.duration))?;
    let Some((sent, received)) = &seen.outcome.egress else { return Ok(()) };
    if seen.own_drops > 0 {
        let percent = seen.own_drops as f64 / seen.intended.max(1) as f64 * 100.0;
        course.void(
            FaultCode::ReceiverDrops,
            format!(
                "{} frames ({percent:.3} %) arrived, and the receiver's buffer had no room for them",
                seen.own_drops
            ),
        );
    } else if seen.slipped {
        let percent = sent.slip_ratio * 100.0;
        course.void(
            FaultCode::LateSends,
            format!(
                "sending {} of {} frames took {percent:.3} % longer than it should",
                sent.frames, seen.intended
            ),
        );
    }
    let forwarded = per_second(received.frames, received.duration_ns);
    course.set("forwarding_rate_pps", forwarded);
    course.set("delivered_pps", forwarded);
    if forwarded > 0.0 {
        course.set("ns_per_packet", 1e9 / forwarded);
    }
    course.set("offered_pps", seen.offered_pps());
    course.set("loss_ratio", seen.loss_ratio());
    if !received.delay.is_empty() {
        course.findings.histograms.insert(setting.delay.histogram().to_owned(), received.delay.clone());
    }
    Ok(())
}
