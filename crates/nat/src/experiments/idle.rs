//! How long mappings live, searched for in parallel: each time has a mapping of its own, because a packet that asks whether a
//! mapping is there may keep it alive.

mod afterwards;
mod held;
mod hold;
mod known;
mod opened;
mod reuse;
mod schedule;

use std::io;
use std::time::Duration;

use hold::Hold;
use known::Known;
pub use known::bracket;
use schedule::Schedule;
use weir_text::order;

use crate::session::Session;
use crate::{Earlier, Limits, Observations};

/// Smallest distance of two idle times.
const STEP: Duration = Duration::from_millis(250);
/// Distance of two idle times as a part of them, where that is more: of connections, whose times are long, it is twice that.
const RELATIVE_STEP: f64 = 0.01;
/// Idle times that requirements name, s. Near them the smallest distance is used.
const NAMED: [f64; 4] = [60.0, 120.0, 240.0, 300.0];
/// The same for connections.
const NAMED_OF_CONNECTIONS: [f64; 2] = [120.0, 7_440.0];
/// How near, s.
const NEAR: f64 = 4.0;
/// A refreshed mapping is asked for after this multiple of the time of its refresh.
const ASKED_AT: f64 = 1.6;
/// Ratio of the refresh times that are tried. For any idle time one of them is well before it, and is asked for well after it.
const REFRESH_RATIO: f64 = 1.14;
/// Idle times that are tried where ports are published.
const FEW: usize = 4;
/// How far before and after the idle time.
const MARGIN: f64 = 1.12;

/// The purpose of a packet of the plan.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Purpose {
    Unanswered,
    Answered,
    Echo,
    Syn,
    Established,
    HalfClosed,
    /// A connection with a reset from outside.
    ResetIn,
    /// A connection with a reset from inside.
    ResetOut,
    /// Asks for a mapping that got one more packet at this time, s.
    Held(Hold, f64),
    /// Asks which outside port the other host gets from the same inside one.
    Reused,
    /// The same by a SYN, after the first host's connection was closed.
    ReusedClosed,
    /// The same while that connection is open.
    ReusedOpen,
}

impl Purpose {
    /// Those of single packets: the times are searched.
    const TRIED: [Purpose; 8] = [
        Purpose::Unanswered,
        Purpose::Answered,
        Purpose::Echo,
        Purpose::Syn,
        Purpose::Established,
        Purpose::HalfClosed,
        Purpose::ResetIn,
        Purpose::ResetOut,
    ];

    /// The mappings that it is about.
    fn base(self) -> Purpose {
        match self {
            Purpose::Held(hold, _) => hold.base(),
            other => other,
        }
    }

    /// Whether the other host asks.
    fn is_of_other_host(self) -> bool {
        matches!(self, Purpose::Reused | Purpose::ReusedClosed | Purpose::ReusedOpen)
    }

    /// Whether it needs ends that carry any packet.
    fn needs_everything(self) -> bool {
        match self {
            Purpose::Unanswered | Purpose::Answered | Purpose::Reused => false,
            Purpose::Held(hold, _) => !matches!(hold, Hold::UdpOut | Hold::UdpIn),
            _ => true,
        }
    }

    /// The rows that such a packet is evidence for.
    fn rows(self) -> &'static [&'static str] {
        match self {
            Purpose::Unanswered => &["udp-idle-unanswered"],
            Purpose::Answered => &["udp-idle-answered", "udp-idle-default"],
            Purpose::Echo => &["icmp-query-idle"],
            Purpose::Syn => &["tcp-idle-opening"],
            Purpose::Established => &["tcp-idle-established"],
            Purpose::HalfClosed => &["tcp-idle-half-closed"],
            Purpose::ResetIn => &["tcp-idle-reset-in"],
            Purpose::ResetOut => &["tcp-idle-reset-out"],
            Purpose::Held(hold, _) => hold.rows(),
            Purpose::Reused => &["udp-port-reuse"],
            Purpose::ReusedClosed | Purpose::ReusedOpen => &["tcp-port-reuse"],
        }
    }
}

/// A mapping that is to be opened and left alone.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    purpose: Purpose,
    /// Until a packet asks for it; a held one gets another packet before.
    time: Duration,
}

