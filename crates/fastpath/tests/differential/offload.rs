//! Packets that leave work to an interface: segments that travel as one super-packet (GSO), and checksums that are not written yet.

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use weir_wire::checksum::Sum;

use crate::case::{Case, fault_header};
use crate::flow::{ACK, CWR, ECE, FIN, Flow, PSH, RST, URG};
use crate::packet::{Header, TCP, UDP};
use crate::side::End;

const ETHERNET: usize = 14;
/// Payload at most, bytes: three of them fit the window.
const LONGEST: usize = 20_000;
/// Segments at most, which wait at once at the other end (UDP_MAX_SEGMENTS is 128).
const SEGMENTS: usize = 30;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM: the packet holds the sum of its pseudo header only.
const NEEDS_SUM: u8 = 1;
/// VIRTIO_NET_HDR_F_DATA_VALID.
const VALID_SUM: u8 = 2;
/// VIRTIO_NET_HDR_GSO_*.
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP_L4: u8 = 5;
const ECN: u8 = 0x80;

/// `struct virtio_net_hdr` (include/uapi/linux/virtio_net.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offload {
    flags: u8,
    kind: u8,
    /// Bytes that the kernel keeps in one piece.
    linear: u16,
    /// Payload of a segment, bytes.
    segment: u16,
    /// The place where the sum begins, and the one where it is written from there.
    sum_at: u16,
    sum_within: u16,
}

impl Offload {
    pub(crate) const BYTES: usize = 10;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [self.flags, self.kind, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.linear, self.segment, self.sum_at, self.sum_within];
        for (n, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * n..4 + 2 * n].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Without the linear part of a packet that has arrived: programs read one that lies in pieces, and make it longer.
    pub(crate) fn of_arrival(bytes: [u8; Self::BYTES]) -> Offload {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let (segment, sum_at, sum_within) = (word(4), word(6), word(8));
        Offload { flags: bytes[0], kind: bytes[1], linear: 0, segment, sum_at, sum_within }
    }

    /// Without the receiver's own finding that the sum is right: GRO makes it, and not for a packet with padding.
    pub(crate) fn unchecked(self) -> Offload {
        Offload { flags: self.flags & !VALID_SUM, ..self }
    }

    pub(crate) fn has_segments(self) -> bool {
        self.kind != 0
    }
}

