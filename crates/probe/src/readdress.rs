//! Packets of a server whose own addresses are others than those by which its clients know it, as behind a cloud's translation.

use std::net::IpAddr;

use weir_wire::{checksum, protocol};

/// Header lengths, and offsets in them (RFC 791 section 3.1, RFC 8200 sections 3 and 4.5).
const V4_SUM: usize = 10;
const V4_ADDRESSES: [usize; 2] = [12, 16];
const V6_LENGTH: usize = 40;
const V6_ADDRESSES: [usize; 2] = [8, 24];
const V6_FRAGMENT: u8 = 44;
const V6_FRAGMENT_LENGTH: usize = 8;
/// Protocols whose checksum covers the addresses.
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;
/// Offset of an ICMP error's checksum, and of the packet that it quotes (RFC 792, RFC 4443).
const ICMP_SUM: usize = 2;
const QUOTE: usize = 8;

/// Replaces each address of a packet that is the first of a pair by the second one, of the same version: in the header, and in the
/// packet that an ICMP error quotes. Checksums change by the difference: those that were wrong stay wrong by as much. Other bytes
/// stay as they are.
pub(crate) fn readdress(packet: &mut [u8], names: &[(IpAddr, IpAddr)]) {
    let _ = readdressed(packet, names, true);
}

