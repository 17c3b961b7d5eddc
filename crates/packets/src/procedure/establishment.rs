//! Maximum connection establishment rate, plain and validated: RFC 9693.

use super::progress::{Halt, RunProgress, Seen, Shot};
use crate::transfer::Offer;

/// Rate at which connections are validated, as a share of the rate at which they were made (RFC 9693's alpha). Below one, so that a
/// failure says that connections are missing, not that answers came too fast.
pub(super) const ALPHA: f64 = 0.8;

/// From an empty table: one frame of each of so many new connections, at a rate (`None`: as fast as it goes).
fn open(progress: &mut RunProgress<'_>, flows: u32, rate: Option<f64>) -> Result<Seen, Halt> {
    progress.empty()?;
    let offer = rate.map_or(Offer::Unlimited, Offer::Rate);
    let seen = progress.shoot(&Shot::opening(flows, offer))?;
    counted(progress, seen)
}

/// Has the gateway's own count of connections that all came through kept for the record.
fn counted(progress: &mut RunProgress<'_>, seen: Seen) -> Result<Seen, Halt> {
    if seen.whole() {
        progress.tracked()?;
    }
    Ok(seen)
}

/// From an empty table: new connections, and then, if all their frames came through, one frame back over each of them: a gateway may
/// let all frames pass and yet have dropped older connections to make room.
pub(super) fn open_and_validate(progress: &mut RunProgress<'_>, opening: &Shot) -> Result<Seen, Halt> {
    progress.empty()?;
    let opened = progress.shoot(opening)?;
    match opening.offer {
        Offer::Rate(rate) if !opened.slipped && opened.whole() => {
            let answered = progress.shoot(&Shot::answering(opening.flows, rate * ALPHA))?;
            counted(progress, answered)
        }
        _ => Ok(opened),
    }
}

pub(super) fn run(progress: &mut RunProgress<'_>, validated: bool) -> Result<(), Halt> {
    let flows = progress.packets.flow_count();
    let method = progress.plan.establishment();
    let ceiling = progress.ceiling(&mut |c, rate, _| open(c, flows, rate))?;
    let least = f64::from(flows) / progress.plan.longest_opening.as_secs_f64();
    let found = progress.seek(&method, least, ceiling, &mut |c, rate, _| open(c, flows, rate))?;
    progress.set("establishment_per_s", found.lower.unwrap_or(0.0));
    progress.set("offered_max_per_s", ceiling.rate);
    if let Some(upper) = found.upper {
        progress.set("establishment_upper_per_s", upper);
    }
    if validated {
        let mut rate = 0.0;
        // The validated rate is never above the other one.
        if let Some(most) = found.lower {
            let bounds = progress.seek_within(&method, least..=most, &mut |c, rate, _| {
                open_and_validate(c, &Shot::opening(flows, Offer::Rate(rate.unwrap_or(most))))
            })?;
            rate = bounds.lower.unwrap_or(0.0);
        }
        progress.set("validated_establishment_per_s", rate);
    }
    Ok(())
}
