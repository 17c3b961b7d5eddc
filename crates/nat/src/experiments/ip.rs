//! The IP header: fields that a hop keeps or changes, fragments, and packets that are too long.

use std::io;
use std::net::SocketAddr;

use weir_wire::{Icmp, Udp};

use crate::fragments::{Reassembly, split};
use crate::observed::{FragmentTrip, Identification, IpFields, Overlap, OverlapTrip, TooLong};
use crate::packet::Header;
use crate::session::{Protocol, Session, Trip};
use crate::{Arrival, Observations, Packet, Side};

/// DSCP of the packets: EF (RFC 3246).
const DSCP: u8 = 46;
/// ECN of the packets: ECT(0) (RFC 3168).
const ECN: u8 = 2;
/// Hop limit of the packets.
const TTL: u8 = 33;
/// Data of a datagram that is sent in fragments, bytes.
const LONG: usize = 2_000;
/// Payload of each fragment, bytes; each is shorter than any link.
const PIECE: usize = 800;
/// First byte of the second of two overlapping fragments, a multiple of 8.
const OVERLAP: usize = 400;
/// Bytes by which a datagram is longer than the outside link carries.
const EXCESS: usize = 40;

/// An open mapping: the inside endpoint, the outside one, and that of the NAT between them.
fn open(session: &mut Session<'_>) -> io::Result<Option<(SocketAddr, SocketAddr, SocketAddr)>> {
    let inside = session.fresh_inside();
    let port = session.fresh_port();
    let far = session.outside(0, port);
    Ok(session.outbound(Protocol::Udp, inside, far)?.from().map(|mapped| (inside, far, mapped)))
}

/// RFC 1812 section 5.3.1, RFC 2474, RFC 3168.
pub(super) fn fields(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let Some((inside, far, mapped)) = open(session)? else { return Ok(()) };
    let mut both = Vec::new();
    for (out, side, from, to) in [(true, Side::Inside, inside, far), (false, Side::Outside, far, mapped)] {
        let data = session.data();
        let mut packet = Packet::udp(from, to, &data);
        packet.header = Header { tos: DSCP << 2 | ECN, ttl: TTL, dont_fragment: true, ..packet.header };
        let trip = session.send(side, &packet, &|arrival| arrival.packet.udp_data() == Some(&data))?;
        let seen = trip.arrived.as_ref().map(|arrival| arrival.packet.header);
        both.push(IpFields {
            out,
            ttl: seen.map(|header| (TTL, header.ttl)),
            dscp: seen.map(|header| (DSCP, header.tos >> 2)),
            ecn: seen.map(|header| (ECN, header.tos & 3)),
            dont_fragment: seen.map(|header| (true, header.dont_fragment)),
            sure: trip.is_sure(),
        });
    }
    observations.ip_fields = both.try_into().ok();
    Ok(())
}

/// RFC 6864 section 5.3.1: two hosts' datagrams with one identification leave as if they were of one host. Those of IPv6 are fragments:
/// no other packets of it have one.
pub(super) fn identification(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let (far, near) = (session.fresh_port(), session.fresh_inside_port());
    let (sent, to) = (near, session.outside(0, far));
    let (mut seen, mut sure) = ([None; 2], true);
    for (which, seen) in seen.iter_mut().enumerate() {
        let mark = session.data();
        let mut data = mark.clone();
        if session.is_ipv6() {
            // No link of the NAT is too narrow for the whole.
            data.resize(PIECE, 0x5a);
        }
        let mut packet = Packet::udp(SocketAddr::new(session.inside(which), near), to, &data);
        packet.header.identification = sent.into();
        let pieces = if session.is_ipv6() { split(&packet, PIECE / 2) } else { vec![packet] };
        let is_first = |a: &Arrival| {
            let payload = &a.packet.payload;
            a.side == Side::Outside
                && a.packet.header.fragment_offset == 0
                && payload.get(Udp::LENGTH..Udp::LENGTH + mark.len()) == Some(&mark)
        };
        let trip = session.send_all(Side::Inside, &vec![pieces; session.attempts()], &is_first)?;
        sure &= trip.is_sure();
        *seen = trip
            .arrived
            .map(|arrival| (arrival.packet.header.source, arrival.packet.header.identification as u16));
    }
    observations.identification = Some(Identification { sent, seen, sure });
    Ok(())
}

/// RFC 4787 section 11.
pub(super) fn fragments(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let mut seen = Vec::new();
    for reversed in [false, true] {
        session.about(if reversed { &["udp-fragments-reversed"] } else { &["udp-fragments-in-order"] });
        let Some((inside, far, mapped)) = open(session)? else { continue };
        seen.push(fragmented(session, Side::Inside, (inside, far), reversed)?);
        seen.push(fragmented(session, Side::Outside, (far, mapped), reversed)?);
    }
    observations.fragments = Some(seen);
    Ok(())
}

/// One datagram in fragments.
fn fragmented(
    session: &mut Session<'_>,
    side: Side,
    (from, to): (SocketAddr, SocketAddr),
    reversed: bool,
) -> io::Result<FragmentTrip> {
    let mut data = session.data();
    data.resize(LONG, 0x5a);
    let mut packet = Packet::udp(from, to, &data);
    let attempt = |n: usize| {
        // Each attempt is a datagram of its own: its fragments complete no other.
        packet.header.identification = (from.port() ^ to.port()).wrapping_add(n as u16).into();
        let mut pieces = split(&packet, PIECE);
        if reversed {
            pieces.reverse();
        }
        pieces
    };
    let attempts: Vec<Vec<Packet>> = (0..session.attempts()).map(attempt).collect();
    let (whole, trip) = collect(session, side, &attempts, &data)?;
    let leaks =
        |arrival: &Arrival| arrival.side == Side::Outside && arrival.packet.header.source == from.ip();
    let leaked = side == Side::Inside && trip.others.iter().any(leaks);
    Ok(FragmentTrip { out: side == Side::Inside, reversed, whole, leaked, sure: whole || trip.is_sure() })
}

