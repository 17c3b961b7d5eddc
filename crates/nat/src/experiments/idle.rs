//! How long mappings live, searched for in parallel: each time has a mapping of its own, because a packet that asks whether a
//! mapping is there may keep it alive.

mod afterwards;
mod held;
mod hold;
mod known;
mod opened;
mod reuse;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use hold::Hold;
pub use known::bracket;
use known::{Asked, Known};
use opened::{Mapped, Mappings, exchange, known_by, open, open_connection, open_echo, open_syn, question};
use weir_text::order;

use crate::session::Session;
use crate::{Arrival, Earlier, Limits, Observations, Side};

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
/// Linux treats a UDP exchange as a stream, with a longer timeout, once it has lasted two seconds
/// (net/netfilter/nf_conntrack_proto_udp.c); others may do so after a number of packets.
const STREAM: Duration = Duration::from_millis(2_200);
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
        }
    }
}

/// A packet to be sent at its time.
struct Planned {
    due: Duration,
    side: Side,
    mapping: usize,
    purpose: Purpose,
    /// It refreshes, and asks for nothing.
    refreshes: bool,
}

/// RFC 4787 section 4.3, RFC 5382 section 5, RFC 5508 sections 3.2 and 4.3, RFC 7857 sections 2.2 and 8.
pub(super) fn all(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let limit = session.conditions().limits.idle;
    if limit < STEP {
        return Ok(());
    }
    let known = Known::of(observations.idle.take());
    let mut mappings = Mappings::default();
    let mut plan = Vec::new();
    let left = afterwards::prepare(session, &known)?;
    // Connections, which live longest, are opened first.
    let of_connections = |base| base == Purpose::Established;
    connections(session, &known, &mut mappings, &mut plan)?;
    held::prepare(session, &known, of_connections, &mut mappings, &mut plan)?;
    prepare(session, &known, &mut mappings, &mut plan)?;
    held::prepare(session, &known, |base| !of_connections(base), &mut mappings, &mut plan)?;
    singles(session, &known, &mut mappings, &mut plan)?;
    reuse::prepare(session, &known, &mut mappings, &mut plan)?;
    order::by_key(&mut plan, |planned| planned.due);
    let asked = carry_out(session, &mappings, &plan, &mut |session, asked, sure, rest| {
        observations.idle = Some(known.with(asked, sure, limit, Some(rest)));
        session.seen(observations, None)
    })?;
    let (sure, _) = session.path_is_alive()?;
    let mut idle = known.with(&asked, sure, limit, None);
    afterwards::ask(session, &left, &mut idle)?;
    observations.idle = Some(idle);
    Ok(())
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

/// Opens connections of TCP, and plans what is sent to them.
fn connections(
    session: &mut Session<'_>,
    known: &Known,
    mappings: &mut Mappings,
    plan: &mut Vec<Planned>,
) -> io::Result<()> {
    if !session.carries_everything() {
        return Ok(());
    }
    for time in thinned(session, &times_of_connections(session.conditions().limits)) {
        for purpose in [Purpose::Established, Purpose::HalfClosed] {
            if !known.leaves_open(purpose, time) {
                continue;
            }
            session.about(purpose.rows());
            let Some(mapping) = mappings.open(purpose, || open_connection(session, purpose))? else {
                continue;
            };
            let due = mappings[mapping].last + time;
            plan.push(Planned { due, side: Side::Outside, mapping, purpose, refreshes: false });
        }
    }
    Ok(())
}

/// Opens the mappings of UDP with packets both ways, and plans what is sent to them.
fn prepare(
    session: &mut Session<'_>,
    known: &Known,
    mappings: &mut Mappings,
    plan: &mut Vec<Planned>,
) -> io::Result<()> {
    let times = times(session.conditions().limits.idle, RELATIVE_STEP, &NAMED);
    let few = thinned(session, &times);
    let first = mappings.len();
    session.about(Purpose::Answered.rows());
    let answered = || few.iter().filter(|time| known.leaves_open(Purpose::Answered, **time));
    for _ in answered() {
        mappings.open(Purpose::Answered, || open(session, true))?;
    }
    if mappings.len() > first {
        session.pass(session.now() + STREAM)?;
    }
    for mapping in &mut mappings[first..] {
        exchange(session, mapping)?;
    }
    for (mapping, time) in (first..mappings.len()).zip(answered()) {
        let due = mappings[mapping].last + *time;
        plan.push(Planned {
            due,
            side: Side::Outside,
            mapping,
            purpose: Purpose::Answered,
            refreshes: false,
        });
    }
    Ok(())
}

/// Opens a mapping for each time and purpose that is asked for once.
fn singles(
    session: &mut Session<'_>,
    known: &Known,
    mappings: &mut Mappings,
    plan: &mut Vec<Planned>,
) -> io::Result<()> {
    let times = times(session.conditions().limits.idle, RELATIVE_STEP, &NAMED);
    let few = thinned(session, &times);
    const SINGLE: [Purpose; 5] =
        [Purpose::Unanswered, Purpose::Echo, Purpose::Syn, Purpose::ResetIn, Purpose::ResetOut];
    for (time, purpose) in times.iter().flat_map(|time| SINGLE.map(|purpose| (*time, purpose))) {
        let carried = purpose == Purpose::Unanswered || session.carries_everything();
        if !carried || !known.leaves_open(purpose, time) {
            continue;
        }
        if purpose != Purpose::Echo && !few.contains(&time) {
            continue;
        }
        session.about(purpose.rows());
        let opened = mappings.open(purpose, || match purpose {
            Purpose::Echo => open_echo(session),
            Purpose::Syn => open_syn(session),
            Purpose::ResetIn | Purpose::ResetOut => open_connection(session, purpose),
            _ => open(session, false),
        })?;
        let Some(mapping) = opened else { continue };
        let due = mappings[mapping].last + time;
        plan.push(Planned { due, side: Side::Outside, mapping, purpose, refreshes: false });
    }
    Ok(())
}

/// Gets what was asked so far, whether the path has carried a control packet since, and what is still to be sent.
type Part<'a> = dyn FnMut(&mut Session<'_>, &[Asked], bool, &[Planned]) -> io::Result<()> + 'a;

