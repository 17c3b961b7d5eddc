//! The first two packets of a flow at once, as resolvers send them that ask for A and AAAA from one port.

use std::io;
use std::net::SocketAddr;

use crate::observed::FirstPackets;
use crate::session::Session;
use crate::{Arrival, Observations, Packet, Side};

/// Flows.
const FLOWS: u32 = 32;

/// RFC 4787 section 8.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let lossless = session.attempts() == 1;
    let mut seen = FirstPackets { flows: FLOWS, lost: 0, split: 0, sure: lossless };
    for _ in 0..FLOWS {
        let inside = session.fresh_inside();
        let data = [session.data(), session.data()];
        session.send_at_once(Side::Inside, &data.each_ref().map(|data| Packet::udp(inside, far, data)))?;
        let mut from: [Option<SocketAddr>; 2] = [None; 2];
        let which = |arrival: &Arrival| {
            let found = arrival.packet.udp_data().filter(|_| arrival.side == Side::Outside)?;
            data.iter().position(|data| data == found)
        };
        let deadline = session.now() + session.conditions().patience;
        while from.contains(&None) {
            let arrival = session.wait(deadline, &|arrival| which(arrival).is_some(), &mut Vec::new())?;
            let Some(arrival) = arrival else { break };
            which(&arrival).into_iter().for_each(|n| from[n] = arrival.packet.from());
        }
        if from.contains(&None) {
            let (alive, late) = session.path_is_alive()?;
            late.iter().filter_map(|a| Some((which(a)?, a))).for_each(|(n, a)| from[n] = a.packet.from());
            seen.sure &= alive;
        }
        match from {
            [Some(first), Some(second)] => seen.split += u32::from(first != second),
            _ => seen.lost += from.iter().filter(|from| from.is_none()).count() as u32,
        }
    }
    observations.udp_first_packets = Some(seen);
    Ok(())
}
