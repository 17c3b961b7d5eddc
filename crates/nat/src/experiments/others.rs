//! Protocols other than UDP, TCP and ICMP, from inside and back.

use std::io;
use std::net::IpAddr;

use weir_wire::checksum;

use crate::observed::{Other, OtherTrip};
use crate::session::Session;
use crate::{Observations, Packet, Side};

/// Ports of those protocols that have them: no experiment's of UDP or TCP.
const PORTS: [u16; 2] = [19_970, 19_972];

/// RFC 1918 section 3.
pub(super) fn all(session: &mut Session<'_>, observations: &mut Observations) -> io::Result<()> {
    let mut seen = Vec::new();
    for other in Other::ALL {
        session.about(match other {
            Other::Gre => &["protocol-gre"],
            Other::Esp => &["protocol-esp"],
            Other::Dccp => &["protocol-dccp"],
            Other::Sctp => &["protocol-sctp"],
            Other::UdpLite => &["protocol-udp-lite"],
        });
        seen.push(trip(session, other)?);
    }
    observations.others = Some(seen);
    Ok(())
}

/// A packet out, and if it arrived, one back to where it came from.
fn trip(session: &mut Session<'_>, other: Other) -> io::Result<OtherTrip> {
    let (inside, far) = (session.inside(0), session.conditions().outside[0]);
    let data = session.data();
    let packet = packet(other, (inside, far), PORTS, false, &data);
    let number = other.number();
    let is_it = |arrival: &crate::Arrival, side: Side, data: &[u8]| {
        let packet = &arrival.packet;
        arrival.side == side && packet.header.protocol == number && packet.payload.ends_with(data)
    };
    let out = session.send(Side::Inside, &packet, &|arrival| is_it(arrival, Side::Outside, &data))?;
    let mut seen = OtherTrip { other, inside, seen: None, answer: false, sure: out.is_sure() };
    if let Some(arrival) = &out.arrived {
        let source = arrival.packet.header.source;
        seen.seen = Some(source);
        // The NAT may have changed the ports.
        let ports = match (other.has_ports(), arrival.packet.payload.first_chunk::<4>()) {
            (true, Some([a, b, c, d])) => [u16::from_be_bytes([*c, *d]), u16::from_be_bytes([*a, *b])],
            _ => PORTS,
        };
        let data = session.data();
        let answer = self::packet(other, (far, source), ports, true, &data);
        let back = session.send(Side::Outside, &answer, &|arrival| {
            is_it(arrival, Side::Inside, &data) && arrival.packet.header.destination == inside
        })?;
        seen.answer = back.arrived.is_some();
        seen.sure = back.is_sure();
    }
    Ok(seen)
}

/// The first packet of a protocol, or the answer to it, that a filter of its protocol takes for sound; it ends in the data.
fn packet(
    other: Other,
    (source, destination): (IpAddr, IpAddr),
    ports: [u16; 2],
    is_answer: bool,
    data: &[u8],
) -> Packet {
    let [from, to] = ports.map(u16::to_be_bytes);
    let ported = |rest: &[u8]| [&from, &to, rest, data].concat();
    let mut payload = match (other, is_answer) {
        // RFC 2784: no options, and a payload of IPv4.
        (Other::Gre, _) => [&[0, 0, 8, 0], data].concat(),
        // RFC 4303: SPI and sequence number.
        (Other::Esp, _) => [&[0, 0, 0x10, 1, 0, 0, 0, 1], data].concat(),
        // RFC 4340 sections 5.1 to 5.3: Request, and Response with the number that it acknowledges; service code 0.
        (Other::Dccp, false) => ported(&[5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        (Other::Dccp, true) => {
            ported(&[7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])
        }
        (Other::Sctp, _) => ported(&initiation(is_answer, data.len())),
        // RFC 3828: the checksum covers all.
        (Other::UdpLite, _) => ported(&[0, 0, 0, 0]),
    };
    match other {
        Other::UdpLite | Other::Dccp => {
            let number = other.number();
            let sum = checksum::transport(source, destination, number, &payload);
            payload[6..8].copy_from_slice(&checksum::udp_value(sum).to_be_bytes());
        }
        Other::Sctp => {
            let sum = crc32c(&payload).to_le_bytes();
            payload[8..12].copy_from_slice(&sum);
        }
        Other::Gre | Other::Esp => {}
    }
    Packet::new(source, destination, other.number(), payload)
}

/// Verification tag, room for the checksum, and a chunk INIT or INIT ACK (RFC 9260 sections 3.3.2 and 3.3.3) that ends in a
/// parameter of this length.
fn initiation(is_answer: bool, data: usize) -> Vec<u8> {
    let (tag, kind) = if is_answer { (1_u32, 2_u8) } else { (0, 1) };
    let length = |fixed: usize| u16::try_from(fixed + data).unwrap_or_default().to_be_bytes();
    let mut bytes = tag.to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend([kind, 0]);
    bytes.extend(length(24));
    // Own tag, window, a stream each way, first sequence number.
    bytes.extend([0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    // A parameter that receivers skip (section 3.2.1).
    bytes.extend([0x80, 0xff]);
    bytes.extend(length(4));
    bytes
}

/// CRC32c as SCTP has it (RFC 9260 appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_that_of_the_check_value() {
        // Check value of CRC-32C: RFC 3720 appendix B.4 has others of the same polynomial.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
