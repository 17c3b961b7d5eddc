//! Back-to-back frames: RFC 2544 section 26.4 as updated by RFC 9004.

use std::time::Duration;

use weir_record::FaultCode;
use weir_stats::search::Bisection;

use super::progress::{Halt, MOST_FRAMES, RunProgress, Seen, Shot, Ways};
use super::throughput;
use crate::transfer::Offer;

/// How often a burst that lost something is sent again before that counts (RFC 9004 section 5 asks for a search with loss
/// verification).
const REPEATS: u32 = 1;

/// The search ends at this share of the burst, and at one frame.
pub(super) const ERROR: f64 = 0.01;

pub(super) fn run(progress: &mut RunProgress<'_>) -> Result<(), Halt> {
    // RFC 9004 section 5: the throughput comes first; it says how fast a buffer empties while it is filled.
    let (found, ceiling) = throughput::find(progress, Ways::Egress)?;
    throughput::tell(progress, &found, ceiling);
    let longest = progress.plan.burst;
    let greatest = match progress.packets.max_rate {
        Some(rate) => rate,
        None => burst(progress, MOST_FRAMES, progress.plan.probe())?.offered_pps(),
    };
    let most = (greatest * longest.as_secs_f64()).clamp(1.0, MOST_FRAMES as f64).floor();
    let mut found_bursts = Vec::new();
    let mut bounded = false;
    let mut offered = Vec::new();
    // The first search begins with the longest burst; the others with twice what was found, unless that is carried.
    let mut high = most;
    while found_bursts.len() < progress.plan.bursts as usize {
        let mut search = Bisection::new(0.0, high, 1.0).relative_error(ERROR).repeats(REPEATS);
        while let Some(frames) = search.ask() {
            let seen = burst(progress, frames as u64, longest * 2)?;
            if seen.intended > 1000 {
                offered.push(seen.offered_pps());
            }
            search.tell(seen.whole());
        }
        let frames = search.lower().unwrap_or(0.0).floor();
        if search.upper().is_none() && high < most {
            high = most;
            continue;
        }
        bounded |= search.upper().is_none();
        found_bursts.push(frames);
        high = (2.0 * frames).clamp(2.0, most);
        if bounded {
            // Longer ones are not sent, so that all further searches would end alike.
            break;
        }
    }
    if bounded {
        progress.note(
            FaultCode::TesterCpu,
            format!(
                "a burst of {} s was carried whole, so the result is a lower bound",
                longest.as_secs_f64()
            ),
        );
    }
    // RFC 2544: the average over all searches is what is reported.
    let frames = mean(&found_bursts);
    let rate = if offered.is_empty() { greatest } else { mean(&offered) };
    progress.set("back_to_back_frames", frames);
    progress.set("burst_pps", rate);
    if rate > 0.0 {
        let implied_s = frames / rate;
        let emptied = (found.lower.unwrap_or(0.0) / rate).min(1.0);
        progress.set("buffer_time_ns", implied_s * 1e9);
        // RFC 9004 section 5: while the burst came in, the throughput went out.
        progress.set("corrected_buffer_time_ns", implied_s * (1.0 - emptied) * 1e9);
    }
    Ok(())
}

/// One burst over flows that were opened before.
fn burst(progress: &mut RunProgress<'_>, frames: u64, longest: Duration) -> Result<Seen, Halt> {
    let flows = progress.packets.flow_count();
    let shot = Shot { frames, ..Shot::of_existing(Ways::Egress, flows, 1.0, longest) };
    let once = |offer| {
        move |progress: &mut RunProgress<'_>| {
            progress.fill(flows)?;
            Ok(progress.shoot(&Shot { offer, ..shot.clone() })?)
        }
    };
    match progress.packets.max_rate {
        Some(rate) => progress.steadily(rate, once(Offer::Rate(rate))),
        None => once(Offer::Unlimited)(progress),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
