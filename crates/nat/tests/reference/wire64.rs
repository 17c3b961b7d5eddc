//! A NAT64: translation of headers (RFC 7915) in front of the reference NAT of IPv4 (RFC 6146 section 3.5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_lab::{Role, Site};
use weir_nat::fragments::split;
use weir_nat::{Packet, Side};
use weir_netlink::{Route, Rtnetlink};
use weir_wire::{Ipv6, Sum, Udp, checksum, protocol};

use super::rewrite::octets;
use super::{INSIDE_MTU, Output};

/// The well-known prefix (RFC 6052 section 2.1).
const PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
pub(crate) const PREFIX_TEXT: &str = "64:ff9b::/96";
/// The lab's inside hosts, with the last byte of theirs.
const INSIDE: [u8; 3] = [198, 18, 0];
const INSIDE_V6: [u16; 7] = [0x2001, 2, 0, 0, 0, 0, 0];
/// Addresses of the responder, and the next hop to those of the NAT.
pub(crate) const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 19, 0, 2)), IpAddr::V4(Ipv4Addr::new(198, 19, 0, 22))];
const NEXT_HOP: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1));
const OF_NAT: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(198, 19, 1, 0)), 24);

/// How inside hosts know an address of IPv4.
pub(crate) fn known_as(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    let [p, q, r, s, t, u] = PREFIX;
    Ipv6Addr::from([p, q, r, s, t, u, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

/// Makes the far end of a lab of IPv6 one of IPv4.
pub(crate) fn prepare(site: &Site) {
    let mut gateway = Rtnetlink::open_in(site.host(Role::Gateway).unwrap()).unwrap();
    let outside = &*site.addresses().outside_interface;
    let mac = gateway.interface(outside).unwrap().mac.unwrap();
    let on_link = |destination, interface| Route {
        destination: Some(destination),
        via: None,
        interface,
        onlink: false,
    };
    // Its kernel forwards nothing. Without a route it would answer that there is none.
    gateway.add_route(on_link((known_as(Ipv4Addr::UNSPECIFIED).into(), 96), outside)).unwrap();
    let interface = site.interfaces(Role::Responder).remove(0);
    let mut responder = Rtnetlink::open_in(site.host(Role::Responder).unwrap()).unwrap();
    for address in OUTSIDE {
        responder.add_address(&interface, address, 24).unwrap();
    }
    responder.add_neighbour(&interface, NEXT_HOP, mac).unwrap();
    responder.add_route(Route { via: Some(NEXT_HOP), ..on_link(OF_NAT, &interface) }).unwrap();
}

/// A known flaw of translators of headers. Those of the NAT behind one are [`super::Defect`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// An error about a packet that is too big keeps the MTU of the other version.
    MtuKept,
    /// An error quotes the packet of the other version.
    QuoteKept,
    /// Codes of "unreachable" keep their number.
    CodesKept,
    /// The checksum of ICMPv6 lacks the addresses that it covers.
    PseudoHeaderForgotten,
    /// The transport checksum of a quoted packet is that of the other version.
    QuotedChecksumStale,
    /// An error that quotes a header of UDP without data is dropped.
    ShortQuotesDropped,
    /// Packets of IPv6 leave with DF, however short.
    DfAlways,
    /// Errors are dropped.
    ErrorsDropped,
    /// Fragments are dropped.
    FragmentsDropped,
    /// The traffic class is lost, and so is TOS.
    ClassLost,
    /// Only UDP, TCP and ICMP pass, as RFC 6146 section 3 has it.
    OthersDropped,
}

/// The translator of headers (RFC 7915).
#[derive(Debug, Clone, Default)]
pub(crate) struct Translator {
    pub(crate) flaws: Vec<Flaw>,
}

/// The version that a packet gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    V4,
    V6,
}

impl Translator {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }

    /// A packet that comes to the gateway, and those that leave it.
    pub(crate) fn handle(
        &self,
        side: Side,
        packet: Packet,
        mut nat: impl FnMut(Side, Packet) -> Output,
    ) -> Output {
        let packet = if side == Side::Inside { self.moved(&packet, To::V4) } else { Some(packet) };
        let Some(packet) = packet else { return Vec::new() };
        let out = nat(side, packet).into_iter();
        out.flat_map(|(side, packet)| match side {
            Side::Inside => self.moved(&packet, To::V6).into_iter().flat_map(fitting).collect(),
            Side::Outside => vec![(side, packet)],
        })
        .collect()
    }

    /// The same packet between the addresses of the other version.
    fn moved(&self, packet: &Packet, to: To) -> Option<Packet> {
        if packet.header.is_fragment() && self.has(Flaw::FragmentsDropped) {
            return None;
        }
        if packet.is_icmp() && !packet.header.is_fragment() {
            return self.message(packet, to);
        }
        let known = [protocol::UDP, protocol::TCP].contains(&packet.header.protocol);
        if !known && self.has(Flaw::OthersDropped) {
            return None;
        }
        self.with_header(packet, to, true)
    }

    /// RFC 7915 sections 4.1 and 5.1: the header, and the checksum that covers its addresses.
    fn with_header(&self, packet: &Packet, to: To, updates: bool) -> Option<Packet> {
        let address = if to == To::V4 { to_v4 } else { to_v6 };
        let mut new = packet.clone();
        let header = &mut new.header;
        (header.source, header.destination) = (address(header.source)?, address(header.destination)?);
        header.identification &= 0xffff;
        let is_long = packet.payload.len() + 20 > 1_260;
        header.dont_fragment = !header.is_fragment() && (is_long || self.has(Flaw::DfAlways));
        if self.has(Flaw::ClassLost) {
            header.tos = 0;
        }
        let at = match packet.header.protocol {
            protocol::UDP | 33 | 136 => 6,
            protocol::TCP => 16,
            _ => return Some(new),
        };
        if let Some(field) =
            new.payload.get_mut(at..at + 2).filter(|_| updates && new.header.fragment_offset == 0)
        {
            let both = |packet: &weir_nat::packet::Header| {
                [octets(packet.source), octets(packet.destination)].concat()
            };
            let old = u16::from_be_bytes([field[0], field[1]]);
            let sum = checksum::updated_bytes(old, &both(&packet.header), &both(&new.header));
            // UDP's 0 means that there is no checksum: in IPv6 not allowed (RFC 8200 section 8.1), in IPv4 not to be changed.
            let sum = if at == 6 { checksum::udp_value(sum) } else { sum };
            field.copy_from_slice(&sum.to_be_bytes());
        }
        Some(new)
    }

    /// RFC 7915 sections 4.2, 4.3, 5.2 and 5.3.
    fn message(&self, packet: &Packet, to: To) -> Option<Packet> {
        packet.icmp_message()?;
        let mut new = self.with_header(packet, to, true)?;
        let [kind, code] = *packet.payload.first_chunk::<2>()?;
        let (new_kind, new_code) =
            if to == To::V4 { kind_of_v4(kind, code) } else { kind_of_v6(kind, code) }?;
        let is_error = ![0, 8, 128, 129].contains(&kind);
        if is_error && self.has(Flaw::ErrorsDropped) {
            return None;
        }
        let new_code = if is_error && self.has(Flaw::CodesKept) { code } else { new_code };
        new.header.protocol = if to == To::V4 { protocol::ICMP } else { protocol::ICMPV6 };
        new.payload[..4].copy_from_slice(&[new_kind, new_code, 0, 0]);
        if [(3, 4), (2, 0)].contains(&(kind, code)) && !self.has(Flaw::MtuKept) {
            let mtu = u16::from_be_bytes([packet.payload[6], packet.payload[7]]);
            let mtu = if to == To::V4 { mtu - 20 } else { mtu + 20 };
            new.payload[6..8].copy_from_slice(&mtu.to_be_bytes());
        }
        if is_error && !self.has(Flaw::QuoteKept) {
            let inner = Packet::read_quoted(&packet.payload[8..])?;
            if inner.payload.len() <= Udp::LENGTH && self.has(Flaw::ShortQuotesDropped) {
                return None;
            }
            let inner = match inner.is_icmp() {
                true => self.message(&inner, to)?,
                false => self.with_header(&inner, to, !self.has(Flaw::QuotedChecksumStale))?,
            };
            new.payload.truncate(8);
            new.payload.extend(inner.bytes());
        }
        let (source, destination) = (new.header.source, new.header.destination);
        let sum = match to {
            To::V6 if !self.has(Flaw::PseudoHeaderForgotten) => {
                checksum::transport(source, destination, protocol::ICMPV6, &new.payload)
            }
            _ => Sum::new().bytes(&new.payload).checksum(),
        };
        new.payload[2..4].copy_from_slice(&sum.to_be_bytes());
        Some(new)
    }
}

