//! ICMP: queries from inside, and errors about packets of other protocols.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_probe::nat64::Prefix64;
use weir_wire::{Icmp, Tcp, Udp, protocol};

use super::segments::{Connection, connect};
use super::sequence::data;
use crate::observed::{About, IcmpError, IcmpQuery};
use crate::session::{Protocol, Session, Trip};
use crate::{Arrival, Observations, Packet, Side, nat64};

/// RFC 5508 section 3.1: an echo request and its reply, and one with the same identifier to another address.
pub(super) fn query(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let identifier = session.fresh_port();
    let [far, other] = session.conditions().outside;
    let out = request(session, identifier, far)?;
    let mapped = seen_as(&out);
    let mut seen =
        IcmpQuery { request: mapped.is_some(), reply: false, seen: [mapped, None], sure: out.is_sure() };
    if let Some(mapped) = mapped {
        let back = reply(session, identifier, far, mapped)?;
        seen.reply = back.arrived.is_some();
        seen.sure = back.is_sure();
        seen.seen[1] = seen_as(&request(session, identifier, other)?);
    }
    observations.icmp_query = Some(seen);
    Ok(())
}

/// An echo request of the first inside host.
pub(super) fn request(session: &mut Session<'_>, identifier: u16, far: IpAddr) -> io::Result<Trip> {
    let data = session.data();
    let message = Icmp::Echo { reply: false, identifier, sequence: 1, data: &data };
    let packet = Packet::icmp(session.inside(0), far, &message);
    session.send(Side::Inside, &packet, &|arrival| {
        arrival.side == Side::Outside && echo_data(arrival).is_some_and(|(_, found)| found == data)
    })
}

/// The reply to a request that was seen as this: it arrives with the request's identifier.
fn reply(session: &mut Session<'_>, identifier: u16, far: IpAddr, mapped: SocketAddr) -> io::Result<Trip> {
    let (near, data) = (session.inside(0), session.data());
    let message = Icmp::Echo { reply: true, identifier: mapped.port(), sequence: 1, data: &data };
    let packet = Packet::icmp(far, mapped.ip(), &message);
    session.send(Side::Outside, &packet, &|arrival| {
        let is_reply = matches!(arrival.packet.icmp_message(), Some(Icmp::Echo { reply: true, .. }));
        is_reply
            && arrival.packet.header.destination == near
            && echo_data(arrival) == Some((identifier, &data))
    })
}

/// Address and identifier with which an echo request arrived.
pub(super) fn seen_as(trip: &Trip) -> Option<SocketAddr> {
    let arrival = trip.arrived.as_ref()?;
    let (identifier, _) = echo_data(arrival)?;
    Some(SocketAddr::new(arrival.packet.header.source, identifier))
}

/// Identifier and data of an echo.
pub(super) fn echo_data(arrival: &Arrival) -> Option<(u16, &[u8])> {
    match arrival.packet.icmp_message() {
        Some(Icmp::Echo { identifier, data, .. }) => Some((identifier, data)),
        _ => None,
    }
}

/// RFC 5508 sections 4.2 and 5, RFC 4787 section 9, RFC 5382 section 7.3.
pub(super) fn errors(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let mut seen = Vec::new();
    for about in [About::UdpOut, About::UdpOutRouter, About::UdpIn] {
        seen.extend(error(session, about)?);
    }
    if session.carries_everything() {
        seen.extend(error(session, About::TcpOut)?);
        seen.extend(about_data(session)?);
    }
    if session.has_two_hosts() {
        seen.extend(hairpinned(session)?);
    }
    seen.extend(about_query(session, About::Query)?);
    // A real server's kernel answers the ping too, before `weir serve` does.
    if session.has_two_hosts() {
        seen.extend(about_query(session, About::QueryIn)?);
    }
    observations.icmp_errors = Some(seen);
    Ok(())
}

/// Codes of "unreachable".
pub(super) struct Codes {
    pub(super) port: u8,
    host: u8,
}

impl Codes {
    /// RFC 792, RFC 4443 section 3.1.
    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv6() { Codes { port: 4, host: 3 } } else { Codes { port: 3, host: 1 } }
    }
}

