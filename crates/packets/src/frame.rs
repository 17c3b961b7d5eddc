//! Our frames: what they hold, byte by byte. The sender through packet sockets writes them with this, the generator in the kernel
//! starts from the same [`Template`], and tests compare its frames with these.
//!
//! A frame is Ethernet II, IPv4 (no options, DF, TTL 64) or IPv6, then UDP or a TCP SYN without options, then the tag
//! ([`weir_tag`](crate::shared::weir_tag) says where), then zeros. All checksums are right. Lengths here are without the
//! check sequence that the card adds.

use std::net::IpAddr;

use weir_wire::{Ethernet, Ipv4, Ipv6, Mac, Sum, Tcp, Udp, checksum, ethernet, protocol};

use crate::{Error, Family, Frame, Protocol};

/// Length of Ethernet's check sequence, bytes: [`Frame::bytes`] counts it, a packet socket and an XDP program do not see it.
pub const CHECK_SEQUENCE: usize = 4;

/// Shortest frame with IPv4, check sequence included (RFC 2544 section 9).
pub const LEAST_IPV4: u16 = 64;
/// Shortest frame with IPv6: 20 bytes more, as its header is.
pub const LEAST_IPV6: u16 = 84;
/// Longest frame: a payload of 9000 bytes.
pub const GREATEST: u16 = 9018;

/// The shortest frame there is, bytes: Ethernet's own least over IPv4; what the headers and our mark need over IPv6 (82, told as
/// 84, which is 64 with an IPv6 header instead of IPv4's, as RFC 8219 has it).
pub(crate) fn shortest(family: Family) -> u16 {
    match family {
        Family::Ipv4 => LEAST_IPV4,
        Family::Ipv6 => LEAST_IPV6,
    }
}

/// Time to live of what is sent. Linux's default, so that no gateway treats it specially.
const HOPS: u8 = 64;

/// The mark in a frame (`struct weir_tag`), host byte order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tag {
    /// Cookie of the transfer. A TCP SYN carries its low half.
    pub cookie: u32,
    /// Number of the sending thread (upper four bits), and of the frame among those of that thread, modulo 2^28.
    pub seq: u32,
    /// Number of its flow.
    pub flow: u32,
    /// Low 32 bits of CLOCK_MONOTONIC at sending, ns; 0: not stamped.
    pub sent_ns: u32,
}

/// The fields that differ between the frames of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// The mark.
    pub tag: Tag,
    /// The protocol that carries it.
    pub protocol: Protocol,
    /// From where.
    pub source: IpAddr,
    /// From which port.
    pub source_port: u16,
    /// To where.
    pub destination: IpAddr,
    /// To which port.
    pub destination_port: u16,
}

impl Marked {
    /// True if the frame carries this transfer's cookie, as far as its protocol has room for it.
    #[inline]
    pub fn is_of(&self, cookie: u32) -> bool {
        match self.protocol {
            Protocol::Udp => self.tag.cookie == cookie,
            Protocol::TcpSyn => self.tag.cookie == cookie & 0xffff,
        }
    }
}

/// Bytes that all frames of a transfer have in common, and the sums over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    bytes: Vec<u8>,
    frame: Frame,
    network_sum: Sum,
    transport_sum: Sum,
}

impl Template {
    /// For frames from one Ethernet address to another.
    ///
    /// # Errors
    /// [`Error::Unfit`] if a frame of this length cannot be: below 64 bytes (IPv6: 84) or above 9018.
    pub fn new(frame: Frame, source: Mac, destination: Mac) -> Result<Self, Error> {
        let least = shortest(frame.family);
        if !(least..=GREATEST).contains(&frame.bytes) {
            return Err(Error::Unfit(format!(
                "frames of {} bytes: they must have {least} to {GREATEST}, check sequence included",
                frame.bytes
            )));
        }
        let mut template = Template {
            bytes: vec![0; usize::from(frame.bytes) - CHECK_SEQUENCE],
            frame,
            network_sum: Sum::new(),
            transport_sum: Sum::new(),
        };
        // There is room for every header in the shortest frame, which is what these can complain of.
        template.fill(source, destination).map_err(|e| Error::Unfit(e.to_string()))?;
        Ok(template)
    }