/// RFC 4787 section 4.3, RFC 5382 section 5, RFC 5508 sections 3.2 and 4.3, RFC 7857 sections 2.2 and 8.
pub(super) fn all(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let limit = session.conditions().limits.idle;
    if limit < STEP {
        return Ok(());
    }
    let known = Known::of(observations.idle.take());
    let left = afterwards::prepare(session, &known)?;
    let mut schedule = Schedule::of(wanted(session, &known));
    session.keep_strays(true);
    while schedule.go_on(session)? {
        schedule.note(&session.strays());
        if session.wants_part() {
            // The control packets come after those of the schedule, so an answer is there as well, or does not come.
            let (sure, _) = session.path_is_alive()?;
            schedule.note(&session.strays());
            observations.idle = Some(known.with(schedule.asked(), sure, limit, Some(&schedule.rest())));
            session.seen(observations, None)?;
        }
    }
    let patience = session.conditions().patience;
    session.pass(session.now() + patience)?;
    let (sure, _) = session.path_is_alive()?;
    schedule.note(&session.strays());
    session.keep_strays(false);
    let mut idle = known.with(schedule.asked(), sure, limit, None);
    afterwards::ask(session, &left, &mut idle)?;
    observations.idle = Some(idle);
    Ok(())
}

/// The mappings to open, those that take longest first.
fn wanted(session: &Session<'_>, known: &Known) -> Vec<Wanted> {
    let limits = session.conditions().limits;
    let searched = times(limits.idle, RELATIVE_STEP, &NAMED);
    let few = thinned(session, &searched);
    let of_connections = thinned(session, &times_of_connections(limits));
    let mut wanted = Vec::new();
    for purpose in Purpose::TRIED {
        if purpose.needs_everything() && !session.carries_everything() {
            continue;
        }
        let times = match purpose {
            Purpose::Established | Purpose::HalfClosed => &of_connections,
            // Identifiers are no ports: none is published.
            Purpose::Echo => &searched,
            _ => &few,
        };
        let open = times.iter().filter(|time| known.leaves_open(purpose, **time));
        wanted.extend(open.map(|time| Wanted { purpose, time: *time }));
    }
    wanted.extend(held::wanted(session, known));
    wanted.extend(reuse::wanted(session, known));
    order::by(&mut wanted, |a, b| b.time.cmp(&a.time));
    wanted
}

/// Longest idle time that a run with these limits has still to wait for, after an earlier part of it.
pub fn longest_left(limits: Limits, earlier: &Earlier) -> Duration {
    if limits.idle < STEP || earlier.complete.contains("idle") {
        return Duration::ZERO;
    }
    let known = &Known::of(earlier.seen.idle.clone());
    let open = |purpose: Purpose| {
        let times = match purpose {
            Purpose::Established | Purpose::HalfClosed => times_of_connections(limits),
            _ => times(limits.idle, RELATIVE_STEP, &NAMED),
        };
        times.into_iter().filter(move |time| known.leaves_open(purpose, *time)).max()
    };
    let tried = Purpose::TRIED.into_iter().filter_map(open).max().unwrap_or_default();
    tried.max(held::longest_left(limits, known)).max(afterwards::longest_left(limits, known))
}

/// The idle times to try, so far apart as a part of them but near these.
fn times(limit: Duration, relative_step: f64, named: &[f64]) -> Vec<Duration> {
    let mut times = vec![STEP];
    while let Some(last) = times.last().copied().filter(|last| *last < limit) {
        let near = named.iter().any(|named| (last.as_secs_f64() - named).abs() < NEAR);
        let next = last + if near { STEP } else { STEP.max(last.mul_f64(relative_step)) };
        times.push(next.min(limit));
    }
    times
}

/// The times that are tried with ports: of published ports, which are few and are not expected to end, only [`FEW`], the longest one
/// among them.
fn thinned(session: &Session<'_>, times: &[Duration]) -> Vec<Duration> {
    if session.conditions().published.is_none() {
        return times.to_vec();
    }
    let step = times.len().div_ceil(FEW);
    let mut few: Vec<Duration> = times.iter().rev().step_by(step).copied().collect();
    few.reverse();
    few
}

/// The same of connections.
fn times_of_connections(limits: Limits) -> Vec<Duration> {
    if limits.connections < STEP {
        return Vec::new();
    }
    times(limits.connections, 2.0 * RELATIVE_STEP, &NAMED_OF_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_the_limit_by_steps_of_a_quarter_second_or_one_percent() {
        let limit = Duration::from_secs(300);
        let times = times(limit, RELATIVE_STEP, &NAMED);
        assert_eq!((times[0], times.last().copied()), (STEP, Some(limit)));
        for pair in times.windows(2) {
            assert!(pair[1] - pair[0] <= STEP.max(pair[0].mul_f64(RELATIVE_STEP)), "{pair:?}");
        }
        assert!(times.len() < 450, "{}", times.len());
        let connections =
            super::times(Duration::from_secs(7_445), 2.0 * RELATIVE_STEP, &NAMED_OF_CONNECTIONS);
        assert!(connections.len() < 500, "{}", connections.len());
    }
}
