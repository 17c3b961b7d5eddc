//! The IPv4 side of a NAT64, as experiments write and read its packets: they know each host there by its address of IPv6.
//!
//! The fields of a header and the checksums stay as they are, so a stale checksum stays stale. Types of ICMP are those of RFC 7915
//! sections 4.2 and 5.2. An error that came keeps the packet that it quotes as it is: the quote is evidence.

use std::net::{IpAddr, SocketAddr};

use weir_probe::nat64::Prefix64;
use weir_wire::{Icmp, checksum, protocol};

use crate::Packet;
use crate::observed::Other;

/// A header of IPv6 is so much longer than one of IPv4, bytes, and so is the MTU that an error names (RFC 7915 section 4.2).
pub const LONGER: u32 = 20;
/// Changes a checksum that was wrong, and must stay so.
const DAMAGE: u8 = 0x55;
/// Field that the pointer of a parameter problem is about, as offsets in IPv4 and in IPv6: the first of each field (RFC 7915
/// sections 4.2 and 5.2).
const POINTERS: [(u32, u32); 7] = [(0, 0), (1, 1), (2, 4), (8, 7), (9, 6), (12, 8), (16, 24)];
/// The field that names the next header: ICMP has a code for an unknown protocol instead.
const NEXT_HEADER: u32 = 6;

/// A packet as it is on the IPv4 side; `None` if an address has no place there, or ICMP of IPv4 lacks such a message.
pub fn real(prefix: Prefix64, packet: &Packet) -> Option<Packet> {
    let address = |address| match address {
        IpAddr::V6(known) => prefix.within(known).map(IpAddr::V4),
        IpAddr::V4(_) => Some(address),
    };
    let mut new = packet.clone();
    new.header.source = address(packet.header.source)?;
    new.header.destination = address(packet.header.destination)?;
    if packet.header.source.is_ipv4() {
        return Some(new);
    }
    let Some(message) = packet.quoted_icmp() else { return Some(with_checksum(packet, new)) };
    let quote = message.quote().unwrap_or_default();
    let quote = match Packet::read_quoted(quote).map(|inner| real(prefix, &inner)) {
        Some(Some(inner)) => inner.bytes(),
        _ => quote.to_vec(),
    };
    Some(with_message(packet, new, &message_of_v4(&message, &quote)?))
}

/// A packet from the IPv4 side as experiments know it; `None` if ICMP of IPv6 lacks such a message.
pub fn known(prefix: Prefix64, packet: &Packet) -> Option<Packet> {
    let address = |address| prefix.known(SocketAddr::new(address, 0)).ip();
    let mut new = packet.clone();
    new.header.source = address(packet.header.source);
    new.header.destination = address(packet.header.destination);
    if packet.header.source.is_ipv6() {
        return Some(new);
    }
    let Some(message) = packet.quoted_icmp() else { return Some(with_checksum(packet, new)) };
    let quote = message.quote().unwrap_or_default();
    Some(with_message(packet, new, &message_of_v6(&message, quote)?))
}

/// Type and code of an error of the IPv4 side as it arrives inside; `None` of one that ends here.
pub fn arrives_as((kind, code): (u8, u8)) -> Option<(u8, u8)> {
    let header = [kind, code, 0, 0, 0, 0, 0, 0];
    let any = IpAddr::from([0; 16]);
    let message = Icmp::read_v4(&header).ok().and_then(|message| message_of_v6(&message, &[]))?;
    Packet::icmp(any, any, &message).icmp_kind()
}

/// The same of an error that an experiment wrote with the numbers of IPv6: several of them are one in IPv4.
pub fn through((kind, code): (u8, u8)) -> (u8, u8) {
    let header = [kind, code, 0, 0, 0, 0, 0, 0];
    let any = IpAddr::from([0; 4]);
    let real = Icmp::read_v6(&header).ok().and_then(|message| message_of_v4(&message, &[]));
    let kind_of_v4 = real.and_then(|message| Packet::icmp(any, any, &message).icmp_kind());
    kind_of_v4.and_then(arrives_as).unwrap_or((kind, code))
}

/// The new packet with the old one's checksum, changed as its addresses were (RFC 1624). A fragment without one has none to change.
fn with_checksum(old: &Packet, mut new: Packet) -> Packet {
    let at = match old.header.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        other if other == Other::Dccp.number() || other == Other::UdpLite.number() => 6,
        _ => return new,
    };
    let both = |packet: &Packet| [octets(packet.header.source), octets(packet.header.destination)].concat();
    let (before, after) = (both(old), both(&new));
    let field = new.payload.get_mut(at..at + 2).filter(|_| old.header.fragment_offset == 0);
    if let Some(field) = field.filter(|field| old.header.protocol != protocol::UDP || **field != [0, 0]) {
        let sum = checksum::updated_bytes(u16::from_be_bytes([field[0], field[1]]), &before, &after);
        let sum = if old.header.protocol == protocol::TCP { sum } else { checksum::udp_value(sum) };
        field.copy_from_slice(&sum.to_be_bytes());
    }
    new
}

