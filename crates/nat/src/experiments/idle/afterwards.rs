//! Packets of a flow whose mapping has ended, from either side.

use std::io;
use std::time::Duration;

use super::opened::{Mapped, known_by, open, open_connection, question};
use super::{Known, Purpose, STEP, bracket};
use crate::experiments::filtering::answered;
use crate::observed::{Afterwards, Idle, Met};
use crate::session::Session;
use crate::{Limits, Side};

/// Mappings for each side: one packet of either side may make a state that the other side's next packet meets.
const EACH: usize = 2;

/// Linux sends a host one ICMP error a second (net.ipv4.icmp_ratelimit, ip-sysctl.rst), and the search for idle times has used them up.
const UNLIMITED: Duration = Duration::from_millis(1_500);

/// A mapping that nothing is sent to until it has ended.
pub(super) struct Left {
    purpose: Purpose,
    side: Side,
    mapped: Mapped,
}

fn rows(purpose: Purpose) -> &'static [&'static str] {
    match purpose {
        Purpose::Established => &["tcp-after-idle"],
        _ => &["udp-after-idle"],
    }
}

/// Opens the mappings.
pub(super) fn prepare(session: &mut Session<'_>, known: &Known) -> io::Result<Vec<Left>> {
    let mut left = Vec::new();
    // A published port never ends.
    if session.conditions().published.is_some() {
        return Ok(left);
    }
    for purpose in [Purpose::Established, Purpose::Unanswered] {
        let of_tcp = purpose == Purpose::Established;
        let carried =
            !of_tcp || (session.carries_everything() && session.conditions().limits.connections >= STEP);
        if !carried || known.has_afterwards(purpose) {
            continue;
        }
        session.about(rows(purpose));
        for side in [Side::Outside, Side::Inside] {
            for _ in 0..EACH {
                let mapped = if of_tcp { open_connection(session, purpose)? } else { open(session, false)? };
                left.extend(mapped.map(|mapped| Left { purpose, side, mapped }));
            }
        }
    }
    Ok(left)
}

/// Sends to them once they have ended for certain: longer after their last packet than a mapping that did not answer.
pub(super) fn ask(session: &mut Session<'_>, left: &[Left], idle: &mut Idle) -> io::Result<()> {
    for Left { purpose, side, mapped } in left {
        let tries = if *purpose == Purpose::Established { &idle.tcp_established } else { &idle.unanswered };
        let Some((_, dead)) = bracket(tries) else { continue };
        let mut due = mapped.last + Duration::from_secs_f64(dead) + STEP;
        // A second part of a run waits for minutes once more, and not for hours.
        if due > session.now() + session.conditions().limits.idle {
            continue;
        }
        if *side == Side::Outside {
            due = due.max(session.now() + UNLIMITED);
        }
        session.pass(due)?;
        session.about(rows(*purpose));
        let (packet, data) = question(session, mapped, *side);
        let trip = session.send(*side, &packet, &|arrival| known_by(arrival).as_ref() == Some(&data))?;
        let across = trip.arrived.as_ref().filter(|arrival| arrival.side != *side);
        let met = Met {
            before: mapped.seen,
            after: across.and_then(|arrival| match side {
                Side::Inside => arrival.packet.from(),
                Side::Outside => arrival.packet.to(),
            }),
            answered: answered(&trip, *side),
            sure: trip.is_sure(),
        };
        let seen = match purpose {
            Purpose::Established => idle.tcp_afterwards.get_or_insert_default(),
            _ => idle.udp_afterwards.get_or_insert_default(),
        };
        seen.answers_are_seen = session.carries_everything();
        match side {
            Side::Inside => seen.from_inside.push(met),
            Side::Outside => seen.from_outside.push(met),
        }
    }
    Ok(())
}

/// How long a run has still to wait for the end of such mappings, after an earlier part of it.
pub(super) fn longest_left(limits: Limits, known: &Known) -> Duration {
    let open = |purpose: &Purpose| !known.has_afterwards(*purpose);
    let ends = [Purpose::Established, Purpose::Unanswered].into_iter().filter(open);
    let ends = ends.filter_map(|purpose| known.end(purpose)).map(Duration::from_secs_f64);
    ends.filter(|end| *end <= limits.idle).max().unwrap_or_default()
}

/// Results of earlier parts of a run.
pub(super) fn of(idle: &Idle, purpose: Purpose) -> &Option<Afterwards> {
    match purpose {
        Purpose::Established => &idle.tcp_afterwards,
        _ => &idle.udp_afterwards,
    }
}
