//! TCP as it is carried: options, data on a SYN, half-closed and reset connections.

use std::io;
use std::net::SocketAddr;

use weir_wire::Tcp;

use crate::observed::{SegmentTrip, TcpCarriage, TcpOptions};
use crate::session::{Protocol, Segment, Session, Trip};
use crate::{Arrival, Observations, Packet, Side};

/// Maximum segment size on the SYN: that of Ethernet.
const MSS: u16 = 1_460;
/// Window scale on the SYN.
const SHIFT: u8 = 7;
/// Value of the timestamp on the SYN.
const TIMESTAMP: u32 = 0x7765_6972;

/// A segment that could not be sent.
const LOST: SegmentTrip = SegmentTrip { arrived: false, sure: false };

/// A connection: its endpoints inside and outside, the NAT's port, and the next sequence numbers of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    pub(super) inside: SocketAddr,
    pub(super) far: SocketAddr,
    pub(super) mapped: SocketAddr,
    pub(super) near: u32,
    pub(super) away: u32,
}

/// RFC 5382 section 4.2, RFC 7857 section 2.2, RFC 7323.
pub(super) fn carriage(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    session.about(&["tcp-options", "tcp-mss"]);
    let options = options(session)?;
    session.about(&["tcp-syn-data"]);
    let syn_data = syn_with_data(session)?;
    session.about(&["tcp-half-close"]);
    let after_fin = after(session, Side::Inside, Tcp::FIN | Tcp::ACK)?;
    session.about(&["tcp-reset", "tcp-data-after-reset"]);
    let after_reset = after(session, Side::Outside, Tcp::RST | Tcp::ACK)?;
    session.about(&["tcp-half-close-in"]);
    let after_fin_in = after(session, Side::Outside, Tcp::FIN | Tcp::ACK)?;
    session.about(&["tcp-options-in"]);
    let answer = syn_ack(session, &option_bytes(), false)?.unwrap_or((LOST, None));
    session.about(&["tcp-syn-ack-data"]);
    let syn_ack_data = syn_ack(session, &[], true)?.map_or(LOST, |(trip, _)| trip);
    session.about(&["tcp-syn-data-in"]);
    let syn_data_in = syn_from_outside_with_data(session)?;
    observations.tcp_carriage = Some(TcpCarriage {
        options,
        syn_data,
        fin: after_fin.0,
        data_after_fin: after_fin.1,
        fin_in: after_fin_in.0,
        data_after_fin_in: after_fin_in.1,
        options_in: read_options(answer.1.as_ref(), answer.0.sure),
        syn_ack_data,
        syn_data_in,
        reset: after_reset.0,
        data_after_reset: after_reset.1,
    });
    Ok(())
}

/// MSS, SACK permitted, timestamps and window scale (RFC 9293 section 3.2, RFC 2018, RFC 7323).
fn option_bytes() -> Vec<u8> {
    let mut bytes = vec![2, 4];
    bytes.extend(MSS.to_be_bytes());
    bytes.extend([4, 2, 8, 10]);
    bytes.extend(TIMESTAMP.to_be_bytes());
    bytes.extend([0; 4]);
    // One byte without meaning makes the length a multiple of four.
    bytes.extend([1, 3, 3, SHIFT]);
    bytes
}

/// The value of an option; `None` if the segment lacks it.
fn option(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = bytes;
    while let Some((kind, after)) = rest.split_first() {
        match kind {
            0 => return None,
            1 => rest = after,
            _ => {
                let length = usize::from(*after.first()?);
                let value = rest.get(2..length)?;
                if *kind == wanted {
                    return Some(value);
                }
                rest = rest.get(length..)?;
            }
        }
    }
    None
}

fn is_segment(arrival: &Arrival, side: Side, sequence: u32) -> bool {
    let header = arrival.packet.tcp_segment().map(|(header, _)| header.sequence);
    arrival.side == side && header == Some(sequence)
}

fn options(session: &mut Session<'_>) -> io::Result<TcpOptions> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let sequence = session.sequence();
    let header = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN }.header();
    let packet = Packet::tcp_with_options(inside, far, header, &option_bytes(), &[]);
    let trip = session.send(Side::Inside, &packet, &|a| is_segment(a, Side::Outside, sequence))?;
    Ok(read_options(trip.arrived.as_ref(), trip.is_sure()))
}

/// The options of a segment that had all of them.
fn read_options(arrived: Option<&Arrival>, sure: bool) -> TcpOptions {
    let seen = arrived.and_then(|arrival| arrival.packet.tcp_options()).unwrap_or_default();
    let timestamp = option(seen, 8).and_then(|value| value.first_chunk::<4>());
    TcpOptions {
        arrived: arrived.is_some(),
        sent_mss: MSS,
        mss: option(seen, 2).and_then(|value| value.first_chunk::<2>()).map(|v| u16::from_be_bytes(*v)),
        window_scale: option(seen, 3) == Some(&[SHIFT]),
        sack_permitted: option(seen, 4).is_some(),
        timestamps: timestamp == Some(&TIMESTAMP.to_be_bytes()),
        sure,
    }
}

