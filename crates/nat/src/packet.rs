//! IP packets as the two ends send and see them.

use std::net::{IpAddr, SocketAddr};

use weir_wire::{Icmp, Ipv4, Ipv6, Tcp, Udp, checksum, ipv6, protocol};

/// Hop limit of packets that the ends send.
pub const TTL: u8 = 64;
/// Length of the fragment header of IPv6, bytes (RFC 8200 section 4.5), and its number.
const FRAGMENT_HEADER: usize = 8;
const FRAGMENT: u8 = 44;
/// Longest offset of a fragment, in units of 8 bytes.
const OFFSET: u16 = 0x1fff;

/// The header of a packet, as far as experiments know it. Its addresses are of one version, which is the packet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// DSCP and ECN.
    pub tos: u8,
    /// The same in all fragments of a datagram; 16 bits in IPv4, where all packets have one.
    pub identification: u32,
    /// It must not be fragmented. Routers never fragment IPv6.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Offset of the payload in the datagram's, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Hop limit.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// From where.
    pub source: IpAddr,
    /// To where.
    pub destination: IpAddr,
}

impl Header {
    /// Whether it is one of several fragments.
    pub fn is_fragment(&self) -> bool {
        self.fragment_offset != 0 || self.more_fragments
    }

    /// Length of the headers before the payload, bytes.
    pub fn length(&self) -> usize {
        match self.source {
            IpAddr::V4(_) => Ipv4::LENGTH,
            IpAddr::V6(_) if self.is_fragment() => Ipv6::LENGTH + FRAGMENT_HEADER,
            IpAddr::V6(_) => Ipv6::LENGTH,
        }
    }
}

/// One packet without options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its header.
    pub header: Header,
    /// The bytes after the header.
    pub payload: Vec<u8>,
}

