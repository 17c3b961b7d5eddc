//! The end of a NAT's ports: mappings are opened until packets are refused.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;

use weir_wire::{Icmp, Tcp};

use super::segments::{Connection, connect};
use super::sequence::data;
use crate::observed::{Exhaustion, NewMappings};
use crate::session::{CONTROL_PORT, Protocol, Segment, Session};
use crate::{Arrival, Observations, Packet, Side};

/// Inside ports that are used: those from which NATs give ports of the same range (RFC 4787 REQ-3a).
const PORTS: std::ops::RangeInclusive<u16> = 1_024..=u16::MAX;
/// Packets that are sent before their fate is looked at: less than a socket's buffer holds.
const BATCH: usize = 64;
/// Batches whose time is measured.
const TIMED: usize = 30;
/// Mappings of the beginning that are asked for at the end.
const WITNESSES: usize = 8;

/// A mapping that has carried packets both ways.
struct Witness {
    inside: SocketAddr,
    seen: SocketAddr,
    /// Numbers of the next segment from outside, if it is of a connection.
    numbers: Option<(u32, u32)>,
}

/// One inside port's packet.
struct Asked {
    inside: SocketAddr,
    packet: Packet,
    /// Source that it left with.
    seen: Option<SocketAddr>,
    /// Type and code of the error that the sender got.
    error: Option<(u8, u8)>,
    /// The sender got a reset.
    reset: bool,
}

/// RFC 5508 section 6, RFC 6888 section 3.
pub(super) fn udp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    if let Some((seen, times)) = search(session, Protocol::Udp)? {
        observations.exhaustion = Some(seen);
        observations.new_mappings = Some(times);
    }
    Ok(())
}

/// The same by SYNs, beside connections that are open.
pub(super) fn tcp(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    observations.tcp_exhaustion = search(session, Protocol::Tcp)?.map(|(seen, _)| seen);
    Ok(())
}

/// All mappings are to one destination, for which even a NAT that shares ports needs one each. `None`: none are to be opened.
fn search(session: &mut Session<'_>, protocol: Protocol) -> io::Result<Option<(Exhaustion, NewMappings)>> {
    let limit = session.conditions().limits.mappings;
    if limit == 0 {
        return Ok(None);
    }
    let begun = session.now();
    let port = session.fresh_port();
    let to = session.outside(0, port);
    // The control packets' mapping must be there before no port is left.
    let (alive, _) = session.path_is_alive()?;
    let witnesses = witnesses(session, protocol, to)?;
    let mut fill = Fill {
        protocol,
        to,
        used: witnesses.iter().map(|witness| witness.seen).collect(),
        addresses: [None; 2],
        times: NewMappings { batch: BATCH as u32, new_s: Vec::new(), known_s: Vec::new() },
        seen: Exhaustion { witnesses: witnesses.len() as u32, sure: alive, ..Exhaustion::default() },
    };
    let kept: HashSet<SocketAddr> = witnesses.iter().map(|witness| witness.inside).collect();
    fill.host(session, 0, limit, &kept)?;
    // If the first host has come to an end, a few of the second one show whether that is its own end or the NAT's.
    let left = limit.saturating_sub(fill.seen.tried[0]);
    fill.host(session, 1, if fill.seen.ended[0] { left.max(BATCH as u32) } else { left }, &kept)?;
    let Fill { addresses, mut seen, times, .. } = fill;
    seen.one_address = addresses[1].is_none() || addresses[0] == addresses[1];
    for witness in &witnesses {
        let back = (Side::Outside, to, witness.seen);
        let trip = match witness.numbers {
            None => session.inbound(Protocol::Udp, to, witness.seen)?,
            Some((sequence, acknowledgement)) => data(session, back, sequence, acknowledgement)?,
        };
        seen.witnesses_alive += u32::from(trip.to() == Some(witness.inside));
        seen.sure &= trip.is_sure();
    }
    seen.took_s = session.now().saturating_sub(begun).as_secs_f64();
    Ok(Some((seen, times)))
}

/// Mappings with packets both ways: of TCP, open connections.
fn witnesses(session: &mut Session<'_>, protocol: Protocol, to: SocketAddr) -> io::Result<Vec<Witness>> {
    let mut witnesses = Vec::new();
    for _ in 0..WITNESSES {
        if protocol == Protocol::Tcp {
            let connection = connect(session, to)?;
            witnesses.extend(connection.map(|Connection { inside, mapped, near, away, .. }| Witness {
                inside,
                seen: mapped,
                numbers: Some((away, near)),
            }));
            continue;
        }
        let inside = session.fresh_inside();
        let Some(seen) = session.outbound(protocol, inside, to)?.from() else { continue };
        if session.inbound(protocol, to, seen)?.to() == Some(inside) {
            witnesses.push(Witness { inside, seen, numbers: None });
        }
    }
    Ok(witnesses)
}

/// The state of the search.
struct Fill {
    protocol: Protocol,
    to: SocketAddr,
    /// Outside endpoints that are in use.
    used: HashSet<SocketAddr>,
    /// The outside address of each host.
    addresses: [Option<std::net::IpAddr>; 2],
    times: NewMappings,
    seen: Exhaustion,
}