/// Sends everything at its time, and notes which packets reached their hosts.
fn carry_out(
    session: &mut Session<'_>,
    mappings: &[Mapped],
    plan: &[Planned],
    part: &mut Part<'_>,
) -> io::Result<Vec<Asked>> {
    let mut asked: Vec<Asked> = Vec::new();
    let mut by_data: HashMap<Vec<u8>, usize> = HashMap::new();
    // When mappings were refreshed, at the earliest and at the latest.
    let mut refreshed: HashMap<usize, (Duration, Duration)> = HashMap::new();
    let note = |arrivals: Vec<Arrival>, asked: &mut Vec<Asked>, by_data: &HashMap<Vec<u8>, usize>| {
        for arrival in &arrivals {
            let Some(n) = known_by(arrival).and_then(|data| by_data.get(&data)) else { continue };
            match arrival.side {
                // The port may belong to another mapping by now.
                Side::Inside => {
                    asked[*n].alive |= arrival.packet.to().is_none_or(|to| to == asked[*n].inside);
                }
                Side::Outside => asked[*n].ports.1 = arrival.packet.from(),
            }
        }
    };
    for (n, planned) in plan.iter().enumerate() {
        let arrivals = session.pass(planned.due)?;
        note(arrivals, &mut asked, &by_data);
        let mapping = &mappings[planned.mapping];
        session.about(planned.purpose.rows());
        let (packet, data) = match planned.purpose {
            Purpose::Held(hold, _) if planned.refreshes => (held::packet(session, mapping, hold), Vec::new()),
            _ => question(session, mapping, planned.side),
        };
        let before = session.now();
        for _ in 0..session.attempts() {
            session.send_only(planned.side, &packet)?;
        }
        let times = (before.saturating_sub(mapping.last), session.now().saturating_sub(mapping.sent));
        if planned.refreshes {
            refreshed.insert(planned.mapping, times);
        } else {
            by_data.insert(data, asked.len());
            let refreshed = refreshed.get(&planned.mapping).copied();
            let (purpose, inside) = (planned.purpose, mapping.inside);
            asked.push(Asked {
                purpose,
                times,
                refreshed,
                alive: false,
                inside,
                ports: (mapping.seen, None),
            });
        }
        if session.wants_part() {
            // The control packets come after this one, so its answer is there as well, or does not come.
            let (sure, arrivals) = session.path_is_alive()?;
            note(arrivals, &mut asked, &by_data);
            part(session, &asked, sure, &plan[n + 1..])?;
        }
    }
    let patience = session.conditions().patience;
    let arrivals = session.pass(session.now() + patience)?;
    note(arrivals, &mut asked, &by_data);
    let (_, arrivals) = session.path_is_alive()?;
    note(arrivals, &mut asked, &by_data);
    Ok(asked)
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
