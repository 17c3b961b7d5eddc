//! Two first packets at once: of one flow, as resolvers send them that ask for A and AAAA from one port, and of two hosts that use
//! the same port.

use std::io;
use std::net::SocketAddr;

use weir_wire::Tcp;

use crate::ends::PORT_STEP;
use crate::observed::{FirstPackets, FirstSyns};
use crate::session::{Segment, Session};
use crate::{Arrival, Observations, Packet, Side};

/// Flows.
const FLOWS: u32 = 32;
/// Pairs of SYNs. The kernel's NAT loses a few of a hundred; more of them would fill small pools of ports.
const PAIRS: u32 = 32;

/// Ports beside a fresh one that are used with it: less than its distance to the next experiment's, of which there are not too many.
const NEIGHBOURS: u16 = PORT_STEP / 2;

/// RFC 4787 section 8.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let lossless = session.attempts() == 1;
    let mut seen = FirstPackets { flows: FLOWS, lost: 0, split: 0, sure: lossless };
    for _ in 0..FLOWS {
        let inside = session.fresh_inside();
        let data = [session.data(), session.data()];
        let which = |arrival: &Arrival| {
            let found = arrival.packet.udp_data().filter(|_| arrival.side == Side::Outside)?;
            data.iter().position(|data| data == found)
        };
        let packets = data.each_ref().map(|data| Packet::udp(inside, far, data));
        let (from, sure) = at_once(session, &packets, &which)?;
        seen.sure &= sure;
        match from {
            [Some(first), Some(second)] => seen.split += u32::from(first != second),
            _ => seen.lost += lost(from),
        }
    }
    observations.udp_first_packets = Some(seen);
    Ok(())
}

/// RFC 5382 sections 4.2 and 7.1: a NAT that looks for a free port, and takes it later, gives both hosts the same one.
pub(super) fn tcp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let lossless = session.attempts() == 1;
    let mut seen = FirstSyns { pairs: PAIRS, lost: 0, shared: 0, sure: lossless };
    let mut ports = Vec::new();
    while ports.len() < PAIRS as usize {
        let first = session.fresh_port();
        ports.extend(first..first + NEIGHBOURS);
    }
    for port in ports {
        let numbers = [session.sequence(), session.sequence()];
        let which = |arrival: &Arrival| {
            let (found, _) = arrival.packet.tcp_segment().filter(|_| arrival.side == Side::Outside)?;
            numbers.iter().position(|number| *number == found.sequence)
        };
        let packets = [0, 1].map(|n| {
            let segment = Segment { sequence: numbers[n], acknowledgement: 0, flags: Tcp::SYN };
            Packet::tcp(SocketAddr::new(session.inside(n), port), far, segment.header(), &[])
        });
        let (from, sure) = at_once(session, &packets, &which)?;
        seen.sure &= sure;
        match from {
            [Some(first), Some(second)] => seen.shared += u32::from(first == second),
            _ => seen.lost += lost(from),
        }
    }
    observations.tcp_first_syns = Some(seen);
    Ok(())
}

fn lost(from: [Option<SocketAddr>; 2]) -> u32 {
    from.iter().filter(|from| from.is_none()).count() as u32
}

/// Sends two packets from inside at once. Returns the sources with which they arrived, and whether silence counts.
fn at_once(
    session: &mut Session<'_>,
    packets: &[Packet; 2],
    which: &dyn Fn(&Arrival) -> Option<usize>,
) -> io::Result<([Option<SocketAddr>; 2], bool)> {
    session.send_at_once(Side::Inside, packets)?;
    let mut from: [Option<SocketAddr>; 2] = [None; 2];
    let deadline = session.now() + session.conditions().patience;
    while from.contains(&None) {
        let arrival = session.wait(deadline, &|arrival| which(arrival).is_some(), &mut Vec::new())?;
        let Some(arrival) = arrival else { break };
        which(&arrival).into_iter().for_each(|n| from[n] = arrival.packet.from());
    }
    if !from.contains(&None) {
        return Ok((from, true));
    }
    let (alive, late) = session.path_is_alive()?;
    late.iter().filter_map(|a| Some((which(a)?, a))).for_each(|(n, a)| from[n] = a.packet.from());
    Ok((from, alive))
}