    fn fill(&mut self, source: Mac, destination: Mac) -> Result<(), weir_wire::Error> {
        let Frame { family, protocol: carried, .. } = self.frame;
        let number = match carried {
            Protocol::Udp => protocol::UDP,
            Protocol::TcpSyn => protocol::TCP,
        };
        let transport = self.transport();
        let (transport_length, network) = (self.bytes.len() - transport, &mut self.bytes[Ethernet::LENGTH..]);
        // At most 9014, so it fits all length fields.
        let length = transport_length as u16;
        let ethertype = match family {
            Family::Ipv4 => {
                let header = Ipv4 {
                    tos: 0,
                    total_length: Ipv4::LENGTH as u16 + length,
                    identification: 0,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: HOPS,
                    protocol: number,
                    source: [0; 4].into(),
                    destination: [0; 4].into(),
                };
                header.write(network)?;
                // The checksum is the complement of the sum over all else.
                network[10..12].fill(0);
                self.network_sum = Sum::new().bytes(&network[..Ipv4::LENGTH]);
                ethernet::IPV4
            }
            Family::Ipv6 => {
                let header = Ipv6 {
                    traffic_class: 0,
                    flow_label: 0,
                    payload_length: length,
                    next_header: number,
                    hop_limit: HOPS,
                    source: [0u8; 16].into(),
                    destination: [0u8; 16].into(),
                };
                header.write(network)?;
                ethernet::IPV6
            }
        };
        Ethernet { destination, source, ethertype }.write(&mut self.bytes)?;
        let segment = &mut self.bytes[transport..];
        match carried {
            Protocol::Udp => segment[4..6].copy_from_slice(&length.to_be_bytes()),
            Protocol::TcpSyn => {
                // Data offset in units of four bytes, then the flags.
                segment[12] = (Tcp::LENGTH as u8 / 4) << 4;
                segment[13] = Tcp::SYN;
            }
        }
        // The sum covers the pseudo header except for its addresses.
        self.transport_sum = Sum::new().word(u16::from(number)).word(length).bytes(segment);
        Ok(())
    }

    /// The frame without addresses, ports, tag and checksums, which are zero.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Which frames it is for.
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Sum over the IPv4 header as it is in the template; of nothing for IPv6.
    pub fn network_sum(&self) -> Sum {
        self.network_sum
    }

    /// Sum over what the template has of the pseudo header (protocol and length), the transport header and the payload.
    pub fn transport_sum(&self) -> Sum {
        self.transport_sum
    }

    /// Returns the beginning of the transport header, bytes from the beginning of the frame.
    pub fn transport(&self) -> usize {
        Ethernet::LENGTH
            + match self.frame.family {
                Family::Ipv4 => Ipv4::LENGTH,
                Family::Ipv6 => Ipv6::LENGTH,
            }
    }

