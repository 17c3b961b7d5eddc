//! Packets as they are built here, sound or not.

use std::net::IpAddr;

use weir_wire::checksum::{Sum, transport, updated_bytes};

pub(crate) use weir_wire::protocol::{ICMP, ICMPV6, TCP, UDP};

/// For experiments (RFC 3692): the fast path leaves it to the kernel.
pub(crate) const MARKER: u8 = 253;
/// The fragment header of IPv6 (RFC 8200 section 4.5).
pub(crate) const FRAGMENT: u8 = 44;

/// The fields of an IP header that are drawn; all others follow.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// Identification of IPv4, flow label of IPv6.
    pub(crate) number: u32,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// Flags and offset as in IPv4's header. IPv6 gets a fragment header if it is more than "do not fragment".
    pub(crate) fragment: u16,
    /// Options of IPv4, or extension headers without their first two bytes: number, then content.
    pub(crate) options: Vec<u8>,
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// Added to the length.
    pub(crate) lie: i16,
    pub(crate) has_wrong_sum: bool,
}

impl Header {
    pub(crate) fn new(source: IpAddr, destination: IpAddr, protocol: u8, number: u32) -> Header {
        Header {
            source,
            destination,
            protocol,
            number,
            tos: 0,
            ttl: 64,
            fragment: 0,
            options: Vec::new(),
            extensions: Vec::new(),
            lie: 0,
            has_wrong_sum: false,
        }
    }

    pub(crate) fn packet(&self, payload: &[u8]) -> Vec<u8> {
        if self.source.is_ipv4() { self.packet4(payload) } else { self.packet6(payload) }
    }

    fn packet4(&self, payload: &[u8]) -> Vec<u8> {
        let header = 20 + self.options.len();
        let total = ((header + payload.len()) as u16).wrapping_add_signed(self.lie);
        let mut ip = vec![0x40 + (header / 4) as u8, self.tos];
        for word in [total, self.number as u16, self.fragment] {
            ip.extend(word.to_be_bytes());
        }
        ip.extend([self.ttl, self.protocol, 0, 0]);
        ip.extend(octets(self.source));
        ip.extend(octets(self.destination));
        ip.extend(&self.options);
        let sum = Sum::new().bytes(&ip).checksum().wrapping_add(u16::from(self.has_wrong_sum));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend(payload);
        ip
    }

    fn packet6(&self, payload: &[u8]) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if self.fragment & 0x3fff != 0 {
            // The offset stands three bits further left than IPv4's, and "more" is the lowest bit.
            let offset = (self.fragment & 0x1fff) << 3 | (self.fragment >> 13 & 1);
            let mut content = offset.to_be_bytes().to_vec();
            content.extend(self.number.to_be_bytes());
            extensions.push((FRAGMENT, content));
        }
        let mut next = self.protocol;
        let mut chain = Vec::new();
        for (kind, content) in extensions.iter().rev() {
            let length = if *kind == FRAGMENT { 0 } else { ((content.len() + 2) / 8 - 1) as u8 };
            let mut whole = vec![next, length];
            whole.extend(content);
            whole.extend(&chain);
            chain = whole;
            next = *kind;
        }
        let length = ((chain.len() + payload.len()) as u16).wrapping_add_signed(self.lie);
        let first = 6 << 28 | u32::from(self.tos) << 20 | (self.number & 0xf_ffff);
        let mut ip = first.to_be_bytes().to_vec();
        ip.extend(length.to_be_bytes());
        ip.extend([next, self.ttl]);
        ip.extend(octets(self.source));
        ip.extend(octets(self.destination));
        ip.extend(chain);
        ip.extend(payload);
        ip
    }
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// Follows a case on its way.
pub(crate) fn marker(source: IpAddr, destination: IpAddr, number: u32) -> Vec<u8> {
    Header::new(source, destination, MARKER, number).packet(&number.to_be_bytes())
}

/// A transport header with a checksum over it and the payload, at this place.
pub(crate) fn seal(header: &Header, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at..at + 2].fill(0);
    let mut sum = transport(header.source, header.destination, header.protocol, &bytes);
    if header.protocol == UDP && sum == 0 {
        sum = 0xffff;
    }
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Two ends of a flow, addresses and ports.
pub(crate) type Ends = [(IpAddr, u16); 2];

/// True if conntrack takes the checksum of a plain TCP or UDP packet for wrong: it sums up all that follows the IP header
/// (nf_ip_checksum, nf_ip6_checksum in net/netfilter/utils.c).
pub(crate) fn has_wrong_transport_sum(header: &Header, payload: &[u8]) -> bool {
    if header.protocol == UDP && payload.get(6..8) == Some(&[0, 0]) {
        return false;
    }
    transport(header.source, header.destination, header.protocol, payload) != 0
}

/// The packet with the ends that it leaves with, a hop later: each checksum takes in the difference alone, so that a wrong one stays
/// wrong by as much.
pub(crate) fn translated(packet: &[u8], to: &Ends) -> Vec<u8> {
    let mut new = packet.to_vec();
    let (is_ipv4, net) = if packet[0] >> 4 == 4 { (true, 20) } else { (false, 40) };
    let (addresses, protocol) = if is_ipv4 { (12..20, packet[9]) } else { (8..40, packet[6]) };
    let mut both = octets(to[0].0);
    both.extend(octets(to[1].0));
    new[addresses.clone()].copy_from_slice(&both);
    for (n, (_, port)) in to.iter().enumerate() {
        new[net + 2 * n..net + 2 * n + 2].copy_from_slice(&port.to_be_bytes());
    }
    if is_ipv4 {
        new[8] -= 1;
        new[10..12].fill(0);
        let sum = Sum::new().bytes(&new[..20]).checksum();
        new[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        new[7] -= 1;
    }
    let at = net + if protocol == UDP { 6 } else { 16 };
    let old = u16::from_be_bytes([packet[at], packet[at + 1]]);
    if protocol == UDP && old == 0 {
        return new;
    }
    let sum = updated_bytes(old, &packet[addresses.clone()], &new[addresses]);
    let mut sum = updated_bytes(sum, &packet[net..net + 4], &new[net..net + 4]);
    if protocol == UDP && sum == 0 {
        sum = 0xffff;
    }
    new[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    new
}