/// A packet of a flow that leaves work to the interface: mostly a super-packet, sound or not.
pub(crate) fn draw(random: &mut ChaCha8Rng, flow: &Flow, from: End, number: u32) -> Case {
    let mut header = flow.header(from, number);
    let is_ipv4 = header.source.is_ipv4();
    let is_unusual = fault_header(random, &mut header, is_ipv4);
    // Longer than the way allows, too: the kernel reports that, or cuts it into fragments.
    let segment = *[48, 536, 1000, 1300, 1300, 1300, 1400, 1448, 2000, 9000].choose(random).unwrap();
    let is_super = random.random_bool(0.8);
    let payload = payload(random, segment, is_super);
    let flags = *[ACK, ACK, ACK, ACK | PSH, ACK | PSH, ACK | PSH | CWR, ACK | ECE].choose(random).unwrap();
    let flags = match random.random_range(0..30) {
        0 => FIN | ACK,
        1 => FIN | ACK | PSH,
        2 => RST | ACK,
        3 => URG | ACK,
        _ => flags,
    };
    let mut upper = upper(random, flow, from, flags, &payload);
    header.lie = lie(random, &header, upper.len(), segment, is_super);
    // The kernel completes a sum of its own for TCP; of unusual headers it does not find the place.
    let needs_sum = flow.protocol == UDP || !is_super || is_unusual || random.random_bool(0.8);
    let sum_within = if flow.protocol == TCP { 16 } else { 6 };
    if needs_sum {
        let sum = pseudo_sum(random, &header, upper.len());
        upper[sum_within..sum_within + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let packet = header.packet(&upper);
    let sum_at = ETHERNET + packet.len() - upper.len();
    let whole = ETHERNET + packet.len();
    let mut offload = Offload {
        linear: *[0, whole.min(sum_at + 20), whole / 2, whole].choose(random).unwrap() as u16,
        ..Offload::default()
    };
    if needs_sum {
        (offload.flags, offload.sum_at, offload.sum_within) = (NEEDS_SUM, sum_at as u16, sum_within as u16);
    }
    if is_super || random.random_bool(0.5) {
        (offload.kind, offload.segment) = (kind(random, flow.protocol, is_ipv4), segment as u16);
    }
    let is_whole = header.lie == 0 || is_silent(&header, &packet, flow.protocol);
    let is_end = flow.protocol == TCP && flags & (FIN | RST) != 0;
    let is_counted = flow.protocol == TCP && is_whole && flags & RST == 0;
    let takes = payload.len() as u32 + u32::from(flags & FIN != 0);
    let sound_end = is_end && is_whole && !is_unusual && header.ttl > 2 && flags & RST == 0;
    Case {
        offload,
        is_super,
        length: if is_counted { takes } else { 0 },
        ends_flow: is_end,
        sound_end: sound_end.then_some(flags),
        ..Case::of(from, packet)
    }
}

/// One segment, or several.
fn payload(random: &mut ChaCha8Rng, segment: usize, is_super: bool) -> Vec<u8> {
    let length = if is_super {
        random.random_range(segment + 1..=LONGEST.min(SEGMENTS * segment))
    } else {
        random.random_range(1..=segment.min(1300))
    };
    (0..length).map(|_| random.random()).collect()
}

fn upper(random: &mut ChaCha8Rng, flow: &Flow, from: End, flags: u8, payload: &[u8]) -> Vec<u8> {
    if flow.protocol == TCP {
        let options: &[u8] =
            if random.random_bool(0.3) { &[1, 1, 8, 10, 0, 0, 1, 0, 0, 0, 0, 9] } else { &[] };
        return flow.next_segment(from, flags, options, payload);
    }
    let mut udp = flow.datagram(from, payload);
    let length = udp.len() as u16;
    let length = match random.random_range(0..20) {
        0 => length / 2,
        1 => length + 1,
        2 => 0,
        _ => length,
    };
    udp[4..6].copy_from_slice(&length.to_be_bytes());
    udp
}

/// Added to the length field: its value may be less than the first segment, or 0.
fn lie(random: &mut ChaCha8Rng, header: &Header, upper: usize, segment: usize, is_super: bool) -> i16 {
    if !is_super {
        // A checksum to be written would cover the bytes behind it, too.
        return header.lie.max(0);
    }
    let all = if header.source.is_ipv4() { 20 + header.options.len() } else { 0 } + upper;
    match random.random_range(0..30) {
        0 => -1,
        1 => -(segment as i16),
        2 => -(random.random_range(1..all) as i16),
        3 if header.extensions.is_empty() => -(all as i16),
        4 => 1,
        _ => header.lie,
    }
}

/// Super-packets of TCP may say 0, as those of more than 64 KiB do; IPv6 needs an extension header for that.
fn is_silent(header: &Header, packet: &[u8], protocol: u8) -> bool {
    header.source.is_ipv4() && protocol == TCP && packet[2..4] == [0, 0]
}

/// The value in the place of the checksum until it is written; sometimes wrong.
fn pseudo_sum(random: &mut ChaCha8Rng, header: &Header, upper: usize) -> u16 {
    match random.random_range(0..30) {
        0 => 0,
        1 => random.random(),
        _ => Sum::pseudo(header.source, header.destination, header.protocol, upper as u32).folded(),
    }
}

fn kind(random: &mut ChaCha8Rng, protocol: u8, is_ipv4: bool) -> u8 {
    match (protocol, is_ipv4) {
        (UDP, _) => UDP_L4,
        (_, true) => TCPV4 | if random.random_bool(0.1) { ECN } else { 0 },
        (_, false) => TCPV6 | if random.random_bool(0.1) { ECN } else { 0 },
    }
}
