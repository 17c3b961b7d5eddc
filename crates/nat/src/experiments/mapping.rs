//! Which outside address and port a packet gets.

use std::io;
use std::net::SocketAddr;

use crate::Observations;
use crate::observed::{Collision, Mapping, Translation};
use crate::session::{Protocol, Session};

/// Inside ports from which mappings are looked at. One could agree by chance.
const MAPPINGS: usize = 3;
/// Inside ports from which the choice of ports is looked at.
const PORTS: u16 = 16;
/// Inside ports below 1024: none of a service that a lab's host has.
const LOW_PORTS: [u16; 4] = [600, 601, 1002, 1003];

/// Sends one first packet, and keeps its translation.
pub(super) fn translation(
    session: &mut Session<'_>,
    protocol: Protocol,
    inside: SocketAddr,
    to: SocketAddr,
) -> io::Result<Translation> {
    let trip = session.outbound(protocol, inside, to)?;
    Ok(Translation { inside, to, seen: trip.from(), sure: trip.is_sure() })
}

/// From one inside port to these outside ones, in this order.
fn mapping(
    session: &mut Session<'_>,
    protocol: Protocol,
    inside: SocketAddr,
    to: [SocketAddr; 4],
) -> io::Result<Mapping> {
    let [a, b, c, d] = to;
    Ok(Mapping {
        seen: [
            translation(session, protocol, inside, a)?,
            translation(session, protocol, inside, b)?,
            translation(session, protocol, inside, c)?,
            translation(session, protocol, inside, d)?,
        ],
    })
}

/// RFC 4787 section 4.1.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.udp_mapping = Some(mappings(session, Protocol::Udp)?);
    Ok(())
}

/// RFC 5382 section 4.1.
pub(super) fn tcp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.tcp_mapping = Some(mappings(session, Protocol::Tcp)?);
    Ok(())
}

fn mappings(session: &mut Session<'_>, protocol: Protocol) -> io::Result<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for n in 0..MAPPINGS {
        let inside = session.fresh_inside();
        let (first, second) = (session.fresh_port(), session.fresh_port());
        // In turn the first packet of a port goes to either address: Linux chooses a source's address of a pool by its first
        // destination, and keeps it for the next ones (get_unique_tuple in net/netfilter/nf_nat_core.c).
        let (near, far) = (n % 2, (n + 1) % 2);
        let to = [
            session.outside(near, first),
            session.outside(near, second),
            session.outside(far, first),
            session.outside(far, second),
        ];
        mappings.push(mapping(session, protocol, inside, to)?);
    }
    Ok(mappings)
}

/// RFC 4787 section 4.2: many ports, odd and even, some below 1024, of both hosts.
pub(super) fn udp_ports(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let far = session.fresh_port();
    let to = session.outside(0, far);
    let mut seen = Vec::new();
    for n in 0..PORTS {
        // Two even, two odd: a NAT that counts upwards has them in turn.
        let which = usize::from(n % 2);
        let port = if which == 0 { session.fresh_inside_port() } else { session.fresh_port() } + n / 2 % 2;
        let inside = SocketAddr::new(session.inside(which), port);
        seen.push(translation(session, Protocol::Udp, inside, to)?);
    }
    for port in LOW_PORTS.into_iter().filter(|port| session.has_port(*port)).collect::<Vec<_>>() {
        seen.push(translation(session, Protocol::Udp, SocketAddr::new(session.inside(0), port), to)?);
    }
    observations.udp_ports = Some(seen);
    Ok(())
}

/// Pairs of ports: that of RTP and the next one of RTCP.
const PAIRS: usize = 4;

/// RFC 4787 section 4.2.3: pairs of the first host, then the same ports of the second one, which a NAT may have to change.
pub(super) fn udp_pairs(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let far = session.fresh_port();
    let to = session.outside(0, far);
    let ports: Vec<u16> = (0..PAIRS).map(|_| session.fresh_inside_port()).collect();
    let mut seen = Vec::new();
    let hosts = if session.has_two_hosts() { 2 } else { 1 };
    for host in (0..hosts).map(|which| session.inside(which)).collect::<Vec<_>>() {
        for port in &ports {
            let mut translated = |port| translation(session, Protocol::Udp, SocketAddr::new(host, port), to);
            seen.push([translated(*port)?, translated(port + 1)?]);
        }
    }
    observations.udp_pairs = Some(seen);
    Ok(())
}

/// RFC 4787 sections 4.2.1 and 8.
pub(super) fn udp_collision(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.udp_collision = Some(collision(session, Protocol::Udp)?);
    Ok(())
}

/// RFC 5382 section 7.1.
pub(super) fn tcp_collision(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.tcp_collision = Some(collision(session, Protocol::Tcp)?);
    Ok(())
}

/// Ports that both hosts use, where the choice of another port is looked at.
const SHARED: usize = 16;

/// RFC 7857 section 10.
pub(super) fn udp_moved(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.udp_moved = Some(moved(session, Protocol::Udp)?);
    Ok(())
}

/// The same.
pub(super) fn tcp_moved(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.tcp_moved = Some(moved(session, Protocol::Tcp)?);
    Ok(())
}

/// Both hosts send from the same ports to one destination, so that a NAT with one outside address must choose other ports for
/// one of them.
fn moved(session: &mut Session<'_>, protocol: Protocol) -> io::Result<Vec<Translation>> {
    let far = session.fresh_port();
    let to = session.outside(0, far);
    let mut seen = Vec::new();
    for _ in 0..SHARED {
        let port = session.fresh_inside_port();
        for which in [0, 1] {
            let inside = SocketAddr::new(session.inside(which), port);
            seen.push(translation(session, protocol, inside, to)?);
        }
    }
    Ok(seen)
}

/// The second host uses the first one's port.
fn collision(session: &mut Session<'_>, protocol: Protocol) -> io::Result<Collision> {
    let port = session.fresh_inside_port();
    let (near, far) = (session.fresh_port(), session.fresh_port());
    let [host, second_host] = [0, 1].map(|which| SocketAddr::new(session.inside(which), port));
    let meeting = session.outside(0, near);
    let first = translation(session, protocol, host, meeting)?;
    // The second host's other destinations come first: a NAT that shares a port as long as destinations differ must move the
    // second host when they meet.
    let to = [session.outside(1, near), session.outside(1, far), meeting, session.outside(0, far)];
    let second = mapping(session, protocol, second_host, to)?;
    let mut answer = |to: &Translation| match to.seen {
        Some(seen) => {
            session.answer(protocol, (to.inside, to.to), seen).map(|trip| (trip.to(), trip.is_sure()))
        }
        None => Ok((None, true)),
    };
    let (first_answer, first_sure) = answer(&first)?;
    let (second_answer, second_sure) = answer(&second.seen[2])?;
    // Only the far end distinguishes hosts that share a port.
    let (other_answer, other_sure) = answer(&second.seen[0])?;
    let sure = first_sure && second_sure && other_sure;
    Ok(Collision { first, second, first_answer, second_answer, other_answer, sure })
}
