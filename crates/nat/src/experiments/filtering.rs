//! Which packets from outside reach a mapping's host.

use std::io;
use std::net::SocketAddrV4;

use weir_wire::{Icmp, Tcp};

use super::mapping::translation;
use crate::observed::{Answered, Filtering, Inbound};
use crate::session::{Session, Trip};
use crate::{Observations, Side};

/// Mappings that are tried.
const MAPPINGS: usize = 2;

/// The fate of a packet from outside.
pub(super) fn inbound(trip: &Trip) -> Inbound {
    Inbound { reached: trip.to(), sure: trip.is_sure(), answered: answered(trip, Side::Outside) }
}

/// The answer of the NAT itself to a packet from that side.
pub(super) fn answered(trip: &Trip, side: Side) -> Option<Answered> {
    trip.others.iter().filter(|arrival| arrival.side == side).find_map(|arrival| {
        match arrival.packet.icmp_message() {
            Some(Icmp::Unreachable { code, .. }) => Some(Answered::Icmp { kind: 3, code }),
            _ => {
                let (header, _) = arrival.packet.tcp_segment()?;
                (header.flags & Tcp::RST != 0).then_some(Answered::Reset)
            }
        }
    })
}

/// RFC 4787 section 5. The answer comes last: it proves that the mapping was there.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let mut seen = Vec::new();
    for _ in 0..MAPPINGS {
        let inside = session.fresh_inside();
        let (port, other_port) = (session.fresh_port(), session.fresh_port());
        let contacted = session.outside(0, port);
        let mapping = translation(session, inside, contacted)?;
        let Some(mapped) = mapping.seen else { continue };
        // The other address with the port that was contacted, so that a filter of ports alone would show.
        let strangers = [session.outside(1, port), session.outside(0, other_port)];
        let mut from = |stranger: SocketAddrV4| session.udp_in(stranger, mapped).map(|trip| inbound(&trip));
        let other_address = from(strangers[0])?;
        let same_address = from(strangers[1])?;
        let answer = from(contacted)?;
        seen.push(Filtering { mapping, same_address, other_address, answer });
    }
    observations.udp_filtering = Some(seen);
    Ok(())
}
