//! Mappings that are opened to be left alone, and the packets that ask for them.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use weir_wire::{Icmp, Tcp, protocol};

use super::Purpose;
use crate::experiments::icmp::{echo_data, request, seen_as};
use crate::experiments::mapping::translation;
use crate::experiments::segments::{Connection, connect};
use crate::session::{Protocol, Segment, Session};
use crate::{Arrival, Packet, Side};

/// The packet that opens a mapping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Opened {
    Udp,
    /// An echo request; the endpoints' ports are its identifier.
    Echo,
    /// A SYN.
    Syn,
    /// A connection, with the numbers of the segment from outside that comes next.
    Connection {
        sequence: u32,
        acknowledgement: u32,
    },
    /// A connection, open or closed, whose ports another host uses for one of its own.
    Another,
}

/// A mapping under test.
pub(super) struct Mapped {
    pub(super) opened: Opened,
    pub(super) inside: SocketAddr,
    pub(super) far: SocketAddr,
    pub(super) seen: SocketAddr,
    /// When its last packet was sent, and when that had arrived.
    pub(super) sent: Duration,
    pub(super) last: Duration,
}

impl Mapped {
    /// The NAT's end of it, with the number of the protocol.
    fn end(&self) -> (u8, SocketAddr) {
        let protocol = match self.opened {
            Opened::Udp => protocol::UDP,
            Opened::Echo => protocol::ICMP,
            Opened::Syn | Opened::Connection { .. } | Opened::Another => protocol::TCP,
        };
        (protocol, self.seen)
    }
}

/// How often a mapping is opened anew.
const OPENINGS: usize = 4;
/// How many in a row may fail to open before no more are tried: each takes as long as the path may take to answer.
const FAILURES: usize = 4;

/// The mappings under test. No two of a protocol have one outside port.
#[derive(Default)]
pub(super) struct Mappings {
    all: Vec<Mapped>,
    /// Those that failed to open since one of their purpose did.
    failed: Vec<Purpose>,
}

impl Mappings {
    /// Adds a mapping and returns its place; `None` if its packets did not arrive, or those of the last ones did not. One that got the port of an earlier one, as that has
    /// ended, is not used: the packet that asks for the earlier one would keep it alive.
    pub(super) fn open(
        &mut self,
        purpose: Purpose,
        mut open: impl FnMut() -> io::Result<Option<Mapped>>,
    ) -> io::Result<Option<usize>> {
        if self.failed.iter().filter(|failed| **failed == purpose).count() >= FAILURES {
            return Ok(None);
        }
        for _ in 0..OPENINGS {
            let Some(mapped) = open()? else { break };
            if self.all.iter().all(|earlier| earlier.end() != mapped.end()) {
                self.failed.retain(|failed| *failed != purpose);
                self.all.push(mapped);
                return Ok(Some(self.all.len() - 1));
            }
        }
        self.failed.push(purpose);
        Ok(None)
    }
}

impl Deref for Mappings {
    type Target = [Mapped];

    fn deref(&self) -> &[Mapped] {
        &self.all
    }
}

impl DerefMut for Mappings {
    fn deref_mut(&mut self) -> &mut [Mapped] {
        &mut self.all
    }
}

/// Opens a mapping of a purpose; `None` if its packets did not arrive.
pub(super) fn open_for(session: &mut Session<'_>, purpose: Purpose) -> io::Result<Option<Mapped>> {
    match purpose.base() {
        Purpose::Echo => open_echo(session),
        Purpose::Syn => open_syn(session),
        Purpose::Established | Purpose::HalfClosed | Purpose::ResetIn | Purpose::ResetOut => {
            open_connection(session, purpose.base())
        }
        Purpose::ReusedClosed | Purpose::ReusedOpen => open_for_another(session, purpose),
        Purpose::Answered => open(session, true),
        _ => open(session, false),
    }
}

/// Opens a mapping, which then has an answer or none; `None` if its packet did not arrive.
pub(super) fn open(session: &mut Session<'_>, answered: bool) -> io::Result<Option<Mapped>> {
    let inside = session.fresh_inside();
    let far = session.outside(0, session.idle_port());
    let sent = session.now();
    let seen = translation(session, Protocol::Udp, inside, far)?.seen;
    let last = session.now();
    let Some(seen) = seen else { return Ok(None) };
    if answered {
        session.inbound(Protocol::Udp, far, seen)?;
    }
    Ok(Some(Mapped { opened: Opened::Udp, inside, far, seen, sent, last }))
}

/// The same by a SYN.
pub(super) fn open_syn(session: &mut Session<'_>) -> io::Result<Option<Mapped>> {
    let inside = session.fresh_inside();
    let far = session.outside(0, session.idle_port());
    let sent = session.now();
    let seen = translation(session, Protocol::Tcp, inside, far)?.seen;
    let last = session.now();
    Ok(seen.map(|seen| Mapped { opened: Opened::Syn, inside, far, seen, sent, last }))
}

