//! Fragments put together by a NAT that minds no overlap: later data win (RFC 791 section 3.2).

use std::collections::HashMap;
use std::net::IpAddr;

use weir_nat::Packet;
use weir_nat::packet::Header;

type Key = (IpAddr, IpAddr, u8, u32);

fn key(packet: &Packet) -> Key {
    let header = packet.header;
    (header.source, header.destination, header.protocol, header.identification)
}

/// Fragments in the order of their arrival, by addresses, protocol and identification.
#[derive(Debug, Default)]
pub(super) struct Overlapping {
    parts: HashMap<Key, Vec<Packet>>,
}

impl Overlapping {
    /// Fragments of this packet are there already.
    pub(super) fn knows(&self, packet: &Packet) -> bool {
        self.parts.contains_key(&key(packet))
    }

    /// Takes a packet in. Returns it if it is whole, or the whole packet that it completes.
    pub(super) fn take(&mut self, packet: Packet) -> Option<Packet> {
        let header = packet.header;
        if !header.is_fragment() {
            return Some(packet);
        }
        let key = key(&packet);
        let parts = self.parts.entry(key).or_default();
        parts.push(packet);
        let begin = |part: &Packet| usize::from(part.header.fragment_offset) * 8;
        let end = |part: &Packet| begin(part) + part.payload.len();
        let last = parts.iter().find(|part| !part.header.more_fragments)?;
        let (mut payload, mut there) = (vec![0; end(last)], vec![false; end(last)]);
        for part in parts.iter().filter(|part| end(part) <= payload.len()).collect::<Vec<_>>() {
            payload[begin(part)..end(part)].copy_from_slice(&part.payload);
            there[begin(part)..end(part)].fill(true);
        }
        if there.contains(&false) {
            return None;
        }
        let first = parts.iter().find(|part| part.header.fragment_offset == 0)?.header;
        self.parts.remove(&key);
        Some(Packet { header: Header { more_fragments: false, fragment_offset: 0, ..first }, payload })
    }
}
