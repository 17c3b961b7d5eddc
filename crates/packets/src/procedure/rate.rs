//! Forwarding rate at an offered rate, or without one: RFC 2285 section 3.6.1.

use weir_record::FaultCode;

use super::Delay;
use super::progress::{Halt, RunProgress, Seen, Shot, Ways, per_second};
use crate::pace::Pace;
use crate::transfer::{Received, Sent};

/// With a set rate every so many frames carry the time, for their delay.
const STAMP_EVERY: u32 = 16;

/// Without a schedule, a path on another core than the sender's loses more than this. A path on the same core loses only the
/// frames that it drops on purpose.
const MOST_LOST: f64 = 0.05;

pub(super) fn run(progress: &mut RunProgress<'_>) -> Result<(), Halt> {
    let (packets, setting) = (progress.packets, progress.setting);
    let flows = packets.flow_count();
    progress.fill(flows)?;
    // `max-rate` bounds what is otherwise sent as fast as it goes.
    let rate = packets.rate.or(packets.max_rate);
    let shot = |duration| {
        let shot = Shot::of_existing(Ways::Egress, flows, rate.unwrap_or(1.0), duration);
        if rate.is_some() { Shot { stamp_every: STAMP_EVERY, ..shot } } else { shot.unlimited() }
    };
    if !setting.warmup.is_zero() {
        progress.shoot(&shot(setting.warmup))?;
    }
    let seen = progress.shoot(&shot(setting.duration))?;
    let Some((sent, received)) = &seen.outcome.egress else { return Ok(()) };
    if seen.own_drops > 0 {
        let percent = seen.own_drops as f64 / seen.intended.max(1) as f64 * 100.0;
        progress.void(
            FaultCode::ReceiverDrops,
            format!(
                "{} frames ({percent:.3} %) arrived, and the receiver's buffer had no room for them",
                seen.own_drops
            ),
        );
    } else if seen.slipped {
        let percent = sent.slip_ratio * 100.0;
        progress.void(
            FaultCode::LateSends,
            format!(
                "sending {} of {} frames took {percent:.3} % longer than it should",
                sent.frames, seen.intended
            ),
        );
    }
    let (forwarded, window_ns) = forwarding_rate(&seen, sent, received);
    progress.set("forwarding_rate_pps", forwarded);
    progress.set("delivered_pps", forwarded);
    // If nothing was forwarded, a packet takes more than all of the time.
    progress.set("ns_per_packet", if forwarded > 0.0 { 1e9 / forwarded } else { window_ns as f64 });
    adjust(progress, &seen, sent.pace);
    progress.set("offered_pps", seen.offered_pps());
    progress.set_loss(&seen);
    let delays = received.delays(sent);
    if !delays.is_empty() {
        progress.findings.histograms.insert(setting.delay.histogram().to_owned(), delays);
    }
    Ok(())
}

/// Frames a second that arrived as they must, and the time that they are divided by, ns: that of the sender too, since a gateway that
/// forwards for a moment only has no greater rate than what arrived of all the time.
pub(super) fn forwarding_rate(seen: &Seen, sent: &Sent, received: &Received) -> (f64, u64) {
    let window_ns = sent.duration_ns.max(received.duration_ns.saturating_sub(sent.elsewhere_ns));
    (per_second(seen.arrived, window_ns), window_ns)
}

/// Takes the speed of the core out, where that is the core that forwards: hosts that share a clock share the machine, and the sender
/// is paced by the path, which nearly all frames then pass.
fn adjust(progress: &mut RunProgress<'_>, seen: &Seen, pace: Option<Pace>) {
    let Some(pace) = pace else { return };
    if progress.setting.delay != Delay::OneWay || seen.loss_ratio() > MOST_LOST {
        return;
    }
    progress.set("adjusted_rate_pps", pace.frames_per_second() * (1.0 - seen.loss_ratio()));
    progress.set("core_speed_ratio", pace.core_speed());
}
