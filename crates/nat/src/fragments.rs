//! Fragments of packets (RFC 791 section 3.2, RFC 8200 section 4.5): cut by an experiment, and put together where they arrive.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::Packet;
use crate::packet::Header;

/// Cuts a packet into pieces of at most `length` bytes of payload each, a multiple of 8. One piece if it fits.
pub fn split(packet: &Packet, length: usize) -> Vec<Packet> {
    let length = (length & !7).max(8);
    let count = packet.payload.len().div_ceil(length).max(1);
    let whole = packet.header;
    let pieces = packet.payload.chunks(length).enumerate().map(|(n, payload)| {
        let mut header = whole;
        // A payload has at most 65,515 bytes: its offset in units of 8 fits.
        header.fragment_offset = whole.fragment_offset + u16::try_from(n * length / 8).unwrap_or(u16::MAX);
        header.more_fragments = whole.more_fragments || n + 1 < count;
        Packet { header, payload: payload.to_vec() }
    });
    pieces.collect()
}

/// Identity of a packet that was cut.
type Key = (IpAddr, IpAddr, u8, u32);

/// Fragments of packets that are not whole yet, in any order. Overlapping ones
/// complete nothing.
#[derive(Debug, Default)]
pub struct Reassembly {
    parts: BTreeMap<Key, BTreeMap<u16, Packet>>,
}

impl Reassembly {
    /// Takes a packet in. Returns it if it is whole, or the whole packet that it completes.
    pub fn take(&mut self, packet: Packet) -> Option<Packet> {
        if !packet.header.is_fragment() {
            return Some(packet);
        }
        let key = key(&packet);
        let parts = self.parts.entry(key).or_default();
        parts.insert(packet.header.fragment_offset, packet);
        let mut payload = Vec::new();
        for (offset, part) in parts.iter() {
            if usize::from(*offset) * 8 != payload.len() {
                return None;
            }
            payload.extend_from_slice(&part.payload);
        }
        let (_, last) = parts.last_key_value()?;
        if last.header.more_fragments {
            return None;
        }
        let header = parts.get(&0)?.header;
        self.parts.remove(&key);
        let header = Header { more_fragments: false, fragment_offset: 0, ..header };
        Some(Packet { header, payload })
    }

    /// Fragments of this packet are there already.
    pub fn knows(&self, packet: &Packet) -> bool {
        self.parts.contains_key(&key(packet))
    }
}

fn key(packet: &Packet) -> Key {
    let header = packet.header;
    (header.source, header.destination, header.protocol, header.identification)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_together_in_any_order() {
        let [from, to] = ["198.18.0.10:20000", "198.19.0.10:53"].map(|a| a.parse().unwrap());
        let data: Vec<u8> = (0..2000_u16).map(|n| n as u8).collect();
        let packet = Packet::udp(from, to, &data);
        let pieces = split(&packet, 803);
        assert_eq!(pieces.iter().map(|p| p.payload.len()).collect::<Vec<_>>(), [800, 800, 408]);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut reassembly = Reassembly::default();
            let mut whole = order.into_iter().filter_map(|n| reassembly.take(pieces[n].clone()));
            assert_eq!(whole.next().unwrap().udp_data(), Some(&data[..]), "{order:?}");
            assert_eq!(whole.next(), None);
        }
        assert_eq!(split(&packet, 4000), [packet]);
    }

    #[test]
    fn a_gap_completes_nothing() {
        let [from, to] = ["198.18.0.10:20000", "198.19.0.10:53"].map(|a| a.parse().unwrap());
        let pieces = split(&Packet::udp(from, to, &[0; 2000]), 800);
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.take(pieces[0].clone()), None);
        assert_eq!(reassembly.take(pieces[2].clone()), None);
        assert!(reassembly.knows(&pieces[1]));
    }
}