/// `None` if the packet ends too early.
fn readdressed(packet: &mut [u8], names: &[(IpAddr, IpAddr)], quotes: bool) -> Option<()> {
    let (addresses, length) = match packet.first()? >> 4 {
        4 => (V4_ADDRESSES, 4),
        6 => (V6_ADDRESSES, 16),
        _ => return None,
    };
    let is_v4 = length == 4;
    let mut changes: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for at in addresses {
        let field = packet.get_mut(at..at + length)?;
        let found = names.iter().map(|(old, new)| (octets(*old), octets(*new)));
        if let Some((old, new)) = found.into_iter().find(|(old, new)| *old == field && new.len() == length) {
            field.copy_from_slice(&new);
            changes.push((old, new));
        }
    }
    if is_v4 {
        changes.iter().try_for_each(|(old, new)| update(packet, V4_SUM, old, new))?;
    }
    let (number, start) = transport(packet, is_v4)?;
    if let Some(at) = sum_over_addresses(number) {
        let at = start + at;
        let without = number == protocol::UDP && packet.get(at..at + 2)? == [0, 0];
        if !without {
            changes.iter().try_for_each(|(old, new)| update(packet, at, old, new))?;
        }
        if !without && number == protocol::UDP && packet[at..at + 2] == [0, 0] {
            packet[at..at + 2].fill(0xff);
        }
    }
    let is_error = match (number, packet.get(start)?) {
        (protocol::ICMP, kind) => [3, 11, 12].contains(kind),
        (protocol::ICMPV6, kind) => (1..=4).contains(kind),
        _ => false,
    };
    if is_error && quotes {
        let even = |quote: &[u8]| [quote, &[0][..quote.len() % 2]].concat();
        let quote = packet.get_mut(start + QUOTE..)?;
        let old = even(quote);
        let _ = readdressed(quote, names, false);
        let new = even(quote);
        update(packet, start + ICMP_SUM, &old, &new)?;
    }
    Some(())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Protocol and offset of the transport header; `None` in fragments that lack it.
fn transport(packet: &[u8], is_v4: bool) -> Option<(u8, usize)> {
    let place = |at: usize| Some(u16::from_be_bytes(*packet.get(at..at + 2)?.first_chunk()?));
    if is_v4 {
        let start = usize::from(packet[0] & 0xf) * 4;
        return (place(6)? & 0x1fff == 0).then_some((packet[9], start));
    }
    if packet[6] != V6_FRAGMENT {
        return Some((packet[6], V6_LENGTH));
    }
    let number = *packet.get(V6_LENGTH)?;
    (place(V6_LENGTH + 2)? >> 3 == 0).then_some((number, V6_LENGTH + V6_FRAGMENT_LENGTH))
}

/// Offset of a checksum that covers the addresses.
fn sum_over_addresses(number: u8) -> Option<usize> {
    match number {
        protocol::UDP | UDP_LITE | DCCP => Some(6),
        protocol::TCP => Some(16),
        protocol::ICMPV6 => Some(ICMP_SUM),
        _ => None,
    }
}

/// Changes a checksum as its data changed (RFC 1624); one that a quote has cut off is not there.
fn update(packet: &mut [u8], at: usize, old: &[u8], new: &[u8]) -> Option<()> {
    let field = packet.get_mut(at..at + 2)?.first_chunk_mut::<2>()?;
    if old != new {
        *field = checksum::updated_bytes(u16::from_be_bytes(*field), old, new).to_be_bytes();
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_wire::{Datagram, Icmp, Ipv4, Ipv6, Tcp, Udp};

    const REAL: [&str; 2] = ["10.0.0.4", "fd00::4"];
    const KNOWN: [&str; 2] = ["192.0.2.7", "2001:db8::7"];
    const CLIENT: [&str; 2] = ["198.51.100.9", "2001:db8:1::9"];

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// From the address known here to the server's own one, and back.
    fn names(back: bool) -> Vec<(IpAddr, IpAddr)> {
        let pairs = (0..2).map(|n| (at(KNOWN[n]), at(REAL[n])));
        pairs.map(|(known, real)| if back { (real, known) } else { (known, real) }).collect()
    }

    fn packet(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut bytes = [&[0; Ipv4::LENGTH][..], payload].concat();
                let header = Ipv4 {
                    tos: 0,
                    total_length: bytes.len() as u16,
                    identification: 7,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: 64,
                    protocol,
                    source,
                    destination,
                };
                header.write(&mut bytes).unwrap();
                bytes
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut bytes = [&[0; Ipv6::LENGTH][..], payload].concat();
                let header = Ipv6 {
                    traffic_class: 0,
                    flow_label: 0,
                    payload_length: payload.len() as u16,
                    next_header: protocol,
                    hop_limit: 64,
                    source,
                    destination,
                };
                header.write(&mut bytes).unwrap();
                bytes
            }
            _ => unreachable!(),
        }
    }

    fn udp(from: IpAddr, to: IpAddr, data: &[u8]) -> Vec<u8> {
        let mut payload = [&[0; Udp::LENGTH][..], data].concat();
        Udp::seal((from, 9348), (to, 20_000), &mut payload).unwrap();
        packet(from, to, protocol::UDP, &payload)
    }

    fn tcp(from: IpAddr, to: IpAddr, data: &[u8]) -> Vec<u8> {
        let mut payload = [&[0; Tcp::LENGTH][..], data].concat();
        let header = Tcp {
            source_port: 9348,
            destination_port: 20_000,
            sequence: 1,
            acknowledgement: 2,
            flags: Tcp::ACK,
            window: 3,
            checksum: 0,
            urgent: 0,
        };
        header.seal(from, to, &mut payload).unwrap();
        packet(from, to, protocol::TCP, &payload)
    }

    fn error(from: IpAddr, to: IpAddr, quote: &[u8]) -> Vec<u8> {
        let mut payload = [0; 1_400];
        let length = Icmp::Unreachable { code: 3, quote }.write(from, to, &mut payload).unwrap();
        let number = if from.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
        packet(from, to, number, &payload[..length])
    }

    /// Packets of both versions from the first address to the second one: with data of odd length, and errors about packets back.
    fn all(from: [&str; 2], to: [&str; 2]) -> Vec<Vec<u8>> {
        let both = [0, 1].map(|n| (at(from[n]), at(to[n])));
        let packets = both.map(|(from, to)| {
            let back = udp(to, from, b"123");
            let cut = back.len() - 3;
            [
                udp(from, to, b"12345"),
                tcp(from, to, b"1234567"),
                error(from, to, &back),
                error(from, to, &back[..cut]),
                error(from, to, &tcp(to, from, b"odd")),
                packet(from, to, 47, b"gre"),
            ]
        });
        packets.concat()
    }

    fn is_sound(bytes: &[u8]) -> bool {
        let packet = Datagram::read(bytes).unwrap();
        let (from, to) = (packet.source, packet.destination);
        let header = from.is_ipv6() || Ipv4::is_sound(bytes);
        header
            && match packet.protocol {
                protocol::UDP => Udp::is_sound(from, to, packet.payload),
                protocol::TCP => Tcp::is_sound(from, to, packet.payload),
                protocol::ICMP | protocol::ICMPV6 => Icmp::is_sound(from, to, packet.payload),
                _ => true,
            }
    }

    #[test]
    fn packets_become_those_of_the_other_address() {
        for (before, after) in [
            (all(KNOWN, CLIENT), all(REAL, CLIENT)),
            (all(CLIENT, KNOWN), all(CLIENT, REAL)),
            (all(CLIENT, CLIENT), all(CLIENT, CLIENT)),
        ] {
            for (mut packet, expected) in before.into_iter().zip(after) {
                readdress(&mut packet, &names(false));
                assert_eq!(packet, expected);
                assert!(is_sound(&packet));
            }
        }
    }

    #[test]
    fn a_datagram_without_a_checksum_has_none_afterwards() {
        let mut packet = udp(at(KNOWN[0]), at(CLIENT[0]), b"x");
        packet[26..28].fill(0);
        readdress(&mut packet, &names(false));
        assert_eq!(packet[26..28], [0, 0]);
        assert_eq!(packet[12..16], [10, 0, 0, 4]);
    }

    #[test]
    fn a_stale_checksum_in_a_quote_stays_stale() {
        let (from, to) = (at(CLIENT[0]), at(KNOWN[0]));
        let mut quote = udp(to, from, b"data");
        quote[26] ^= 0x55;
        let mut packet = error(from, to, &quote);
        readdress(&mut packet, &names(false));
        assert!(is_sound(&packet));
        let inner = Ipv4::read_quoted(&packet[28..]).unwrap();
        assert!(!Udp::is_sound(at(REAL[0]), from, inner.1));
        readdress(&mut packet, &names(true));
        assert_eq!(packet, error(from, to, &quote));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(mut bytes: Vec<u8>, which in 0..12_usize, cut in 0..120_usize) {
            readdress(&mut bytes, &names(false));
            let mut packet = all(KNOWN, CLIENT).remove(which);
            packet.truncate(cut);
            packet.extend(&bytes);
            readdress(&mut packet, &names(false));
        }
    }
}
