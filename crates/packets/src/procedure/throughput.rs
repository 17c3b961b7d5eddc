//! Throughput: RFC 2544 section 26.1, and with frames in both directions RFC 9693.

use std::time::Duration;

use weir_stats::mlrsearch::Found;

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
    let mut once = |progress: &mut RunProgress<'_>, rate, duration| trial(progress, ways, rate, duration);
    let ceiling = progress.ceiling(&mut once)?;
    let method = progress.plan.method.clone();
    // Ten frames in the shortest trial, so that a loss ratio means something.
    let least = 10.0 / progress.plan.probe().as_secs_f64();
    Ok((progress.seek(&method, least, ceiling, &mut once)?, ceiling))
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