/// The same by three segments, and what the purpose adds to them.
pub(super) fn open_connection(session: &mut Session<'_>, purpose: Purpose) -> io::Result<Option<Mapped>> {
    let far = session.outside(0, session.idle_port());
    let mut sent = session.now();
    let Some(connection) = connect(session, far)? else { return Ok(None) };
    let (inside, seen, sequence) = (connection.inside, connection.mapped, connection.away);
    let mut acknowledgement = connection.near;
    match purpose {
        Purpose::HalfClosed => {
            let flags = Tcp::FIN | Tcp::ACK;
            let fin = Segment { sequence: acknowledgement, acknowledgement: sequence, flags };
            sent = session.now();
            if session.segment(Side::Inside, inside, far, fin)?.arrived.is_none() {
                return Ok(None);
            }
            acknowledgement = acknowledgement.wrapping_add(1);
            let answer = Segment { sequence, acknowledgement, flags: Tcp::ACK };
            session.segment(Side::Outside, far, seen, answer)?;
        }
        Purpose::ResetIn | Purpose::ResetOut => {
            let flags = Tcp::RST | Tcp::ACK;
            let (away, near) = (sequence, acknowledgement);
            let reset = |sequence, acknowledgement| Segment { sequence, acknowledgement, flags };
            sent = session.now();
            let trip = match purpose {
                Purpose::ResetIn => session.segment(Side::Outside, far, seen, reset(away, near))?,
                _ => session.segment(Side::Inside, inside, far, reset(near, away))?,
            };
            if trip.arrived.is_none() {
                return Ok(None);
            }
        }
        _ => {}
    }
    let last = session.now();
    let opened = Opened::Connection { sequence, acknowledgement };
    Ok(Some(Mapped { opened, inside, far, seen, sent, last }))
}

/// A connection for whose ports the other host will ask, and its close: a FIN from each end (RFC 9293 section 3.6). The NAT is not
/// asked whether it carries them.
fn open_for_another(session: &mut Session<'_>, purpose: Purpose) -> io::Result<Option<Mapped>> {
    let far = session.outside(0, session.idle_port());
    let mut sent = session.now();
    let Some(Connection { inside, mapped, near, away, .. }) = connect(session, far)? else { return Ok(None) };
    if purpose == Purpose::ReusedClosed {
        let [after_near, after_away] = [near, away].map(|number| number.wrapping_add(1));
        let fin = Tcp::FIN | Tcp::ACK;
        let segment = |sequence, acknowledgement, flags| Segment { sequence, acknowledgement, flags };
        session.segment(Side::Inside, inside, far, segment(near, away, fin))?;
        session.segment(Side::Outside, far, mapped, segment(away, after_near, fin))?;
        sent = session.now();
        session.segment(Side::Inside, inside, far, segment(after_near, after_away, Tcp::ACK))?;
    }
    let last = session.now();
    Ok(Some(Mapped { opened: Opened::Another, inside, far, seen: mapped, sent, last }))
}

/// The same by an echo request.
pub(super) fn open_echo(session: &mut Session<'_>) -> io::Result<Option<Mapped>> {
    // Identifiers are no ports: none is published.
    let inside = SocketAddr::new(session.inside(0), session.fresh_port());
    let address = session.conditions().outside[0];
    let sent = session.now();
    let trip = request(session, inside.port(), address)?;
    let last = session.now();
    Ok(seen_as(&trip).map(|seen| {
        let far = SocketAddr::new(address, seen.port());
        Mapped { opened: Opened::Echo, inside, far, seen, sent, last }
    }))
}

/// The packet that asks for a mapping, and the bytes by which it is known.
pub(super) fn question(session: &mut Session<'_>, mapping: &Mapped, side: Side) -> (Packet, Vec<u8>) {
    let data = session.data();
    match (mapping.opened, side) {
        (Opened::Udp, Side::Inside) => (Packet::udp(mapping.inside, mapping.far, &data), data),
        (Opened::Udp, Side::Outside) => (Packet::udp(mapping.far, mapping.seen, &data), data),
        (Opened::Echo, _) => {
            let (identifier, sequence) = (mapping.seen.port(), 1);
            let message = Icmp::Echo { reply: true, identifier, sequence, data: &data };
            (Packet::icmp(mapping.far.ip(), mapping.seen.ip(), &message), data)
        }
        (Opened::Syn, _) => {
            let sequence = session.sequence();
            let acknowledgement = session.sequence_of(mapping.inside, mapping.far).wrapping_add(1);
            let segment = Segment { sequence, acknowledgement, flags: Tcp::SYN | Tcp::ACK };
            let packet = Packet::tcp(mapping.far, mapping.seen, segment.header(), &[]);
            (packet, sequence.to_be_bytes().to_vec())
        }
        (Opened::Another, _) => {
            let sequence = session.sequence();
            let segment = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN };
            let packet = Packet::tcp(mapping.inside, mapping.far, segment.header(), &[]);
            (packet, sequence.to_be_bytes().to_vec())
        }
        (Opened::Connection { sequence: away, acknowledgement: near }, Side::Inside) => {
            let flags = Tcp::ACK | Tcp::PSH;
            let segment = Segment { sequence: near, acknowledgement: away, flags };
            (Packet::tcp(mapping.inside, mapping.far, segment.header(), &data), data)
        }
        (Opened::Connection { sequence, acknowledgement }, Side::Outside) => {
            let segment = Segment { sequence, acknowledgement, flags: Tcp::ACK | Tcp::PSH };
            (Packet::tcp(mapping.far, mapping.seen, segment.header(), &data), data)
        }
    }
}

/// The bytes by which a packet is known: its data, or the sequence number of a segment without any.
pub(super) fn known_by(arrival: &Arrival) -> Option<Vec<u8>> {
    let packet = &arrival.packet;
    let echo = || echo_data(arrival).map(|(_, data)| data.to_vec());
    let segment = || {
        packet.tcp_segment().map(|(header, data)| {
            if data.is_empty() { header.sequence.to_be_bytes().to_vec() } else { data.to_vec() }
        })
    };
    packet.udp_data().map(<[u8]>::to_vec).or_else(echo).or_else(segment)
}

/// One more packet out and its answer.
pub(super) fn exchange(session: &mut Session<'_>, mapping: &mut Mapped) -> io::Result<()> {
    mapping.sent = session.now();
    session.outbound(Protocol::Udp, mapping.inside, mapping.far)?;
    session.inbound(Protocol::Udp, mapping.far, mapping.seen)?;
    mapping.last = session.now();
    Ok(())
}
