//! Connection tracking table capacity: RFC 9693.

use weir_record::FaultCode;
use weir_stats::search::Bisection;

use super::establishment::open_and_validate;
use super::progress::{Halt, RunProgress, Shot};
use crate::transfer::Offer;

/// Connections that are safe to begin with (C0).
pub(super) const FIRST: f64 = 1000.0;

/// A drop of the establishment rate to this share ends the exponential search (beta), and this one decides the final binary search
/// (gamma): the figures of RFC 9693's own tester.
const BETA: f64 = 0.2;
const GAMMA: f64 = 0.4;

/// Rates only tell a table that is full from one that is not, so that a coarse one is enough.
const RATE_ERROR: f64 = 0.1;

/// Rate to begin with, connections a second, unless `max-rate` says otherwise: how fast a gateway is does not matter here.
pub(super) const FIRST_RATE: f64 = 300e3;

pub(super) fn run(progress: &mut RunProgress<'_>) -> Result<(), Halt> {
    let most = progress.packets.flow_count();
    let (mut safe, mut rate) = first(progress, most)?;
    let mut too_many = None;
    if safe == 0 {
        progress.set("capacity_connections", 0.0);
        return Ok(());
    }
    while safe < most {
        let tried = safe.saturating_mul(2).min(most);
        let tried_rate = validated_rate(progress, tried, rate, rate * BETA)?;
        if tried_rate < rate * BETA {
            too_many = Some(tried);
            break;
        }
        (safe, rate) = (tried, tried_rate);
    }
    let Some(mut too_many) = too_many else {
        progress.note(
            FaultCode::TesterResources,
            format!("the gateway holds the {most} connections that were tried at most, so the result is a lower bound"),
        );
        tell(progress, safe, rate);
        return Ok(());
    };
    let share = progress.plan.capacity_error;
    while too_many - safe > ((f64::from(safe) * share) as u32).max(1) {
        let tried = safe + (too_many - safe) / 2;
        let tried_rate = validated_rate(progress, tried, rate, rate * GAMMA)?;
        if tried_rate < rate * GAMMA {
            too_many = tried;
        } else {
            (safe, rate) = (tried, tried_rate);
        }
    }
    tell(progress, safe, rate);
    Ok(())
}

/// How fast connections are made says little here, so that the sender need not be exact.
fn opening(connections: u32, rate: f64) -> Shot {
    Shot { lenient: true, ..Shot::opening(connections, Offer::Rate(rate)) }
}

/// A number of connections that the gateway holds, and the rate at which it takes them; 0 if it does not hold one.
fn first(progress: &mut RunProgress<'_>, most: u32) -> Result<(u32, f64), Halt> {
    let ceiling = progress.packets.max_rate.unwrap_or(FIRST_RATE);
    let mut connections = (FIRST as u32).min(most);
    while connections > 0 {
        let rate = validated_rate(progress, connections, ceiling, 0.0)?;
        if rate > 0.0 {
            return Ok((connections, rate));
        }
        connections /= 10;
    }
    Ok((0, 0.0))
}

/// The greatest rate up to `most` at which so many connections are made and validated; 0 if it is below `least`.
///
/// RFC 9693 searches all of that range. As only the answer below `least` ends anything, it is asked for right after `most` failed:
/// a table that is full then costs two rates and not a whole search.
fn validated_rate(
    progress: &mut RunProgress<'_>,
    connections: u32,
    most: f64,
    least: f64,
) -> Result<f64, Halt> {
    let passes = |progress: &mut RunProgress<'_>, rate: f64| -> Result<bool, Halt> {
        Ok(progress.steadily(rate, |c| open_and_validate(c, &opening(connections, rate)))?.whole())
    };
    if passes(progress, most)? {
        return Ok(most);
    }
    // A failure that decides is made sure of.
    if least > 0.0 && !passes(progress, least)? && !passes(progress, least)? {
        return Ok(0.0);
    }
    // Slower than a hundredth of what was the rate before is as good as not at all.
    let mut search = Bisection::new(least, most, most / 100.0).relative_error(RATE_ERROR);
    search.tell(false);
    while let Some(rate) = search.ask() {
        search.tell(passes(progress, rate)?);
    }
    Ok(search.lower().unwrap_or(least))
}

/// Sets the result, and holds what the gateway itself counted of so many connections against it.
fn tell(progress: &mut RunProgress<'_>, connections: u32, rate: f64) {
    progress.set("capacity_connections", f64::from(connections));
    progress.set("capacity_establishment_per_s", rate);
    // The last trial in which all were validated was one with this number.
    let counted = progress.findings.values.get("tracked_connections").copied();
    if let Some(entries) = counted.filter(|entries| *entries < f64::from(connections)) {
        progress.note(
            FaultCode::ConnectionFailed,
            format!("{connections} connections are carried, but the gateway counts {entries}"),
        );
    }
}