/// The rows that an error is evidence for.
fn evidence_for(about: About) -> &'static [&'static str] {
    match about {
        About::UdpOut | About::UdpOutRouter => {
            &["icmp-error-in", "icmp-error-checksum", "udp-icmp-keeps-mapping"]
        }
        About::UdpIn => &["icmp-error-out", "udp-icmp-keeps-mapping"],
        About::TcpOut => &["tcp-icmp-error-in", "tcp-icmp-keeps-mapping"],
        About::Hairpin => &["icmp-error-hairpin"],
        About::Query => &["icmp-error-about-query", "icmp-error-keeps-query"],
        About::TcpIn => &["tcp-icmp-error-out", "tcp-icmp-keeps-mapping"],
        About::QueryIn => &["icmp-error-out-about-query", "icmp-error-keeps-query"],
    }
}

/// Opens a mapping of UDP or TCP, sends an error about a packet of it, and then an answer; `None` if it could not be opened.
fn error(session: &mut Session<'_>, about: About) -> io::Result<Option<IcmpError>> {
    session.about(evidence_for(about));
    let transport = if about == About::TcpOut { Protocol::Tcp } else { Protocol::Udp };
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let out = session.outbound(transport, inside, far)?;
    let (Some(mapped), Some(arrival)) = (out.from(), &out.arrived) else { return Ok(None) };
    let quoted = match about {
        About::UdpIn => {
            let back = session.answer(transport, (inside, far), mapped)?;
            let Some(arrival) = back.arrived else { return Ok(None) };
            arrival.packet
        }
        _ => arrival.packet.clone(),
    };
    let (side, source, receiver) = match about {
        About::UdpOut | About::TcpOut => (Side::Outside, far.ip(), mapped.ip()),
        About::UdpOutRouter => (Side::Outside, session.conditions().outside[1], mapped.ip()),
        _ => (Side::Inside, inside.ip(), far.ip()),
    };
    let (bytes, codes) = (quoted.bytes(), Codes::of(source));
    let message = match about {
        About::UdpOutRouter => Icmp::TimeExceeded { code: 0, quote: &bytes },
        About::TcpOut => Icmp::Unreachable { code: codes.host, quote: &bytes },
        _ => Icmp::Unreachable { code: codes.port, quote: &bytes },
    };
    let packet = Packet::icmp(source, receiver, &message);
    let expected = match about {
        // As the receiver sent it, or as it left the NAT's address.
        About::UdpIn => Expected { source: Some(mapped.ip()), receiver: far.ip(), inner: (far, mapped) },
        _ => Expected { source: Some(source), receiver: inside.ip(), inner: (inside, far) },
    };
    passed(session, about, (side, &packet), &expected, &mut |session| {
        let answer = session.answer(transport, (inside, far), mapped)?;
        Ok((answer.to() == Some(inside), answer))
    })
}

