//! ICMP messages of different types: errors from outside, and queries from inside.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_wire::{Icmp, protocol};

use super::icmp::endpoints;
use crate::observed::IcmpType;
use crate::rows::types::{Kind, TOO_BIG, kinds};
use crate::session::{Protocol, Session};
use crate::{Arrival, Observations, Packet, Side, nat64};

/// The MTU of a tunnel; IPv6 allows none below 1,280.
const MTU: u16 = 1_300;
/// Bytes of a message before the packet that it quotes.
const HEADER: usize = 8;

/// RFC 5508 section 7: each message about a mapping of its own.
pub(super) fn needed(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let seen = tried(session, true)?;
    observations.icmp_types.get_or_insert_default().extend(seen);
    Ok(())
}

/// The same of messages that no RFC asks for.
pub(super) fn others(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let seen = tried(session, false)?;
    observations.icmp_types.get_or_insert_default().extend(seen);
    Ok(())
}

fn tried(session: &mut Session<'_>, is_needed: bool) -> io::Result<Vec<IcmpType>> {
    let mut seen = Vec::new();
    let (is_nat64, is_v6) = (session.nat64().is_some(), session.is_ipv6());
    let of = kinds(is_v6, is_nat64).filter(|kind| kind.needed == is_needed);
    for Kind { sent, query, .. } in of {
        let too_big = TOO_BIG[usize::from(is_v6 && !is_nat64)] == *sent;
        session.about(match (is_needed, too_big) {
            (true, true) => &["icmp-error-types", "icmp-too-big-in"],
            (true, false) => &["icmp-error-types"],
            _ => &["icmp-other-types"],
        });
        if *query {
            seen.push(self::query(session, *sent)?);
            continue;
        }
        // SYNs: the search for the end of UDP's ports comes later, and its mappings are counted.
        seen.extend(error(session, *sent, Protocol::Tcp)?);
        if too_big {
            session.about(&["icmp-too-big-in"]);
            seen.extend(error(session, *sent, Protocol::Udp)?);
        }
    }
    Ok(seen)
}

/// Opens a mapping, and sends a router's message about its packet; `None` if it could not be opened.
fn error(session: &mut Session<'_>, sent: (u8, u8), transport: Protocol) -> io::Result<Option<IcmpType>> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let out = session.outbound(transport, inside, far)?;
    let (Some(mapped), Some(arrival)) = (out.from(), &out.arrived) else { return Ok(None) };
    let router = session.conditions().outside[1];
    let about = arrival.packet.clone();
    let Some(packet) = on_its_side(session, router, sent, &about) else { return Ok(None) };
    let trip = session.send(Side::Outside, &packet, &|arrival| {
        arrival.side == Side::Inside && quoted(arrival).is_some_and(|inner| is_same(&inner, &about))
    })?;
    let arrived = trip.arrived.as_ref();
    // The NAT may have ended the mapping for an error that was lost behind it, and drop the next one for that.
    let is_told = arrived.is_some()
        || session.attempts() == 1
        || session.answer(transport, (inside, far), mapped)?.to() == Some(inside);
    Ok(Some(IcmpType {
        sent,
        query: false,
        udp: transport == Protocol::Udp,
        seen: arrived.and_then(|arrival| arrival.packet.icmp_kind()),
        fits: arrived.and_then(quoted).and_then(|inner| endpoints(&inner)) == Some((inside, far)),
        mtu: (mtu(&packet), arrived.map_or(0, |arrival| mtu(&arrival.packet))),
        sure: trip.is_sure() && is_told,
    }))
}

/// A query of the first inside host: identifier, sequence number, and as many bytes as such a message has.
fn query(session: &mut Session<'_>, sent: (u8, u8)) -> io::Result<IcmpType> {
    let inside = session.inside(0);
    let far = session.conditions().outside[0];
    let data = session.data();
    let identifier = session.fresh_port().to_be_bytes();
    let rest = [&identifier[..], &[0, 1], &data, &[0; 4]].concat();
    let packet = Packet::icmp(inside, far, &Icmp::Other { kind: sent.0, code: sent.1, rest: &rest });
    let trip = session.send(Side::Inside, &packet, &|arrival| {
        let payload = &arrival.packet.payload;
        arrival.side == Side::Outside
            && arrival.packet.is_icmp()
            && payload.get(HEADER..HEADER + 8) == Some(&data)
    })?;
    let arrived = trip.arrived.as_ref();
    Ok(IcmpType {
        sent,
        query: true,
        udp: false,
        seen: arrived.and_then(|arrival| arrival.packet.icmp_kind()),
        fits: arrived.is_some_and(|arrival| arrival.packet.header.source != inside),
        mtu: (0, 0),
        sure: trip.is_sure(),
    })
}

/// A router's message about a packet, of the version that the far side speaks.
fn on_its_side(session: &Session<'_>, router: IpAddr, sent: (u8, u8), about: &Packet) -> Option<Packet> {
    let (router, about) = match session.nat64() {
        Some(prefix) => (prefix.real(SocketAddr::new(router, 0)).ip(), nat64::real(prefix, about)?),
        None => (router, about.clone()),
    };
    Some(message(router, about.header.source, sent, &about.bytes()))
}

/// A message with what it quotes. Only a packet that is too big has an MTU, which both versions have in the same place.
fn message(router: IpAddr, mapped: IpAddr, (kind, code): (u8, u8), quote: &[u8]) -> Packet {
    let mtu = if TOO_BIG[usize::from(router.is_ipv6())] == (kind, code) { MTU } else { 0 };
    let rest = [&[0, 0], &mtu.to_be_bytes()[..], quote].concat();
    Packet::icmp(router, mapped, &Icmp::Other { kind, code, rest: &rest })
}

fn mtu(packet: &Packet) -> u16 {
    packet.payload.get(6..8).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The packet that a message quotes, whatever its type.
fn quoted(arrival: &Arrival) -> Option<Packet> {
    let quote = arrival.packet.payload.get(HEADER..).filter(|_| arrival.packet.is_icmp())?;
    arrival.packet.icmp_kind().and_then(|_| Packet::read_quoted(quote))
}

/// The same datagram or segment, whatever its endpoints: by its data, or its sequence number.
fn is_same(inner: &Packet, about: &Packet) -> bool {
    let place = if about.header.protocol == protocol::TCP { 4..8 } else { 8..16 };
    inner.header.protocol == about.header.protocol
        && inner.payload.get(place.clone()) == about.payload.get(place)
}