impl Packet {
    /// A packet with this payload.
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, payload: Vec<u8>) -> Self {
        let header = Header {
            tos: 0,
            identification: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: TTL,
            protocol,
            source,
            destination,
        };
        Packet { header, payload }
    }

    /// A UDP datagram with its checksum. `data` has at most 65,507 bytes.
    pub fn udp(from: SocketAddr, to: SocketAddr, data: &[u8]) -> Self {
        let mut payload = vec![0; Udp::LENGTH];
        payload.extend_from_slice(data);
        let mut packet = Packet::new(from.ip(), to.ip(), protocol::UDP, payload);
        packet.seal_udp(from.port(), to.port());
        packet
    }

    /// A TCP segment without options.
    pub fn tcp(from: SocketAddr, to: SocketAddr, header: Tcp, data: &[u8]) -> Self {
        let mut payload = vec![0; Tcp::LENGTH];
        payload.extend_from_slice(data);
        let header = Tcp { source_port: from.port(), destination_port: to.port(), ..header };
        // The buffer begins with room for the header.
        let sealed = header.seal(from.ip(), to.ip(), &mut payload);
        debug_assert!(sealed.is_ok());
        Packet::new(from.ip(), to.ip(), protocol::TCP, payload)
    }

    /// A TCP segment with options, of a multiple of four bytes and 40 at most.
    pub fn tcp_with_options(
        from: SocketAddr,
        to: SocketAddr,
        header: Tcp,
        options: &[u8],
        data: &[u8],
    ) -> Self {
        let mut packet = Packet::tcp(from, to, header, &[options, data].concat());
        let before = [packet.payload[12], packet.payload[13]];
        // The header's length, in units of four bytes, is in the upper half of this byte.
        packet.payload[12] = u8::try_from((Tcp::LENGTH + options.len()) / 4).unwrap_or_default() << 4;
        let after = [packet.payload[12], packet.payload[13]];
        let sum = u16::from_be_bytes([packet.payload[16], packet.payload[17]]);
        let sum = checksum::updated_bytes(sum, &before, &after);
        packet.payload[16..18].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// The options of a TCP segment with the right checksum.
    pub fn tcp_options(&self) -> Option<&[u8]> {
        self.tcp_segment()?;
        Tcp::read(&self.payload).ok().map(|(_, options, _)| options)
    }

    /// An ICMP message with its checksum.
    pub fn icmp(source: IpAddr, destination: IpAddr, message: &Icmp<'_>) -> Self {
        let mut payload = vec![0; 1500];
        let length = message.write(source, destination, &mut payload).unwrap_or_default();
        payload.truncate(length);
        Packet::new(source, destination, icmp_of(source), payload)
    }

    /// Reads a packet, which may be followed by the link's padding. `None` if it is not whole, or its header's checksum is wrong.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if is_v6(bytes) {
            return Packet::of_v6(Ipv6::read(bytes).ok()?);
        }
        let whole = Ipv4::read(bytes).ok()?;
        Ipv4::is_sound(bytes).then(|| Packet::of_v4(whole))
    }

    /// Reads what an ICMP error quotes: the header, and as much as is there of what follows it.
    pub fn read_quoted(bytes: &[u8]) -> Option<Self> {
        if is_v6(bytes) {
            return Packet::of_v6(Ipv6::read_quoted(bytes).ok()?);
        }
        Ipv4::read_quoted(bytes).ok().map(Packet::of_v4)
    }

    /// Whether the header's checksum is right; IPv6 has none.
    pub fn header_is_sound(bytes: &[u8]) -> bool {
        is_v6(bytes) || Ipv4::is_sound(bytes)
    }

    fn of_v4((header, payload): (Ipv4, &[u8])) -> Self {
        let header = Header {
            tos: header.tos,
            identification: header.identification.into(),
            dont_fragment: header.dont_fragment,
            more_fragments: header.more_fragments,
            fragment_offset: header.fragment_offset,
            ttl: header.ttl,
            protocol: header.protocol,
            source: header.source.into(),
            destination: header.destination.into(),
        };
        Packet { header, payload: payload.to_vec() }
    }

    fn of_v6((header, rest): (Ipv6, &[u8])) -> Option<Self> {
        let upper = ipv6::upper_layer(header.next_header, rest).ok()?;
        let header = Header {
            tos: header.traffic_class,
            identification: upper.fragment.map_or(0, |fragment| fragment.identification),
            dont_fragment: true,
            more_fragments: upper.fragment.is_some_and(|fragment| fragment.more),
            fragment_offset: upper.fragment.map_or(0, |fragment| (fragment.offset / 8) as u16),
            ttl: header.hop_limit,
            protocol: upper.protocol,
            source: header.source.into(),
            destination: header.destination.into(),
        };
        Some(Packet { header, payload: upper.payload.to_vec() })
    }

    /// The packet with its header's length and checksum.
    ///
    /// # Panics
    /// If its addresses are of two versions.
    pub fn bytes(&self) -> Vec<u8> {
        let header = self.header;
        let mut bytes = vec![0; header.length()];
        bytes.extend_from_slice(&self.payload);
        // The buffer begins with room for the header.
        let written = match (header.source, header.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4 {
                tos: header.tos,
                total_length: u16::try_from(bytes.len()).unwrap_or(u16::MAX),
                identification: header.identification as u16,
                dont_fragment: header.dont_fragment,
                more_fragments: header.more_fragments,
                fragment_offset: header.fragment_offset,
                ttl: header.ttl,
                protocol: header.protocol,
                source,
                destination,
            }
            .write(&mut bytes),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let next_header = if header.is_fragment() { FRAGMENT } else { header.protocol };
                let fixed = Ipv6 {
                    traffic_class: header.tos,
                    flow_label: 0,
                    payload_length: u16::try_from(bytes.len() - Ipv6::LENGTH).unwrap_or(u16::MAX),
                    next_header,
                    hop_limit: header.ttl,
                    source,
                    destination,
                };
                if header.is_fragment() {
                    let place = (header.fragment_offset & OFFSET) << 3 | u16::from(header.more_fragments);
                    bytes[Ipv6::LENGTH] = header.protocol;
                    bytes[Ipv6::LENGTH + 2..][..2].copy_from_slice(&place.to_be_bytes());
                    bytes[Ipv6::LENGTH + 4..][..4].copy_from_slice(&header.identification.to_be_bytes());
                }
                fixed.write(&mut bytes)
            }
            _ => unreachable!("the addresses of a packet are of one version"),
        };
        debug_assert!(written.is_ok());
        bytes
    }

    /// Writes UDP ports, length and checksum again, after addresses or data changed.
    pub fn seal_udp(&mut self, from: u16, to: u16) {
        let (source, destination) = (self.header.source, self.header.destination);
        let sealed = Udp::seal((source, from), (destination, to), &mut self.payload);
        debug_assert!(sealed.is_ok());
    }

    /// UDP or TCP source, if the packet carries the ports.
    pub fn from(&self) -> Option<SocketAddr> {
        self.ports().map(|(from, _)| SocketAddr::new(self.header.source, from))
    }

    /// UDP or TCP destination, if the packet carries the ports.
    pub fn to(&self) -> Option<SocketAddr> {
        self.ports().map(|(_, to)| SocketAddr::new(self.header.destination, to))
    }

    fn ports(&self) -> Option<(u16, u16)> {
        let has_ports = matches!(self.header.protocol, protocol::UDP | protocol::TCP);
        let [a, b, c, d] = *self.payload.first_chunk::<4>()?;
        (has_ports && self.header.fragment_offset == 0)
            .then(|| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// The data of a whole UDP datagram with the right checksum.
    pub fn udp_data(&self) -> Option<&[u8]> {
        let (source, destination) = self.addresses();
        let whole = self.header.protocol == protocol::UDP && !self.header.is_fragment();
        if !whole || !Udp::is_sound(source, destination, &self.payload) {
            return None;
        }
        Udp::read(&self.payload).ok().map(|(_, data)| data)
    }

    /// Header and data of a TCP segment with the right checksum.
    pub fn tcp_segment(&self) -> Option<(Tcp, &[u8])> {
        let (source, destination) = self.addresses();
        let whole = self.header.protocol == protocol::TCP && !self.header.is_fragment();
        if !whole || !Tcp::is_sound(source, destination, &self.payload) {
            return None;
        }
        Tcp::read(&self.payload).ok().map(|(header, _, data)| (header, data))
    }

    /// Header of a TCP segment, whatever its checksum: on a link inside one machine, kernels leave that of their own segments to
    /// the hardware that is not there.
    pub fn tcp_header(&self) -> Option<Tcp> {
        let whole = self.header.protocol == protocol::TCP && !self.header.is_fragment();
        whole.then(|| Tcp::read(&self.payload).ok()).flatten().map(|(header, ..)| header)
    }

    /// The ICMP message, of the packet's version, if its checksum is right.
    pub fn icmp_message(&self) -> Option<Icmp<'_>> {
        let (source, destination) = self.addresses();
        self.quoted_icmp().filter(|_| Icmp::is_sound(source, destination, &self.payload))
    }

    /// The same whatever its checksum: a NAT may quote a message with a stale one.
    pub fn quoted_icmp(&self) -> Option<Icmp<'_>> {
        let whole = self.is_icmp() && !self.header.is_fragment();
        let read = if self.header.source.is_ipv6() { Icmp::read_v6 } else { Icmp::read_v4 };
        whole.then(|| read(&self.payload).ok()).flatten()
    }

    /// Type and code of an ICMP message, as they are numbered in the packet's version.
    pub fn icmp_kind(&self) -> Option<(u8, u8)> {
        self.icmp_message()?;
        self.payload.first_chunk::<2>().map(|[kind, code]| (*kind, *code))
    }

    /// Whether its payload is ICMP of its version.
    pub fn is_icmp(&self) -> bool {
        self.header.protocol == icmp_of(self.header.source)
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.header.source, self.header.destination)
    }
}

