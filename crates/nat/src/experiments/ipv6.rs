//! The hosts' outside addresses over IPv6, and whether packets reach a host that has sent nothing.

use std::io;
use std::net::SocketAddr;

use super::filtering::inbound;
use super::mapping::translation;
use crate::Observations;
use crate::observed::{Inbound, Ipv6Path};
use crate::session::{Protocol, Session};

/// RFC 6296 sections 2.5 and 3.
pub(super) fn path(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let port = session.fresh_port();
    let to = session.outside(0, port);
    let mut host = |which: usize| {
        let inside = SocketAddr::new(session.inside(which), session.fresh_port());
        translation(session, Protocol::Udp, inside, to)
    };
    let hosts = [host(0)?, host(1)?];
    let mut unsolicited = |protocol| -> io::Result<Option<Inbound>> {
        let Some(seen) = hosts[0].seen.filter(|_| session.carries_everything()) else { return Ok(None) };
        let port = session.fresh_port();
        let trip = session.inbound(protocol, to, SocketAddr::new(seen.ip(), port))?;
        Ok(Some(inbound(&trip)))
    };
    let (unsolicited_udp, unsolicited_tcp) = (unsolicited(Protocol::Udp)?, unsolicited(Protocol::Tcp)?);
    let nat64 = session.nat64();
    observations.ipv6 = Some(Ipv6Path { nat64, hosts, unsolicited_udp, unsolicited_tcp });
    Ok(())
}
