//! Forwarding rate at an offered rate, or without one: RFC 2285 section 3.6.1.

use weir_record::FaultCode;

use super::Delay;
use super::course::{Course, Halt, Seen, Shot, Ways, per_second};
use crate::pace::Pace;

/// With a set rate every so many frames carry the time, for their delay.
const STAMP_EVERY: u32 = 16;

/// Of a path that is worked by another core than the sender's more are lost without a schedule; of one that is worked by the same
/// only what the path drops on purpose.
const MOST_LOST: f64 = 0.05;

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
    let forwarded = per_second(received.frames, received.duration_ns.saturating_sub(sent.elsewhere_ns));
    course.set("forwarding_rate_pps", forwarded);
    course.set("delivered_pps", forwarded);
    if forwarded > 0.0 {
        course.set("ns_per_packet", 1e9 / forwarded);
    }
    adjust(course, &seen, sent.pace);
    course.set("offered_pps", seen.offered_pps());
    course.set("loss_ratio", seen.loss_ratio());
    if !received.delay.is_empty() {
        course.findings.histograms.insert(setting.delay.histogram().to_owned(), received.delay.clone());
    }
    Ok(())
}

/// Takes the speed of the core out, where that is the core that forwards: hosts that share a clock share the machine, and the sender
/// is paced by the path, which nearly all frames then pass.
fn adjust(course: &mut Course<'_>, seen: &Seen, pace: Option<Pace>) {
    let Some(pace) = pace else { return };
    if course.setting.delay != Delay::OneWay || seen.loss_ratio() > MOST_LOST {
        return;
    }
    course.set("adjusted_rate_pps", pace.frames_per_second() * (1.0 - seen.loss_ratio()));
    course.set("core_speed_ratio", pace.core_speed());
}