/// The new packet with this message, whose checksum is as right as that of the old one.
fn with_message(old: &Packet, mut new: Packet, message: &Icmp<'_>) -> Packet {
    let whole = Packet::icmp(new.header.source, new.header.destination, message);
    new.header.protocol = whole.header.protocol;
    new.payload = whole.payload;
    if old.icmp_message().is_none() {
        new.payload[2] ^= DAMAGE;
    }
    new
}

/// RFC 7915 section 5.2.
fn message_of_v4<'a>(message: &Icmp<'a>, quote: &'a [u8]) -> Option<Icmp<'a>> {
    Some(match *message {
        Icmp::Echo { .. } => *message,
        Icmp::Unreachable { code: 0 | 2 | 3, .. } => Icmp::Unreachable { code: 1, quote },
        Icmp::Unreachable { code: 1, .. } => Icmp::Unreachable { code: 10, quote },
        Icmp::Unreachable { code: 4, .. } => Icmp::Unreachable { code: 3, quote },
        Icmp::TooBig { mtu, .. } => {
            Icmp::TooBig { mtu: mtu.saturating_sub(LONGER).min(u16::MAX.into()), quote }
        }
        Icmp::TimeExceeded { code, .. } => Icmp::TimeExceeded { code, quote },
        Icmp::ParameterProblem { code: 1, .. } => Icmp::Unreachable { code: 2, quote },
        Icmp::ParameterProblem { code: 0, pointer, .. } => {
            let (pointer, _) = POINTERS.into_iter().find(|(_, v6)| *v6 == pointer)?;
            Icmp::ParameterProblem { code: 0, pointer, quote }
        }
        _ => return None,
    })
}