/// The answer to a SYN, with options or data; `None` if the SYN did not arrive.
fn syn_ack(
    session: &mut Session<'_>,
    options: &[u8],
    has_data: bool,
) -> io::Result<Option<(SegmentTrip, Option<Arrival>)>> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let Some(mapped) = session.outbound(Protocol::Tcp, inside, far)?.from() else { return Ok(None) };
    let acknowledgement = session.sequence_of(inside, far).wrapping_add(1);
    let sequence = session.sequence();
    let data = if has_data { session.data() } else { Vec::new() };
    let header = Segment { sequence, acknowledgement, flags: Tcp::SYN | Tcp::ACK }.header();
    let packet = Packet::tcp_with_options(far, mapped, header, options, &data);
    let trip = session.send(Side::Outside, &packet, &|a| is_segment(a, Side::Inside, sequence))?;
    let carried = trip.arrived.as_ref().and_then(|arrival| arrival.packet.tcp_segment());
    let arrived = carried.is_some_and(|(_, found)| found == data);
    Ok(Some((SegmentTrip { arrived, sure: trip.is_sure() }, trip.arrived)))
}

fn syn_with_data(session: &mut Session<'_>) -> io::Result<SegmentTrip> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let (sequence, data) = (session.sequence(), session.data());
    let header = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN }.header();
    let packet = Packet::tcp(inside, far, header, &data);
    let trip = session.send(Side::Inside, &packet, &|a| is_segment(a, Side::Outside, sequence))?;
    let carried = trip.arrived.as_ref().and_then(|arrival| arrival.packet.tcp_segment());
    Ok(SegmentTrip { arrived: carried.is_some_and(|(_, found)| found == data), sure: trip.is_sure() })
}

/// The SYN of the contacted endpoint, with data: a filter admits it, if it admits any.
fn syn_from_outside_with_data(session: &mut Session<'_>) -> io::Result<SegmentTrip> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let Some(mapped) = session.outbound(Protocol::Tcp, inside, far)?.from() else { return Ok(LOST) };
    let (sequence, data) = (session.sequence(), session.data());
    let header = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN }.header();
    let packet = Packet::tcp(far, mapped, header, &data);
    let trip = session.send(Side::Outside, &packet, &|a| is_segment(a, Side::Inside, sequence))?;
    let carried = trip.arrived.as_ref().and_then(|arrival| arrival.packet.tcp_segment());
    Ok(SegmentTrip { arrived: carried.is_some_and(|(_, found)| found == data), sure: trip.is_sure() })
}

/// A connection to that endpoint by three segments; `None` if one did not arrive.
pub(super) fn connect(session: &mut Session<'_>, far: SocketAddr) -> io::Result<Option<Connection>> {
    let inside = session.fresh_inside();
    let Some(mapped) = session.outbound(Protocol::Tcp, inside, far)?.from() else { return Ok(None) };
    let near = session.sequence_of(inside, far).wrapping_add(1);
    let back = session.answer(Protocol::Tcp, (inside, far), mapped)?;
    let answer = back.arrived.as_ref().and_then(|arrival| arrival.packet.tcp_segment());
    let Some((header, _)) = answer else { return Ok(None) };
    let away = header.sequence.wrapping_add(1);
    let segment = Segment { sequence: near, acknowledgement: away, flags: Tcp::ACK };
    let done = session.segment(Side::Inside, inside, far, segment)?;
    Ok(done.arrived.is_some().then_some(Connection { inside, far, mapped, near, away }))
}

/// Opens a connection from inside, ends one direction of it by such a segment from one side, and sends data against it. Returns the
/// fate of both.
fn after(session: &mut Session<'_>, ends: Side, flags: u8) -> io::Result<(SegmentTrip, SegmentTrip)> {
    let port = session.fresh_port();
    let far = session.outside(0, port);
    let Some(Connection { inside, far, mapped, near, away }) = connect(session, far)? else {
        return Ok((LOST, LOST));
    };
    let reset = flags & Tcp::RST != 0;
    let out = (Side::Inside, inside, far, near, away);
    let back = (Side::Outside, far, mapped, away, near);
    let (ending, against) = if ends == Side::Outside { (back, out) } else { (out, back) };
    let (side, from, to, sequence, acknowledgement) = ending;
    let ended = session.segment(side, from, to, Segment { sequence, acknowledgement, flags })?;
    let mut ended = fate(&ended, side);
    // The NAT may have seen a reset that was lost behind it, and drop the next one for that.
    ended.sure &= ended.arrived || session.attempts() == 1;
    let (side, from, to, sequence, acknowledgement) = against;
    let data = session.data();
    let acknowledgement = if reset { acknowledgement } else { acknowledgement.wrapping_add(1) };
    let header = Segment { sequence, acknowledgement, flags: Tcp::ACK | Tcp::PSH }.header();
    let packet = Packet::tcp(from, to, header, &data);
    let expected = if ends == Side::Outside { (mapped, far) } else { (far, inside) };
    let trip = session.send(side, &packet, &|arrival| {
        let found = arrival.packet.tcp_segment().is_some_and(|(_, found)| found == data);
        found
            && arrival.side != side
            && (arrival.packet.from(), arrival.packet.to()) == (Some(expected.0), Some(expected.1))
    })?;
    Ok((ended, fate(&trip, side)))
}

/// Whether it came out on the other side.
pub(super) fn fate(trip: &Trip, from: Side) -> SegmentTrip {
    let arrived = trip.arrived.as_ref().is_some_and(|arrival| arrival.side != from);
    SegmentTrip { arrived, sure: arrived || trip.is_sure() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_and_broken_ones_end_the_search() {
        let bytes = option_bytes();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(option(&bytes, 2), Some(&MSS.to_be_bytes()[..]));
        assert_eq!(option(&bytes, 3), Some(&[SHIFT][..]));
        assert_eq!((option(&bytes, 4), option(&bytes, 5)), (Some(&[][..]), None));
        for broken in [&[2][..], &[2, 0, 0], &[2, 1], &[2, 9, 1], &[0, 3, 3, 7]] {
            assert_eq!(option(broken, 3), None, "{broken:?}");
        }
    }
}