fn is_v6(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first >> 4 == 6)
}

/// The number of ICMP in packets with such an address.
fn icmp_of(address: IpAddr) -> u8 {
    if address.is_ipv6() { protocol::ICMPV6 } else { protocol::ICMP }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_datagram_is_read_as_it_was_written() {
        let packet = Packet::udp(at("198.18.0.10:20000"), at("198.19.0.10:53"), b"hello");
        let mut bytes = packet.bytes();
        bytes.extend([0; 7]);
        let read = Packet::read(&bytes).unwrap();
        assert_eq!(read.udp_data(), Some(&b"hello"[..]));
        assert_eq!((read.from(), read.to()), (Some(at("198.18.0.10:20000")), Some(at("198.19.0.10:53"))));
        assert_eq!(read.bytes(), bytes[..bytes.len() - 7]);
    }

    #[test]
    fn a_stale_checksum_is_no_datagram() {
        let mut packet = Packet::udp(at("198.18.0.10:20000"), at("198.19.0.10:53"), b"hello");
        packet.header.source = IpAddr::from([198, 18, 0, 11]);
        assert_eq!(packet.udp_data(), None);
        packet.seal_udp(20000, 53);
        assert!(packet.udp_data().is_some());
        let mut bytes = packet.bytes();
        bytes[12] ^= 1;
        assert_eq!(Packet::read(&bytes), None);
    }

    #[test]
    fn a_later_fragment_has_no_ports() {
        let mut packet = Packet::udp(at("198.18.0.10:20000"), at("198.19.0.10:53"), b"hello");
        packet.header.fragment_offset = 1;
        assert_eq!((packet.from(), packet.udp_data()), (None, None));
    }

    #[test]
    fn fragments_of_ipv6_have_a_header_of_their_own() {
        let mut packet = Packet::udp(at("[2001:2::10]:20000"), at("[2001:2:0:1::10]:53"), b"hello");
        assert_eq!(packet.bytes().len(), 40 + 8 + 5);
        packet.header.dont_fragment = true;
        assert_eq!(Packet::read(&packet.bytes()), Some(packet.clone()));
        packet.header.identification = 0x1_2345;
        packet.header.fragment_offset = 5;
        packet.header.more_fragments = true;
        let bytes = packet.bytes();
        // RFC 8200 section 4.5: next header, 13 bits of offset, flag M, identification.
        assert_eq!(bytes[6], 44);
        assert_eq!(bytes[40..48], [17, 0, 0, 5 << 3 | 1, 0, 1, 0x23, 0x45]);
        assert_eq!(Packet::read(&bytes), Some(packet));
    }

    #[test]
    fn icmp_is_numbered_by_version() {
        let message = Icmp::Unreachable { code: 1, quote: &[] };
        for (from, to, kind) in [("198.18.0.10", "198.19.0.10", 3), ("2001:2::10", "2001:2:0:1::10", 1)] {
            let packet = Packet::icmp(from.parse().unwrap(), to.parse().unwrap(), &message);
            assert_eq!(packet.icmp_kind(), Some((kind, 1)));
            assert_eq!(packet.icmp_message(), Some(message));
        }
    }
}