/// RFC 7915 section 4.2.
fn message_of_v6<'a>(message: &Icmp<'a>, quote: &'a [u8]) -> Option<Icmp<'a>> {
    Some(match *message {
        Icmp::Echo { .. } => *message,
        Icmp::Unreachable { code: 2, .. } => Icmp::ParameterProblem { code: 1, pointer: NEXT_HEADER, quote },
        Icmp::Unreachable { code: 3, .. } => Icmp::Unreachable { code: 4, quote },
        Icmp::Unreachable { code: 9 | 10 | 13 | 15, .. } => Icmp::Unreachable { code: 1, quote },
        Icmp::Unreachable { code: 0..=12, .. } => Icmp::Unreachable { code: 0, quote },
        Icmp::TooBig { mtu, .. } => Icmp::TooBig { mtu: mtu + LONGER, quote },
        Icmp::TimeExceeded { code, .. } => Icmp::TimeExceeded { code, quote },
        Icmp::ParameterProblem { code: 0 | 2, pointer, .. } => {
            let (_, pointer) = POINTERS.into_iter().find(|(v4, _)| *v4 == pointer)?;
            Icmp::ParameterProblem { code: 0, pointer, quote }
        }
        _ => return None,
    })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragments::split;
    use crate::session::Segment;
    use weir_wire::Tcp;

    fn prefix() -> Prefix64 {
        Prefix64::try_from("64:ff9b::/96".to_owned()).unwrap()
    }

    /// The NAT's endpoint and the server's, as they are on the IPv4 side or as the inside knows them.
    fn ends(is_known: bool) -> [SocketAddr; 2] {
        let real = ["192.0.2.1:20000", "198.51.100.7:9348"].map(|text| text.parse().unwrap());
        real.map(|end| if is_known { prefix().known(end) } else { end })
    }

    /// Packets from the NAT to the server that differ between the versions in nothing but their headers.
    fn packets(is_known: bool) -> Vec<Packet> {
        let [from, to] = ends(is_known);
        let header = Segment { sequence: 7, acknowledgement: 0, flags: Tcp::SYN }.header();
        let echo = Icmp::Echo { reply: false, identifier: 5, sequence: 1, data: b"data" };
        let mut all = vec![
            Packet::udp(from, to, b"odd"),
            Packet::tcp_with_options(from, to, header, &[2, 4, 5, 0xb4], b"data"),
            Packet::icmp(from.ip(), to.ip(), &echo),
            Packet::new(from.ip(), to.ip(), 47, b"gre".to_vec()),
        ];
        let mut long = Packet::udp(from, to, &[0x5a; 2_000]);
        long.header.identification = 77;
        all.extend(split(&long, 800));
        for packet in &mut all {
            packet.header.ttl = 33;
            packet.header.tos = 0xba;
            packet.header.dont_fragment = !packet.header.is_fragment();
        }
        all
    }

    /// An error of the server about a packet of the NAT.
    fn error(is_known: bool, message: impl Fn(&[u8]) -> Packet) -> Packet {
        message(&packets(is_known)[0].bytes())
    }

    #[test]
    fn packets_are_those_of_the_other_version_with_right_checksums() {
        for (v4, v6) in packets(false).into_iter().zip(packets(true)) {
            assert_eq!(real(prefix(), &v6), Some(v4.clone()));
            assert_eq!(known(prefix(), &v4), Some(v6.clone()));
            // One of this version already stays.
            assert_eq!((real(prefix(), &v4), known(prefix(), &v6)), (Some(v4), Some(v6)));
        }
    }

    #[test]
    fn a_stale_checksum_stays_stale() {
        for at in [0, 1, 2] {
            let mut packet = packets(true).remove(at);
            let last = packet.payload.len() - 1;
            packet.payload[last] ^= DAMAGE;
            let v4 = real(prefix(), &packet).unwrap();
            let back = known(prefix(), &v4).unwrap();
            for packet in [v4, back] {
                let is_sound = packet.udp_data().is_some()
                    || packet.tcp_segment().is_some()
                    || packet.icmp_message().is_some();
                assert!(!is_sound, "{packet:?}");
            }
        }
    }

    #[test]
    fn errors_have_the_types_and_the_mtu_of_rfc_7915() {
        let [_, v4] = ends(false);
        let [nat6, v6] = ends(true);
        let [nat4, _] = ends(false);
        let all = |quote: &[u8], is_v6: bool| -> Vec<Packet> {
            let (from, to) = if is_v6 { (v6.ip(), nat6.ip()) } else { (v4.ip(), nat4.ip()) };
            let both: [(Icmp<'_>, Icmp<'_>); 5] = [
                (Icmp::Unreachable { code: 1, quote }, Icmp::Unreachable { code: 0, quote }),
                (Icmp::Unreachable { code: 3, quote }, Icmp::Unreachable { code: 4, quote }),
                (Icmp::TooBig { mtu: 1_280, quote }, Icmp::TooBig { mtu: 1_300, quote }),
                (Icmp::TimeExceeded { code: 0, quote }, Icmp::TimeExceeded { code: 0, quote }),
                (
                    Icmp::ParameterProblem { code: 0, pointer: 9, quote },
                    Icmp::ParameterProblem { code: 0, pointer: 6, quote },
                ),
            ];
            both.map(|(old, new)| Packet::icmp(from, to, if is_v6 { &new } else { &old })).into()
        };
        let quotes = [false, true].map(|is_known| packets(is_known)[0].bytes());
        for (packet, expected) in all(&quotes[1], true).iter().zip(all(&quotes[0], false)) {
            assert_eq!(real(prefix(), packet), Some(expected.clone()));
            // The quote stays as it came.
            let back = known(prefix(), &expected).unwrap();
            assert_eq!(back.icmp_kind(), packet.icmp_kind());
            assert_eq!(back.icmp_message().unwrap().quote(), Some(&quotes[0][..]));
            assert_eq!(real(prefix(), &back), Some(expected));
        }
    }

    #[test]
    fn an_address_outside_the_prefix_has_no_place_on_the_other_side() {
        let mut packet = packets(true).remove(0);
        packet.header.source = "2001:db8::1".parse().unwrap();
        assert_eq!(real(prefix(), &packet), None);
    }

    #[test]
    fn kinds_come_back_as_the_rfc_has_them() {
        for (kind, expected) in [
            ((1, 0), (1, 0)),
            ((1, 1), (1, 1)),
            ((1, 3), (1, 0)),
            ((1, 4), (1, 4)),
            ((2, 0), (2, 0)),
            ((3, 1), (3, 1)),
        ] {
            assert_eq!(through(kind), expected);
            let packet = error(true, |quote| {
                let rest = [&[0; 4], quote].concat();
                let [nat, server] = ends(true);
                Packet::icmp(server.ip(), nat.ip(), &Icmp::Other { kind: kind.0, code: kind.1, rest: &rest })
            });
            let back = known(prefix(), &real(prefix(), &packet).unwrap()).unwrap();
            assert_eq!(back.icmp_kind(), Some(expected));
        }
        for (kind, expected) in [
            ((3, 0), Some((1, 0))),
            ((3, 2), Some((4, 1))),
            ((3, 4), Some((2, 0))),
            ((3, 13), Some((1, 1))),
            ((3, 14), None),
            ((4, 0), None),
            ((5, 1), None),
            ((11, 1), Some((3, 1))),
            ((12, 0), Some((4, 0))),
        ] {
            assert_eq!(arrives_as(kind), expected, "{kind:?}");
        }
    }
}
