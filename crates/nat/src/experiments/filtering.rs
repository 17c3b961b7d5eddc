//! Which packets from outside reach a mapping's host.

use std::io;

use weir_wire::{Icmp, Tcp};

use super::mapping::translation;
use crate::observed::{Answered, Filtering, Inbound};
use crate::rows::judge::filtering_class;
use crate::session::{Protocol, Session, Trip};
use crate::{Observations, Side};

/// Mappings that are tried, and one more if they disagree.
const MAPPINGS: usize = 2;

/// The fate of a packet from outside.
pub(super) fn inbound(trip: &Trip) -> Inbound {
    Inbound { reached: trip.to(), sure: trip.is_sure(), answered: answered(trip, Side::Outside) }
}

/// The answer of the NAT itself to a packet from that side.
pub(super) fn answered(trip: &Trip, side: Side) -> Option<Answered> {
    trip.others.iter().filter(|arrival| arrival.side == side).find_map(|arrival| {
        match arrival.packet.icmp_message() {
            Some(Icmp::Unreachable { .. }) => {
                arrival.packet.icmp_kind().map(|(kind, code)| Answered::Icmp { kind, code })
            }
            _ => {
                let header = arrival.packet.tcp_header()?;
                (header.flags & Tcp::RST != 0).then_some(Answered::Reset)
            }
        }
    })
}

/// RFC 4787 section 5.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.udp_filtering = Some(filtering(session, Protocol::Udp)?);
    Ok(())
}

/// RFC 5382 section 4.3.
pub(super) fn tcp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.tcp_filtering = Some(filtering(session, Protocol::Tcp)?);
    Ok(())
}

fn disagree(tries: &[Filtering]) -> bool {
    let classes: Vec<_> = tries.iter().filter_map(filtering_class).collect();
    classes.windows(2).any(|pair| pair[0] != pair[1])
}

/// The answer comes last: it proves that the mapping was there.
///
/// A port that an earlier check used may still be open to more than this one contacted. The ports of the tries are so far from
/// each other that no other check has used two of them.
fn filtering(session: &mut Session<'_>, protocol: Protocol) -> io::Result<Vec<Filtering>> {
    let mut seen: Vec<Filtering> = Vec::new();
    for n in 0..=MAPPINGS {
        if n == MAPPINGS && !disagree(&seen) {
            break;
        }
        if n > 0 {
            session.leap();
        }
        let inside = session.fresh_inside();
        let (port, other_port) = (session.fresh_port(), session.fresh_port());
        let contacted = session.outside(0, port);
        let mapping = translation(session, protocol, inside, contacted)?;
        let Some(mapped) = mapping.seen else { continue };
        // The other address with the port that was contacted, so that a filter of ports alone would show.
        let other_address = inbound(&session.inbound(protocol, session.outside(1, port), mapped)?);
        let same_address = inbound(&session.inbound(protocol, session.outside(0, other_port), mapped)?);
        let answer = inbound(&session.answer(protocol, (inside, contacted), mapped)?);
        seen.push(Filtering { mapping, same_address, other_address, answer });
    }
    Ok(seen)
}