impl Fill {
    /// Sends from ports of one host until none of a batch gets a port of its own, or as many have been tried.
    fn host(
        &mut self,
        session: &mut Session<'_>,
        which: usize,
        limit: u32,
        kept: &HashSet<SocketAddr>,
    ) -> io::Result<()> {
        let host = session.inside(which);
        let insides: Vec<SocketAddr> = PORTS
            .filter(|port| *port != CONTROL_PORT)
            .map(|port| SocketAddr::new(host, port))
            .filter(|inside| !kept.contains(inside))
            .take(limit as usize)
            .collect();
        for batch in insides.chunks(BATCH) {
            let begun = session.now();
            let asked = self.ask(session, batch)?;
            let took = session.now() - begun;
            let opened = self.count(which, &asked);
            let is_timed = self.protocol == Protocol::Udp && self.times.new_s.len() < TIMED;
            if opened == BATCH as u32 && is_timed {
                let begun = session.now();
                self.ask(session, batch)?;
                self.times.new_s.push(took.as_secs_f64());
                self.times.known_s.push((session.now() - begun).as_secs_f64());
            }
            if opened == 0 {
                self.seen.ended[which] = true;
                break;
            }
        }
        Ok(())
    }

    /// The first packet of a mapping, and the bytes by which it is known.
    fn packet(&self, session: &mut Session<'_>, inside: SocketAddr) -> (Packet, Vec<u8>) {
        match self.protocol {
            Protocol::Udp => {
                let data = session.data();
                (Packet::udp(inside, self.to, &data), data)
            }
            Protocol::Tcp => {
                let sequence = session.sequence();
                let header = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN }.header();
                (Packet::tcp(inside, self.to, header, &[]), sequence.to_be_bytes().to_vec())
            }
        }
    }

    /// One packet from each of these ports, sent again where nothing arrived.
    fn ask(&mut self, session: &mut Session<'_>, batch: &[SocketAddr]) -> io::Result<Vec<Asked>> {
        let mut asked: Vec<Asked> = Vec::with_capacity(batch.len());
        let mut by_data = HashMap::new();
        for (n, inside) in batch.iter().enumerate() {
            let (packet, known_by) = self.packet(session, *inside);
            by_data.insert(known_by, n);
            asked.push(Asked { inside: *inside, packet, seen: None, error: None, reset: false });
        }
        for _ in 0..session.attempts() {
            for one in asked.iter().filter(|one| one.seen.is_none()) {
                session.send_only(Side::Inside, &one.packet)?;
            }
            let deadline = session.now() + session.conditions().patience;
            while asked.iter().any(|one| one.seen.is_none()) {
                let Some(arrival) = session.wait(deadline, &|_| true, &mut Vec::new())? else { break };
                note(&arrival, &mut asked, &by_data);
            }
        }
        if asked.iter().any(|one| one.seen.is_none()) {
            let (alive, late) = session.path_is_alive()?;
            late.iter().for_each(|arrival| note(arrival, &mut asked, &by_data));
            self.seen.sure &= alive || asked.iter().all(|one| one.seen.is_some());
        }
        Ok(asked)
    }

    /// Adds up a batch; returns how many got an outside port that no other has.
    fn count(&mut self, which: usize, asked: &[Asked]) -> u32 {
        let mut opened = 0;
        for one in asked {
            self.seen.tried[which] += 1;
            match one.seen {
                None => {
                    self.seen.refused += 1;
                    self.seen.told += u32::from(one.error.is_some());
                    self.seen.resets += u32::from(one.reset);
                    self.seen.error = self.seen.error.or(one.error);
                }
                Some(seen) if seen.ip() == one.inside.ip() => self.seen.leaked += 1,
                Some(seen) if self.used.insert(seen) => {
                    opened += 1;
                    self.addresses[which] = self.addresses[which].or(Some(seen.ip()));
                }
                Some(_) => self.seen.reused += 1,
            }
        }
        self.seen.opened[which] += opened;
        opened
    }
}

/// A packet that arrived outside, or an answer to one: an error, or a reset.
fn note(arrival: &Arrival, asked: &mut [Asked], by_data: &HashMap<Vec<u8>, usize>) {
    let packet = &arrival.packet;
    if arrival.side == Side::Outside {
        let number = packet.tcp_segment().map(|(header, _)| header.sequence.to_be_bytes().to_vec());
        let known_by = packet.udp_data().map(<[u8]>::to_vec).or(number);
        if let Some(n) = known_by.and_then(|known_by| by_data.get(&known_by)) {
            asked[*n].seen = packet.from();
        }
        return;
    }
    if packet.tcp_header().is_some_and(|header| header.flags & Tcp::RST != 0) {
        asked.iter_mut().filter(|one| packet.to() == Some(one.inside)).for_each(|one| one.reset = true);
        return;
    }
    let Some(message) = packet.icmp_message() else { return };
    let about = message.quote().and_then(Packet::read_quoted);
    let from = about.and_then(|about| about.from());
    if let Some(one) = asked.iter_mut().find(|one| Some(one.inside) == from)
        && let Icmp::Unreachable { .. } = message
    {
        one.error = packet.icmp_kind();
    }
}
