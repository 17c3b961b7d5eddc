//! Two inside hosts that reach each other by way of the NAT's outside address.

use std::io;
use std::net::SocketAddr;

use super::filtering::answered;
use super::mapping::translation;
use crate::observed::Hairpin;
use crate::session::{Protocol, Session};
use crate::{Observations, Side};

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
