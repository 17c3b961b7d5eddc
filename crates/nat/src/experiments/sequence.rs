//! Segments of TCP whose sequence numbers are far from those that the receiver waits for.

use std::io;
use std::net::SocketAddr;

use weir_wire::Tcp;

use super::segments::{Connection, connect, fate};
use crate::observed::{SegmentTrip, TcpSequence};
use crate::session::{Segment, Session, Trip};
use crate::{Observations, Packet, Side};

/// Far outside of any window: the largest has 2^30 bytes (RFC 7323 section 2.3).
const FAR: u32 = 0x6000_0000;

/// Data each way and a reset with such numbers, on one connection; then data as the inside host waits for.
pub(super) fn numbers(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let lost = SegmentTrip { arrived: false, sure: false };
    let mut seen = TcpSequence { out: lost, leaked: false, back: lost, reset: lost, after: lost };
    if let Some(connection) = connect(session, far)? {
        let Connection { inside, mapped, near, away, .. } = connection;
        let (out, back) = ((Side::Inside, inside, far), (Side::Outside, far, mapped));
        let wild = data(session, out, near.wrapping_add(FAR), away)?;
        // No inside address fits the IPv4 side of a NAT64: one of the translator's own leaves untranslated.
        let (from, is_nat64) = (wild.from(), session.nat64().is_some());
        seen.leaked = from == Some(inside) || (is_nat64 && from.is_some_and(|from| from != mapped));
        seen.out = fate(&wild, Side::Inside);
        seen.back = fate(&data(session, back, away.wrapping_add(FAR), near)?, Side::Outside);
        let sequence = away.wrapping_add(FAR);
        let reset = Segment { sequence, acknowledgement: near, flags: Tcp::RST | Tcp::ACK };
        seen.reset = fate(&session.segment(Side::Outside, far, mapped, reset)?, Side::Outside);
        seen.after = fate(&data(session, back, away, near)?, Side::Outside);
    }
    observations.tcp_sequence = Some(seen);
    Ok(())
}

/// Sends data with these numbers.
pub(super) fn data(
    session: &mut Session<'_>,
    (side, from, to): (Side, SocketAddr, SocketAddr),
    sequence: u32,
    acknowledgement: u32,
) -> io::Result<Trip> {
    let data = session.data();
    let header = Segment { sequence, acknowledgement, flags: Tcp::ACK | Tcp::PSH }.header();
    let packet = Packet::tcp(from, to, header, &data);
    session.send(side, &packet, &|arrival| {
        arrival.side != side && arrival.packet.tcp_segment().is_some_and(|(_, found)| found == data)
    })
}