/// RFC 1858 section 4: the second of three fragments overlaps the first one, with other data.
pub(super) fn overlapping(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let Some((inside, far, mapped)) = open(session)? else { return Ok(()) };
    let mut seen = Vec::new();
    for (side, from, to) in [(Side::Inside, inside, far), (Side::Outside, far, mapped)] {
        let mark = session.data();
        let [earlier, later] = variants(mark);
        let attempt = |n: usize| {
            let piece = |data: &[u8], from_byte: usize, to_byte: usize| {
                let mut packet = Packet::udp(from, to, data);
                packet.header.identification = (from.port() ^ to.port()).wrapping_add(n as u16).into();
                packet.header.fragment_offset = (from_byte / 8) as u16;
                packet.header.more_fragments = to_byte < packet.payload.len();
                packet.payload = packet.payload[from_byte..to_byte].to_vec();
                packet
            };
            let end = earlier.len() + Udp::LENGTH;
            vec![
                piece(&earlier, 0, PIECE),
                piece(&later, OVERLAP, OVERLAP + PIECE),
                piece(&earlier, OVERLAP + PIECE, end),
            ]
        };
        let attempts: Vec<Vec<Packet>> = (0..session.attempts()).map(attempt).collect();
        let (kept_earlier, trip) = collect(session, side, &attempts, &earlier)?;
        let arrived: Vec<&Arrival> =
            trip.others.iter().chain(&trip.arrived).filter(|arrival| arrival.side != side).collect();
        let fate = if kept_earlier {
            Overlap::EarlierKept
        } else if is_whole(&arrived, &later) {
            Overlap::LaterKept
        } else if arrived.iter().any(|arrival| arrival.packet.header.is_fragment()) {
            Overlap::Passed
        } else {
            Overlap::Dropped
        };
        seen.push(OverlapTrip {
            out: side == Side::Inside,
            fate,
            sure: !arrived.is_empty() || trip.is_sure(),
        });
    }
    observations.overlapping = Some(seen);
    Ok(())
}

/// Data of a long datagram twice, which differ where fragments overlap and have one checksum.
fn variants(mark: Vec<u8>) -> [Vec<u8>; 2] {
    [[0x11, 0x11, 0x22, 0x22], [0x22, 0x22, 0x11, 0x11]].map(|words| {
        let mut data = mark.clone();
        data.resize(LONG, 0x5a);
        let disputed = OVERLAP - Udp::LENGTH..PIECE - Udp::LENGTH;
        for (byte, word) in data[disputed].iter_mut().zip(words.iter().cycle()) {
            *byte = *word;
        }
        data
    })
}

/// Sends packets, and puts together what comes out on the other side. Returns whether a datagram with that data did.
fn collect(
    session: &mut Session<'_>,
    side: Side,
    attempts: &[Vec<Packet>],
    data: &[u8],
) -> io::Result<(bool, Trip)> {
    let trip = session.send_all(side, attempts, &|arrival| arrival.packet.udp_data() == Some(data))?;
    let arrived: Vec<&Arrival> =
        trip.others.iter().chain(&trip.arrived).filter(|arrival| arrival.side != side).collect();
    Ok((is_whole(&arrived, data), trip))
}

/// Whether these packets, put together, hold a datagram with that data.
fn is_whole(arrived: &[&Arrival], data: &[u8]) -> bool {
    let mut reassembly = Reassembly::default();
    let mut packets = arrived.iter().filter_map(|arrival| reassembly.take(arrival.packet.clone()));
    packets.any(|packet| packet.udp_data() == Some(data))
}

/// RFC 4787 section 10.
pub(super) fn too_long(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let Some(link_mtu) = session.conditions().outside_mtu else { return Ok(()) };
    let Some((inside, far, _)) = open(session)? else { return Ok(()) };
    let length = link_mtu as usize + EXCESS;
    let mut data = session.data();
    data.resize(length, 0x5a);
    let mut packet = Packet::udp(inside, far, &data);
    packet.header.identification = inside.port().into();
    packet.header.dont_fragment = true;
    let told = |arrival: &Arrival| match arrival.packet.icmp_message() {
        Some(Icmp::TooBig { mtu, .. }) if arrival.side == Side::Inside => Some(mtu),
        _ => None,
    };
    let refused = session.send(Side::Inside, &packet, &|arrival| told(arrival).is_some())?;
    let mut seen = TooLong {
        link_mtu,
        told: refused.arrived.as_ref().and_then(told),
        fragmented: false,
        sure: refused.is_sure(),
    };
    // No packet of IPv6 may be fragmented on its way.
    if !session.is_ipv6() {
        packet.header.dont_fragment = false;
        let attempts = vec![vec![packet]; session.attempts()];
        let (fragmented, trip) = collect(session, Side::Inside, &attempts, &data)?;
        seen.fragmented = fragmented;
        seen.sure &= fragmented || trip.is_sure();
    }
    observations.too_long = Some(seen);
    Ok(())
}
