//! Throughput: RFC 2544 section 26.1, and with frames in both directions RFC 9693.

use std::time::Duration;

use weir_stats::mlrsearch::Found;

use super::course::{Course, Halt, Seen, Shot, Ways};
use super::seek::Ceiling;

/// One trial: from an empty table, over flows that were opened before.
pub(super) fn trial(
    course: &mut Course<'_>,
    ways: Ways,
    rate: Option<f64>,
    duration: Duration,
) -> Result<Seen, Halt> {
    let flows = course.packets.flow_count();
    course.fill(flows)?;
    let shot = Shot::of_existing(ways, flows, rate.unwrap_or(1.0), duration);
    Ok(course.shoot(&if rate.is_some() { shot } else { shot.unlimited() })?)
}

/// Throughput and the greatest rate that was tried.
pub(super) fn find(course: &mut Course<'_>, ways: Ways) -> Result<(Found, Ceiling), Halt> {
    let mut once = |course: &mut Course<'_>, rate, duration| trial(course, ways, rate, duration);
    let ceiling = course.ceiling(&mut once)?;
    let method = course.plan.method.clone();
    // Ten frames in the shortest trial, so that a loss ratio means something.
    let least = 10.0 / course.plan.probe().as_secs_f64();
    Ok((course.seek(&method, least, ceiling, &mut once)?, ceiling))
}

/// Sets the values of a search for throughput. A gateway that loses frames at any rate has none.
pub(super) fn tell(course: &mut Course<'_>, found: &Found, ceiling: Ceiling) {
    course.set("throughput_pps", found.lower.unwrap_or(0.0));
    course.set("offered_max_pps", ceiling.rate);
    if let Some(upper) = found.upper {
        course.set("throughput_upper_pps", upper);
    }
    if let Some(conditional) = found.conditional {
        course.set("conditional_throughput_pps", conditional);
    }
}

pub(super) fn run(course: &mut Course<'_>, both_ways: bool) -> Result<(), Halt> {
    let ways = if both_ways { Ways::Both } else { Ways::Egress };
    let (found, ceiling) = find(course, ways)?;
    tell(course, &found, ceiling);
    Ok(())
}
