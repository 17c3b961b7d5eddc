//! Packets from outside to published ports that had sent nothing.

use std::io;
use std::net::SocketAddr;

use weir_wire::Tcp;

use crate::observed::{PublishedPort, PublishedPorts};
use crate::session::{Protocol, Segment, Session};
use crate::{Observations, Side};

/// The rows that they are evidence for: a port that is open before any packet has no timer.
pub(super) const ROWS: [&str; 8] = [
    "udp-idle-unanswered",
    "udp-idle-answered",
    "udp-idle-default",
    "tcp-idle-opening",
    "tcp-idle-established",
    "tcp-idle-half-closed",
    "tcp-idle-reset-in",
    "tcp-idle-reset-out",
];

/// One port for each protocol.
pub(super) fn ports(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let Some(published) = &session.conditions().published else { return Ok(()) };
    let address = published.address;
    let mut ask = |protocol| {
        let inside = session.fresh_inside();
        let port = session.fresh_port();
        let from = session.outside(0, port);
        ask(session, protocol, inside, SocketAddr::new(address, inside.port()), from)
    };
    let (udp, tcp) = (ask(Protocol::Udp)?, ask(Protocol::Tcp)?);
    observations.published = Some(PublishedPorts { udp, tcp });
    Ok(())
}

/// A first packet of a client, and the host's answer to the source that it saw.
fn ask(
    session: &mut Session<'_>,
    protocol: Protocol,
    inside: SocketAddr,
    outside: SocketAddr,
    from: SocketAddr,
) -> io::Result<PublishedPort> {
    let trip = session.inbound(protocol, from, outside)?;
    let reached = trip.from().zip(trip.to());
    let mut seen = PublishedPort { inside, outside, from, reached, answered: None, sure: trip.is_sure() };
    let Some((client, _)) = reached else { return Ok(seen) };
    let answer = match protocol {
        Protocol::Udp => session.outbound(protocol, inside, client)?,
        Protocol::Tcp => {
            let acknowledgement = session.sequence_of(from, outside).wrapping_add(1);
            let segment =
                Segment { sequence: session.sequence(), acknowledgement, flags: Tcp::SYN | Tcp::ACK };
            session.segment(Side::Inside, inside, client, segment)?
        }
    };
    let arrived = answer.arrived.as_ref().filter(|arrival| arrival.side == Side::Outside);
    seen.answered = arrived.filter(|arrival| arrival.packet.to() == Some(from)).and_then(|a| a.packet.from());
    seen.sure = answer.is_sure();
    Ok(seen)
}