/// RFC 7915 section 4: a packet that became too long for the inside link, in fragments.
fn fitting(packet: Packet) -> Output {
    let room = INSIDE_MTU as usize - packet.header.length();
    let pieces = match packet.payload.len() > room {
        true => split(&packet, INSIDE_MTU as usize - Ipv6::LENGTH - super::FRAGMENT_HEADER),
        false => vec![packet],
    };
    pieces.into_iter().map(|piece| (Side::Inside, piece)).collect()
}

/// Types of ICMP for those of ICMPv6.
fn kind_of_v4(kind: u8, code: u8) -> Option<(u8, u8)> {
    Some(match (kind, code) {
        (128, 0) => (8, 0),
        (129, 0) => (0, 0),
        (1, 0 | 2 | 3) => (3, 1),
        (1, 1) => (3, 10),
        (1, 4) => (3, 3),
        (2, 0) => (3, 4),
        (3, code) => (11, code),
        (4, 0) => (12, 0),
        _ => return None,
    })
}

/// Types of ICMPv6 for those of ICMP.
fn kind_of_v6(kind: u8, code: u8) -> Option<(u8, u8)> {
    Some(match (kind, code) {
        (8, 0) => (128, 0),
        (0, 0) => (129, 0),
        (3, 3) => (1, 4),
        (3, 4) => (2, 0),
        (3, 9 | 10 | 13 | 15) => (1, 1),
        (3, 0 | 1 | 5..=8 | 11 | 12) => (1, 0),
        (11, code) => (3, code),
        (12, 0) => (4, 0),
        _ => return None,
    })
}

/// Hosts' addresses begin with the lab's prefix, all others with that of the NAT64.
fn to_v4(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let (groups, octets) = (address.segments(), address.octets());
    if groups[..7] == INSIDE_V6 {
        return Some(Ipv4Addr::new(INSIDE[0], INSIDE[1], INSIDE[2], octets[15]).into());
    }
    (groups[..6] == PREFIX).then(|| Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]).into())
}

fn to_v6(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V4(address) = address else { return None };
    let octets = address.octets();
    if octets[..3] != INSIDE {
        return Some(known_as(address).into());
    }
    let [a, b, c, d, e, f, g] = INSIDE_V6;
    Some(Ipv6Addr::from([a, b, c, d, e, f, g, octets[3].into()]).into())
}