    /// Writes what differs into a copy of the template, which may have been marked before.
    ///
    /// # Panics
    /// If `buffer` is shorter than the template, or the addresses or the protocol are not those of the template's kind.
    #[inline]
    pub fn mark(&self, buffer: &mut [u8], mark: &Marked) {
        assert!(mark.protocol == self.frame.protocol, "the template is for {:?}", self.frame.protocol);
        let (network, segment) = buffer[Ethernet::LENGTH..].split_at_mut(self.transport() - Ethernet::LENGTH);
        let addresses = match (self.frame.family, mark.source, mark.destination) {
            (Family::Ipv4, IpAddr::V4(source), IpAddr::V4(destination)) => {
                network[12..16].copy_from_slice(&source.octets());
                network[16..20].copy_from_slice(&destination.octets());
                let sum = self.network_sum.bytes(&network[12..20]);
                network[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
                &network[12..20]
            }
            (Family::Ipv6, IpAddr::V6(source), IpAddr::V6(destination)) => {
                network[8..24].copy_from_slice(&source.octets());
                network[24..40].copy_from_slice(&destination.octets());
                &network[8..40]
            }
            (family, source, destination) => panic!("{source} to {destination} in a frame for {family:?}"),
        };
        segment[..2].copy_from_slice(&mark.source_port.to_be_bytes());
        segment[2..4].copy_from_slice(&mark.destination_port.to_be_bytes());
        let sum = self.transport_sum.bytes(addresses).bytes(&segment[..4]);
        write_tag(segment, mark, sum);
    }
}

/// Writes the tag, and the checksum of the segment, of which `sum` is the sum over all but the tag.
#[inline]
fn write_tag(segment: &mut [u8], mark: &Marked, sum: Sum) {
    let tag = &mark.tag;
    let (seq, flow, sent) = (tag.seq.to_be_bytes(), tag.flow.to_be_bytes(), tag.sent_ns.to_be_bytes());
    match mark.protocol {
        Protocol::Udp => {
            let place = &mut segment[Udp::LENGTH..Udp::LENGTH + 16];
            place[..4].copy_from_slice(&tag.cookie.to_be_bytes());
            place[4..8].copy_from_slice(&seq);
            place[8..12].copy_from_slice(&flow);
            place[12..].copy_from_slice(&sent);
            let value = checksum::udp_value(sum.bytes(place).checksum());
            segment[6..8].copy_from_slice(&value.to_be_bytes());
        }
        Protocol::TcpSyn => {
            let window = tag.cookie as u16;
            segment[4..8].copy_from_slice(&seq);
            segment[8..12].copy_from_slice(&sent);
            segment[14..16].copy_from_slice(&window.to_be_bytes());
            segment[Tcp::LENGTH..Tcp::LENGTH + 4].copy_from_slice(&flow);
            let sum = sum.bytes(&seq).bytes(&sent).bytes(&flow).word(window);
            segment[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
        }
    }
}

/// Reads a frame. `None` if it cannot be one of ours: other protocols, IP options or extension headers, fragments, TCP options or
/// other flags than SYN, lengths that contradict each other, no room for a tag. Whether the cookie is the right one is another
/// question ([`Marked::is_of`]). Checksums are not looked at: they are for the card and the stack.
pub fn read(frame: &[u8]) -> Option<Marked> {
    Some(read_captured(frame, frame.len())?.marked)
}

/// A frame of which perhaps only the beginning was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Captured {
    /// The fields read from it.
    pub marked: Marked,
    /// Length of the frame, check sequence included, without padding.
    pub bytes: usize,
}

/// Bytes of the longest headers with a tag: Ethernet, IPv6, UDP and 16 bytes, or TCP and 4.
pub(crate) const HEAD: usize = Ethernet::LENGTH + Ipv6::LENGTH + 24;

/// As [`read`], from the first bytes of a frame ([`HEAD`] are enough) that is `length` bytes long, without check sequence.
#[inline]
pub(crate) fn read_captured(head: &[u8], length: usize) -> Option<Captured> {
    let (ethernet, packet) = Ethernet::read(head).ok()?;
    let packet_length = length.checked_sub(Ethernet::LENGTH)?;
    let (source, destination, number, segment, header_length, ip_length) = match ethernet.ethertype {
        ethernet::IPV4 => {
            let (header, payload) = Ipv4::read_quoted(packet).ok()?;
            // Version 4 without options; neither a fragment nor the flag that must be zero.
            if packet[0] != 0x45 || header.fragment().is_some() || packet[6] & 0x80 != 0 {
                return None;
            }
            let (source, destination) = (IpAddr::from(header.source), IpAddr::from(header.destination));
            let total = usize::from(header.total_length);
            (source, destination, header.protocol, payload, Ipv4::LENGTH, total)
        }
        ethernet::IPV6 => {
            let (header, payload) = Ipv6::read_quoted(packet).ok()?;
            let (source, destination) = (IpAddr::from(header.source), IpAddr::from(header.destination));
            let total = Ipv6::LENGTH + usize::from(header.payload_length);
            (source, destination, header.next_header, payload, Ipv6::LENGTH, total)
        }
        _ => return None,
    };
    if ip_length > packet_length {
        return None;
    }
    let (ports, protocol, tag) = read_segment(number, segment, ip_length.checked_sub(header_length)?)?;
    let (source_port, destination_port) = ports;
    let marked = Marked { tag, protocol, source, source_port, destination, destination_port };
    Some(Captured { marked, bytes: Ethernet::LENGTH + ip_length + CHECK_SEQUENCE })
}

/// The transport header and the tag, from the first bytes of a segment that is `length` bytes long.
#[inline]
fn read_segment(number: u8, segment: &[u8], length: usize) -> Option<((u16, u16), Protocol, Tag)> {
    let word = |from: usize, bytes: &[u8]| Some(u32::from_be_bytes(*bytes.get(from..)?.first_chunk()?));
    match number {
        protocol::UDP => {
            let (header, payload) = Udp::read_quoted(segment).ok()?;
            if usize::from(header.length) != length {
                return None;
            }
            let tag = Tag {
                cookie: word(0, payload)?,
                seq: word(4, payload)?,
                flow: word(8, payload)?,
                sent_ns: word(12, payload)?,
            };
            Some(((header.source_port, header.destination_port), Protocol::Udp, tag))
        }
        protocol::TCP => {
            let (header, _, payload) = Tcp::read(segment).ok()?;
            // No options, the reserved bits zero, SYN alone.
            if segment[12..14] != [0x50, Tcp::SYN] {
                return None;
            }
            let tag = Tag {
                cookie: u32::from(header.window),
                seq: header.sequence,
                flow: word(0, payload)?,
                sent_ns: header.acknowledgement,
            };
            Some(((header.source_port, header.destination_port), Protocol::TcpSyn, tag))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
