//! Two inside hosts that reach each other by way of the NAT's outside address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use weir_wire::Icmp;

use super::filtering::answered;
use super::icmp::{echo_data, seen_as};
use super::mapping::translation;
use crate::observed::{Hairpin, QueryHairpin};
use crate::session::{Protocol, Session, Trip};
use crate::{Arrival, Observations, Packet, Side};

/// RFC 4787 section 6.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.udp_hairpin = Some(hairpin(session, Protocol::Udp)?);
    Ok(())
}

/// RFC 5382 section 7.2.
pub(super) fn tcp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.tcp_hairpin = Some(hairpin(session, Protocol::Tcp)?);
    Ok(())
}

/// Both hosts send first, so that a filter which admits only contacted endpoints admits the other host.
fn hairpin(session: &mut Session<'_>, protocol: Protocol) -> io::Result<Hairpin> {
    let far = session.fresh_port();
    let to = session.outside(0, far);
    let mapped = |session: &mut Session<'_>, which: usize| {
        let port = if which == 0 { session.fresh_inside_port() } else { session.fresh_port() };
        let inside = SocketAddr::new(session.inside(which), port);
        translation(session, protocol, inside, to)
    };
    let mappings = [mapped(session, 0)?, mapped(session, 1)?];
    let [Some(first), Some(second)] = mappings.map(|mapping| mapping.seen) else {
        return Ok(Hairpin { mappings, source: None, sure: false, answered: None });
    };
    session.probe(protocol, Side::Inside, mappings[0].inside, second)?;
    let trip = session.probe(protocol, Side::Inside, mappings[1].inside, first)?;
    let at_host =
        trip.arrived.as_ref().filter(|a| a.side == Side::Inside && a.packet.to() == Some(mappings[0].inside));
    let source = at_host.and_then(|arrival| arrival.packet.from());
    let answered = answered(&trip, Side::Inside);
    Ok(Hairpin { mappings, source, sure: trip.is_sure(), answered })
}

/// RFC 5508 section 5: a ping to the other host's outside address, with the identifier that it has there. The other host has sent to
/// the sender's address before, so that a filter which admits only contacted addresses admits it.
pub(super) fn icmp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let far = session.conditions().outside[0];
    let hosts = [0, 1].map(|which| SocketAddr::new(session.inside(which), session.fresh_port()));
    let mut seen =
        QueryHairpin { hosts, seen: [None; 2], source: None, replied: false, by_nat: false, sure: true };
    for (host, outside) in hosts.into_iter().zip(&mut seen.seen) {
        let trip = echo(session, host, far, false, Side::Outside)?;
        *outside = seen_as(&trip);
        seen.sure &= trip.is_sure();
    }
    if let [Some(first), Some(second)] = seen.seen {
        echo(session, hosts[0], second.ip(), false, Side::Inside)?;
        let asking = SocketAddr::new(hosts[1].ip(), first.port());
        let trip = echo(session, asking, first.ip(), false, Side::Inside)?;
        seen.sure &= trip.is_sure();
        seen.by_nat = trip.others.iter().any(|arrival| is_reply(arrival) && goes_to(arrival, asking));
        if let Some(arrived) = trip.arrived.as_ref().filter(|arrival| goes_to(arrival, hosts[0])) {
            let source = arrived.packet.header.source;
            seen.source = Some(source);
            let identifier = echo_data(arrived).map_or(0, |(identifier, _)| identifier);
            let answering = SocketAddr::new(hosts[0].ip(), identifier);
            let back = echo(session, answering, source, true, Side::Inside)?;
            let arrived = back.arrived.as_ref().filter(|arrival| goes_to(arrival, asking));
            seen.replied = arrived.and_then(echo_data).is_some_and(|(found, _)| found == asking.port());
            seen.sure &= back.is_sure();
        }
    }
    observations.icmp_hairpin = Some(seen);
    Ok(())
}

/// An echo request of an inside host, or a reply, which is to come out on that side.
fn echo(
    session: &mut Session<'_>,
    from: SocketAddr,
    to: IpAddr,
    reply: bool,
    side: Side,
) -> io::Result<Trip> {
    let data = session.data();
    let message = Icmp::Echo { reply, identifier: from.port(), sequence: 1, data: &data };
    let packet = Packet::icmp(from.ip(), to, &message);
    session.send(Side::Inside, &packet, &|arrival| {
        arrival.side == side
            && is_reply(arrival) == reply
            && echo_data(arrival).is_some_and(|(_, found)| found == data)
    })
}

fn is_reply(arrival: &Arrival) -> bool {
    matches!(arrival.packet.icmp_message(), Some(Icmp::Echo { reply: true, .. }))
}

fn goes_to(arrival: &Arrival, host: SocketAddr) -> bool {
    arrival.packet.header.destination == host.ip()
}
