//! IPv4 packets as the two ends send and see them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use weir_wire::{Icmp, Ipv4, Tcp, Udp, checksum, protocol};

/// Hop limit of packets that the ends send.
pub const TTL: u8 = 64;

/// One IPv4 packet without options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its header. The total length is computed when it is written.
    pub header: Ipv4,
    /// The bytes after the header.
    pub payload: Vec<u8>,
}

impl Packet {
    /// A packet with this payload.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: Vec<u8>) -> Self {
        let header = Ipv4 {
            tos: 0,
            total_length: 0,
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
    pub fn udp(from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Self {
        let mut payload = vec![0; Udp::LENGTH];
        payload.extend_from_slice(data);
        let mut packet = Packet::new(*from.ip(), *to.ip(), protocol::UDP, payload);
        packet.seal_udp(from.port(), to.port());
        packet
    }

    /// A TCP segment without options.
    pub fn tcp(from: SocketAddrV4, to: SocketAddrV4, header: Tcp, data: &[u8]) -> Self {
        let mut payload = vec![0; Tcp::LENGTH];
        payload.extend_from_slice(data);
        let header = Tcp { source_port: from.port(), destination_port: to.port(), ..header };
        // The buffer begins with room for the header.
        let sealed = header.seal((*from.ip()).into(), (*to.ip()).into(), &mut payload);
        debug_assert!(sealed.is_ok());
        Packet::new(*from.ip(), *to.ip(), protocol::TCP, payload)
    }

    /// A TCP segment with options, of a multiple of four bytes and 40 at most.
    pub fn tcp_with_options(
        from: SocketAddrV4,
        to: SocketAddrV4,
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
    pub fn icmp(source: Ipv4Addr, destination: Ipv4Addr, message: &Icmp<'_>) -> Self {
        let mut payload = vec![0; 1500];
        let length = message.write(source.into(), destination.into(), &mut payload).unwrap_or_default();
        payload.truncate(length);
        Packet::new(source, destination, protocol::ICMP, payload)
    }

    /// Reads a packet, which may be followed by the link's padding. `None` if it is not whole, or its header's checksum is wrong.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = Ipv4::read(bytes).ok()?;
        Ipv4::is_sound(bytes).then(|| Packet { header, payload: payload.to_vec() })
    }

    /// Reads what an ICMP error quotes: the header, and as much as is there of what follows it.
    pub fn read_quoted(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = Ipv4::read_quoted(bytes).ok()?;
        Some(Packet { header, payload: payload.to_vec() })
    }

    /// The packet with its header's length and checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Ipv4::LENGTH];
        bytes.extend_from_slice(&self.payload);
        let total_length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        // The buffer begins with room for the header.
        let written = Ipv4 { total_length, ..self.header }.write(&mut bytes);
        debug_assert!(written.is_ok());
        bytes
    }

    /// Writes UDP ports, length and checksum again, after addresses or data changed.
    pub fn seal_udp(&mut self, from: u16, to: u16) {
        let (source, destination) = (self.header.source, self.header.destination);
        let sealed = Udp::seal((source.into(), from), (destination.into(), to), &mut self.payload);
        debug_assert!(sealed.is_ok());
    }

    /// UDP or TCP source, if the packet carries the ports.
    pub fn from(&self) -> Option<SocketAddrV4> {
        self.ports().map(|(from, _)| SocketAddrV4::new(self.header.source, from))
    }

    /// UDP or TCP destination, if the packet carries the ports.
    pub fn to(&self) -> Option<SocketAddrV4> {
        self.ports().map(|(_, to)| SocketAddrV4::new(self.header.destination, to))
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
        let whole = self.header.protocol == protocol::UDP && self.header.fragment().is_none();
        if !whole || !Udp::is_sound(source, destination, &self.payload) {
            return None;
        }
        Udp::read(&self.payload).ok().map(|(_, data)| data)
    }

    /// Header and data of a TCP segment with the right checksum.
    pub fn tcp_segment(&self) -> Option<(Tcp, &[u8])> {
        let (source, destination) = self.addresses();
        let whole = self.header.protocol == protocol::TCP && self.header.fragment().is_none();
        if !whole || !Tcp::is_sound(source, destination, &self.payload) {
            return None;
        }
        Tcp::read(&self.payload).ok().map(|(header, _, data)| (header, data))
    }

    /// The ICMP message, if its checksum is right.
    pub fn icmp_message(&self) -> Option<Icmp<'_>> {
        let (source, destination) = self.addresses();
        let whole = self.header.protocol == protocol::ICMP && self.header.fragment().is_none();
        if !whole || !Icmp::is_sound(source, destination, &self.payload) {
            return None;
        }
        Icmp::read_v4(&self.payload).ok()
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.header.source.into(), self.header.destination.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddrV4 {
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
        assert_eq!(usize::from(read.header.total_length), bytes.len() - 7);
    }

    #[test]
    fn a_stale_checksum_is_no_datagram() {
        let mut packet = Packet::udp(at("198.18.0.10:20000"), at("198.19.0.10:53"), b"hello");
        packet.header.source = Ipv4Addr::new(198, 18, 0, 11);
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
}