/// Sends the error, and then the answer, of which is known whether the mapping carried it.
fn passed(
    session: &mut Session<'_>,
    about: About,
    (side, packet): (Side, &Packet),
    expected: &Expected,
    answer: &mut dyn FnMut(&mut Session<'_>) -> io::Result<(bool, Trip)>,
) -> io::Result<Option<IcmpError>> {
    let trip = session.send(side, packet, &|arrival| arrival.side != side && is_error(arrival))?;
    let (lives, answer) = answer(session)?;
    let kind = arrives_as(session, packet.icmp_kind().unwrap_or_default());
    let mut seen = compare(about, &trip, kind, expected, session.nat64());
    seen.mapping_lives = lives;
    seen.sure = is_told(session, &seen, &trip, &answer);
    Ok(Some(seen))
}

/// An inside host's error about data of TCP that it got, and then more data; `None` if the first did not arrive.
fn about_data(session: &mut Session<'_>) -> io::Result<Option<IcmpError>> {
    let about = About::TcpIn;
    session.about(evidence_for(about));
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let Some(Connection { inside, mapped, near, away, .. }) = connect(session, far)? else { return Ok(None) };
    let back = (Side::Outside, far, mapped);
    let Some(arrival) = data(session, back, away, near)?.arrived else { return Ok(None) };
    let bytes = arrival.packet.bytes();
    let message = Icmp::Unreachable { code: Codes::of(far.ip()).port, quote: &bytes };
    let error = Packet::icmp(inside.ip(), far.ip(), &message);
    let next = away.wrapping_add(session.data().len() as u32);
    let expected = Expected { source: Some(mapped.ip()), receiver: far.ip(), inner: (far, mapped) };
    passed(session, about, (Side::Inside, &error), &expected, &mut |session| {
        let answer = data(session, back, next, near)?;
        Ok((answer.to() == Some(inside), answer))
    })
}

/// Whether error and answer tell something. As with hairpinned ones: a mapping that an error ended, which was lost behind the NAT,
/// admits no second one.
fn is_told(session: &Session<'_>, seen: &IcmpError, error: &Trip, answer: &Trip) -> bool {
    let told = seen.arrived || session.attempts() == 1 || seen.mapping_lives;
    error.is_sure() && answer.is_sure() && told
}

/// A router's error about an echo request, or the inside host's about its reply, and then a reply; `None` if request or reply did
/// not arrive.
fn about_query(session: &mut Session<'_>, about: About) -> io::Result<Option<IcmpError>> {
    session.about(evidence_for(about));
    let inside = SocketAddr::new(session.inside(0), session.fresh_port());
    let [far, router] = session.conditions().outside;
    let out = request(session, inside.port(), far)?;
    let (Some(mapped), Some(arrival)) = (seen_as(&out), &out.arrived) else { return Ok(None) };
    let bytes = arrival.packet.bytes();
    let (side, error, expected) = if about == About::QueryIn {
        let Some(arrival) = reply(session, inside.port(), far, mapped)?.arrived else { return Ok(None) };
        let bytes = arrival.packet.bytes();
        let message = Icmp::Unreachable { code: Codes::of(far).port, quote: &bytes };
        let inner = (SocketAddr::new(far, mapped.port()), mapped);
        let expected = Expected { source: Some(mapped.ip()), receiver: far, inner };
        (Side::Inside, Packet::icmp(inside.ip(), far, &message), expected)
    } else {
        let message = Icmp::TimeExceeded { code: 0, quote: &bytes };
        let inner = (inside, SocketAddr::new(far, inside.port()));
        let expected = Expected { source: Some(router), receiver: inside.ip(), inner };
        (Side::Outside, Packet::icmp(router, mapped.ip(), &message), expected)
    };
    passed(session, about, (side, &error), &expected, &mut |session| {
        let answer = reply(session, inside.port(), far, mapped)?;
        Ok((answer.arrived.is_some(), answer))
    })
}

/// One inside host's datagram to the other's outside port, and the error about it; `None` if no such datagram arrived with an
/// outside source. Its source is left to the NAT: both hosts are inside.
fn hairpinned(session: &mut Session<'_>) -> io::Result<Option<IcmpError>> {
    let about = About::Hairpin;
    session.about(evidence_for(about));
    let Some((hosts, mapped)) = both_mapped(session)? else { return Ok(None) };
    let [receiver, sender] = hosts;
    session.probe(Protocol::Udp, Side::Inside, receiver, mapped[1])?;
    let reached = |trip: &Trip| {
        let arrival = trip.arrived.clone()?;
        (arrival.side == Side::Inside && arrival.packet.to() == Some(receiver)).then_some(arrival.packet)
    };
    let Some(packet) = reached(&session.probe(Protocol::Udp, Side::Inside, sender, mapped[0])?) else {
        return Ok(None);
    };
    // An error to an inside address needs no NAT.
    if packet.header.source == sender.ip() {
        return Ok(None);
    }
    let bytes = packet.bytes();
    let message = Icmp::Unreachable { code: Codes::of(receiver.ip()).port, quote: &bytes };
    let error = Packet::icmp(receiver.ip(), packet.header.source, &message);
    let trip = session.send(Side::Inside, &error, &is_error)?;
    let again = session.probe(Protocol::Udp, Side::Inside, sender, mapped[0])?;
    let expected = Expected { source: None, receiver: sender.ip(), inner: (sender, mapped[0]) };
    let kind = arrives_as(session, error.icmp_kind().unwrap_or_default());
    let mut seen = compare(about, &trip, kind, &expected, session.nat64());
    seen.mapping_lives = reached(&again).is_some();
    // The NAT may have ended a mapping for an error that was lost behind it, and drop the next one for that.
    seen.sure = seen.arrived || (trip.is_sure() && (session.attempts() == 1 || seen.mapping_lives));
    Ok(Some(seen))
}

/// Inside endpoints of both hosts, and what they are seen as outside.
fn both_mapped(session: &mut Session<'_>) -> io::Result<Option<([SocketAddr; 2], [SocketAddr; 2])>> {
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let hosts = [session.fresh_inside(), SocketAddr::new(session.inside(1), session.fresh_port())];
    let mut mapped = hosts;
    for (host, seen) in hosts.into_iter().zip(&mut mapped) {
        let Some(from) = session.outbound(Protocol::Udp, host, far)?.from() else { return Ok(None) };
        *seen = from;
    }
    Ok(Some((hosts, mapped)))
}

/// An error with a quoted packet.
fn is_error(arrival: &Arrival) -> bool {
    arrival.packet.icmp_message().is_some_and(|message| message.quote().is_some())
}

/// The addresses that an error has on the other side.
struct Expected {
    /// Source of the error itself, where only one is right.
    source: Option<IpAddr>,
    /// Its destination.
    receiver: IpAddr,
    /// Source and destination of the quoted packet.
    inner: (SocketAddr, SocketAddr),
}

/// Type and code with which an error has to arrive.
fn arrives_as(session: &Session<'_>, sent: (u8, u8)) -> (u8, u8) {
    if session.nat64().is_some() { nat64::through(sent) } else { sent }
}

/// The error as it arrived. The quote of one that came to the IPv4 side of a NAT64 is of IPv4.
fn compare(
    about: About,
    trip: &Trip,
    kind: (u8, u8),
    expected: &Expected,
    prefix: Option<Prefix64>,
) -> IcmpError {
    let nothing = IcmpError {
        about,
        arrived: false,
        outer: false,
        kind: false,
        inner: false,
        inner_ip_checksum: false,
        inner_checksum: false,
        mapping_lives: false,
        sure: false,
    };
    let Some(Arrival { side, packet, .. }) = &trip.arrived else { return nothing };
    let message = packet.icmp_message();
    let Some(quote) = message.as_ref().and_then(Icmp::quote) else { return nothing };
    let inner = Packet::read_quoted(quote);
    let header = packet.header;
    let as_known = |(from, to)| match prefix.filter(|_| *side == Side::Outside) {
        Some(prefix) => (prefix.known(from), prefix.known(to)),
        None => (from, to),
    };
    IcmpError {
        arrived: true,
        outer: header.destination == expected.receiver
            && expected.source.is_none_or(|source| source == header.source),
        kind: packet.icmp_kind() == Some(kind),
        inner: inner.as_ref().and_then(endpoints).map(as_known) == Some(expected.inner),
        inner_ip_checksum: Packet::header_is_sound(quote),
        inner_checksum: inner.as_ref().is_some_and(transport_is_sound),
        ..nothing
    }
}

/// Source and destination of a quoted packet; the identifier of an echo stands for both ports.
pub(super) fn endpoints(inner: &Packet) -> Option<(SocketAddr, SocketAddr)> {
    if let Some(Icmp::Echo { identifier, .. }) = inner.quoted_icmp() {
        let ends = [inner.header.source, inner.header.destination];
        return Some(ends.map(|address| SocketAddr::new(address, identifier)).into());
    }
    inner.from().zip(inner.to())
}

/// The quoted packet is whole, and its transport checksum right.
fn transport_is_sound(inner: &Packet) -> bool {
    let (source, destination) = (inner.header.source, inner.header.destination);
    match inner.header.protocol {
        protocol::UDP => Udp::is_sound(source, destination, &inner.payload),
        protocol::TCP => Tcp::is_sound(source, destination, &inner.payload),
        _ => inner.icmp_message().is_some(),
    }
}
