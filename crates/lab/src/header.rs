//! A router's view of a packet: which connection it belongs to, and which fragment of which datagram it is.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Protocols with ports in their first four bytes: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// IPv6's fragment header (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;

/// The headers of one packet, as far as a choice depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Head {
    source: [u8; 16],
    destination: [u8; 16],
    protocol: u8,
    ports: Option<(u16, u16)>,
    /// Which part of a datagram it is, if it is not a whole one.
    pub(crate) fragment: Option<Fragment>,
}

/// A part of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fragment {
    identification: u32,
    /// It begins the datagram.
    pub(crate) first: bool,
    /// It ends the datagram.
    pub(crate) last: bool,
}

impl Head {
    /// Reads the first bytes of a packet; `None` if they are neither IPv4 nor IPv6.
    pub(crate) fn read(bytes: &[u8]) -> Option<Head> {
        match bytes.first()? >> 4 {
            4 => Head::read_v4(bytes),
            6 => Head::read_v6(bytes),
            _ => None,
        }
    }

    /// RFC 791 section 3.1.
    fn read_v4(bytes: &[u8]) -> Option<Head> {
        let header = bytes.get(..20)?;
        let length = usize::from(header[0] & 0x0f) * 4;
        let offset = u16::from_be_bytes([header[6], header[7]]);
        let (more, at) = (offset & 0x2000 != 0, offset & 0x1fff);
        let fragment = (more || at != 0).then(|| Fragment {
            identification: u32::from(u16::from_be_bytes([header[4], header[5]])),
            first: at == 0,
            last: !more,
        });
        let protocol = header[9];
        let address = |at: usize| {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&header[at..at + 4]);
            address
        };
        let ports = ports(protocol, fragment, bytes.get(length..)?);
        Some(Head { source: address(12), destination: address(16), protocol, ports, fragment })
    }

    /// RFC 8200 sections 3 and 4.5. Other extension headers are not followed: such packets have no ports here.
    fn read_v6(bytes: &[u8]) -> Option<Head> {
        let header = bytes.get(..40)?;
        let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok();
        let (mut protocol, mut payload, mut fragment) = (header[6], &bytes[40..], None);
        if protocol == FRAGMENT {
            let part = payload.get(..8)?;
            let offset = u16::from_be_bytes([part[2], part[3]]);
            fragment = Some(Fragment {
                identification: u32::from_be_bytes([part[4], part[5], part[6], part[7]]),
                first: offset & 0xfff8 == 0,
                last: offset & 1 == 0,
            });
            (protocol, payload) = (part[0], &payload[8..]);
        }
        let ports = ports(protocol, fragment, payload);
        Some(Head { source: address(8)?, destination: address(24)?, protocol, ports, fragment })
    }

    /// A number that is the same for both directions of a connection, and for every fragment between two addresses, as
    /// routers choose among several next hops (all but the first fragment have no ports).
    pub(crate) fn connection(&self, seed: u64) -> u64 {
        let (source, destination) = self.ports.unwrap_or_default();
        let ends = [(self.source, source), (self.destination, destination)];
        let mut hasher = DefaultHasher::new();
        (seed, ends.iter().min(), ends.iter().max(), self.protocol).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the fields that the fragments of one datagram have in common (RFC 791 section 2.3).
    pub(crate) fn datagram(&self) -> Datagram {
        let identification = self.fragment.map_or(0, |fragment| fragment.identification);
        (self.source, self.destination, self.protocol, identification)
    }
}

/// Source, destination, protocol, identification.
pub(crate) type Datagram = ([u8; 16], [u8; 16], u8, u32);

/// Reads the ports of whole packets only, so that all fragments are treated alike.
fn ports(protocol: u8, fragment: Option<Fragment>, payload: &[u8]) -> Option<(u16, u16)> {
    let ports = payload.get(..4).filter(|_| fragment.is_none() && WITH_PORTS.contains(&protocol))?;
    Some((u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An IPv4 UDP packet from 198.18.0.a to 198.18.0.b; `offset` as in its header.
    pub(crate) fn udp(a: u8, b: u8, ports: (u16, u16), identification: u16, offset: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28];
        packet.extend(identification.to_be_bytes());
        packet.extend(offset.to_be_bytes());
        packet.extend([64, 17, 0, 0, 198, 18, 0, a, 198, 18, 0, b]);
        packet.extend(ports.0.to_be_bytes());
        packet.extend(ports.1.to_be_bytes());
        packet
    }

    #[test]
    fn both_directions_are_one_connection_and_other_ports_another() {
        let there = Head::read(&udp(1, 2, (1000, 2000), 7, 0x4000)).unwrap();
        let back = Head::read(&udp(2, 1, (2000, 1000), 9, 0x4000)).unwrap();
        assert_eq!(there.connection(5), back.connection(5));
        assert_ne!(there.connection(5), there.connection(6));
        let other = Head::read(&udp(1, 2, (1001, 2000), 7, 0x4000)).unwrap();
        assert_ne!(there.connection(5), other.connection(5));
        // Swapped ports are other ends.
        let crossed = Head::read(&udp(1, 2, (2000, 1000), 7, 0x4000)).unwrap();
        assert_ne!(there.connection(5), crossed.connection(5));
        assert_eq!(there.fragment, None);
    }

    #[test]
    fn a_connection_s_number_chooses_evenly() {
        let one = |port| Head::read(&udp(1, 2, (port, 443), 0, 0)).unwrap().connection(3) % 3;
        let mut shares = [0u32; 3];
        (32_768..62_768).for_each(|port| shares[one(port) as usize] += 1);
        // 30,000 draws with p = 1/3 have a standard deviation of 82: 5 of them.
        assert!(shares.iter().all(|n| n.abs_diff(10_000) < 410), "{shares:?}");
    }

    #[test]
    fn fragments_are_known_by_their_place() {
        let read = |offset| Head::read(&udp(1, 2, (1, 2), 77, offset)).unwrap();
        let place = |offset| read(offset).fragment.map(|f| (f.first, f.last));
        assert_eq!(place(0x2000), Some((true, false)));
        assert_eq!(place(0x2000 | 185), Some((false, false)));
        assert_eq!(place(370), Some((false, true)));
        assert_eq!(read(0x2000).datagram(), read(370).datagram());
        assert_eq!(read(0x2000).connection(1), read(370).connection(1));
        // RFC 8200: next header 44, then UDP; offset 1448 and more; identification 0x01020304.
        let mut v6 = vec![0x60, 0, 0, 0, 0, 12, 44, 64];
        v6.extend([1; 16]);
        v6.extend([2; 16]);
        v6.extend([17, 0, 0x05, 0xa9, 1, 2, 3, 4, 9, 9, 9, 9]);
        let head = Head::read(&v6).unwrap();
        assert_eq!(
            head.fragment.map(|f| (f.first, f.last, f.identification)),
            Some((false, false, 0x0102_0304))
        );
        assert_eq!((head.protocol, head.ports), (17, None));
    }

    #[test]
    fn what_is_cut_short_or_no_packet_is_none() {
        let whole = udp(1, 2, (1, 2), 0, 0);
        for length in 0..20 {
            assert_eq!(Head::read(&whole[..length]), None, "{length}");
        }
        assert!(Head::read(&whole[..21]).unwrap().ports.is_none());
        assert_eq!(Head::read(&[0x75; 64]), None);
        assert_eq!(Head::read(&[0x60; 47]).map(|h| h.fragment), Some(None));
        // A header length beyond the packet.
        let mut long = whole.clone();
        long[0] = 0x4f;
        assert_eq!(Head::read(&long), None);
    }
}
