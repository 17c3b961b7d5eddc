//! Packets of a translated host, sound and not.

use std::net::IpAddr;

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use weir_wire::checksum::Sum;

use crate::packet::{FRAGMENT, Header, ICMP, ICMPV6, TCP, UDP, octets, seal};
use crate::site::{Addresses, End};

/// Without a checksum over the addresses (GRE, SCTP), and with one that neither side corrects (DCCP) or nft alone (UDP-Lite).
const OTHERS: [u8; 4] = [47, 132, 33, 136];

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) from: End,
    pub(crate) packets: Vec<Vec<u8>>,
    /// For an ICMP error: as it must arrive.
    pub(crate) error: Option<Vec<u8>>,
}

/// Source and destination before and behind the gateway.
fn ends(from: End, a: &Addresses) -> [[IpAddr; 2]; 2] {
    match from {
        End::Inside => [[a.inside, a.outside], [a.image, a.outside]],
        End::Outside => [[a.outside, a.image], [a.outside, a.inside]],
    }
}

impl Case {
    pub(crate) fn draw(random: &mut ChaCha8Rng, addresses: &Addresses, number: u32) -> Case {
        let from = *[End::Inside, End::Outside].choose(random).unwrap();
        if random.random_bool(0.12) {
            return error(random, from, addresses, number);
        }
        let [[source, destination], _] = ends(from, addresses);
        let is_ipv4 = source.is_ipv4();
        let icmp = if is_ipv4 { ICMP } else { ICMPV6 };
        let other = *OTHERS.choose(random).unwrap();
        let protocol = *[TCP, TCP, TCP, UDP, UDP, UDP, icmp, other].choose(random).unwrap();
        let mut header = Header::new(source, destination, protocol, number);
        let upper = upper(random, &header);
        fault(random, &mut header);
        let packets = if random.random_bool(0.06) && upper.len() > 48 && header.options.is_empty() {
            fragments(random, &Header { extensions: Vec::new(), ..header }, &upper)
        } else {
            vec![header.packet(&upper)]
        };
        Case { from, packets, error: None }
    }
}

/// A transport header and payload.
fn upper(random: &mut ChaCha8Rng, header: &Header) -> Vec<u8> {
    let length = *[0, 1, 2, 7, 100, 501, 1300].choose(random).unwrap();
    let payload: Vec<u8> = (0..length).map(|_| random.random()).collect();
    let ports: [u8; 4] = random.random();
    let mut bytes = ports.to_vec();
    let at = match header.protocol {
        TCP => {
            bytes.extend(random.random::<[u8; 8]>());
            bytes.extend([0x50, random.random(), 1, 0, 0, 0, 0, 0]);
            16
        }
        UDP | 136 => {
            bytes.extend((8 + payload.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
            6
        }
        ICMP | ICMPV6 => {
            let kinds = if header.protocol == ICMP { [8, 0, 13] } else { [128, 129, 200] };
            bytes = vec![*kinds.choose(random).unwrap(), 0, 0, 0, 1, 2, 3, 4];
            2
        }
        33 => {
            bytes.extend([4, 0, 0, 0, 0, 0, 0, 0]);
            6
        }
        _ => {
            bytes.extend(payload);
            return bytes;
        }
    };
    bytes.extend(payload);
    bytes = summed(header, bytes, at);
    match random.random_range(0..24) {
        0..3 if header.protocol == UDP => bytes[6..8].fill(0),
        // Ends of the range, which sums in one's complement write in two ways.
        3 if header.protocol != UDP => bytes[at..at + 2].fill(0xff),
        4 if header.protocol != UDP => bytes[at..at + 2].fill(0),
        5 => bytes[at] ^= random.random_range(1..=255_u8),
        6 => bytes.truncate(random.random_range(0..bytes.len())),
        // A payload that makes the checksum of UDP nothing, which is written as all ones.
        7 if header.protocol == UDP && bytes.len() >= 10 => {
            bytes[8..10].fill(0);
            bytes = seal(header, bytes, at);
            let sum = [bytes[6], bytes[7]];
            bytes[8..10].copy_from_slice(&sum);
            bytes = seal(header, bytes, at);
        }
        _ => {}
    }
    bytes
}

/// Makes a header unusual now and then.
fn fault(random: &mut ChaCha8Rng, header: &mut Header) {
    header.tos = *[0, 0, 0, 1, 3, 0x48, 0xb8].choose(random).unwrap();
    header.ttl = *[64, 64, 64, 64, 64, 64, 64, 64, 64, 255, 2, 1, 0].choose(random).unwrap();
    if random.random_bool(0.04) {
        header.lie = *[-9, -1, 1, 5].choose(random).unwrap();
    }
    let is_ipv4 = header.source.is_ipv4();
    if random.random_bool(0.3) && is_ipv4 {
        header.fragment = 0x4000;
    }
    if random.random_bool(0.04) {
        if is_ipv4 {
            header.options = [&[1, 1, 1, 0][..], &[7, 7, 4, 0, 0, 0, 0, 0], &[0x94, 4, 0, 0]]
                .choose(random)
                .unwrap()
                .to_vec();
        } else {
            let kind = *[0_u8, 60, 43].choose(random).unwrap();
            let content = if kind == 43 { vec![4, 0, 0, 0, 0, 0] } else { vec![1, 4, 0, 0, 0, 0] };
            header.extensions.push((kind, content));
        }
    }
    if random.random_bool(0.02) {
        if is_ipv4 {
            header.has_wrong_sum = true;
        } else {
            // A fragment that is whole (RFC 6946).
            let mut content = vec![0, 0];
            content.extend(header.number.to_be_bytes());
            header.extensions.push((FRAGMENT, content));
        }
    }
}

/// Two fragments, in any order; one of them may be missing.
fn fragments(random: &mut ChaCha8Rng, header: &Header, bytes: &[u8]) -> Vec<Vec<u8>> {
    let cut = 8 * random.random_range(1..bytes.len() / 8);
    let first = Header { fragment: 0x2000, lie: 0, ..header.clone() }.packet(&bytes[..cut]);
    let second = Header { fragment: (cut / 8) as u16, lie: 0, ..header.clone() }.packet(&bytes[cut..]);
    let mut both = vec![first, second];
    if random.random_bool(0.5) {
        both.reverse();
    }
    if random.random_bool(0.2) {
        both.pop();
    }
    both
}

/// An error about a packet that came from the other end. It is built for each side, with checksums of its own.
fn error(random: &mut ChaCha8Rng, from: End, addresses: &Addresses, number: u32) -> Case {
    let is_ipv4 = addresses.inside.is_ipv4();
    let kinds = if is_ipv4 {
        [[3_u8, 1], [3, 3], [3, 4], [11, 0], [12, 0]]
    } else {
        [[1_u8, 0], [1, 4], [2, 0], [3, 0], [4, 0]]
    };
    let kind = *kinds.choose(random).unwrap();
    let [went_in, came_out] = quotes(random, from, addresses);
    let [before, behind] = ends(from, addresses);
    // A router of the inside has no image.
    let is_by_router = from == End::Outside && random.random_bool(0.5);
    let build = |[source, destination]: [IpAddr; 2], ttl, quote: &[u8]| {
        let source = if is_by_router { router(source) } else { source };
        let mut header = Header::new(source, destination, if is_ipv4 { ICMP } else { ICMPV6 }, number);
        header.ttl = ttl;
        let mut message = vec![kind[0], kind[1], 0, 0, 0, 0, 5, 0x14];
        message.extend(quote);
        header.packet(&summed(&header, message, 2))
    };
    Case { from, packets: vec![build(before, 64, &came_out)], error: Some(build(behind, 63, &went_in)) }
}

/// The packet that an error from there quotes, as it went into the gateway at the other end, and as it came out at this one.
fn quotes(random: &mut ChaCha8Rng, from: End, addresses: &Addresses) -> [Vec<u8>; 2] {
    let other = if from == End::Inside { End::Outside } else { End::Inside };
    let is_ipv4 = addresses.inside.is_ipv4();
    let protocol = *[TCP, UDP, if is_ipv4 { ICMP } else { ICMPV6 }].choose(random).unwrap();
    let payload: [u8; 41] = random.random();
    // Eight bytes of the transport header (RFC 792), or up to and with its checksum, or all.
    let quoted = *[8, 16, 18, 1000].choose(random).unwrap();
    let no_sum = protocol == UDP && random.random_bool(0.3);
    ends(other, addresses).map(|[source, destination]| {
        let mut header = Header::new(source, destination, protocol, 7);
        header.ttl = 60;
        let (mut upper, at) = match protocol {
            TCP => (vec![1, 2, 3, 4, 0, 49, 0, 0, 9, 9, 9, 9, 0x50, 16, 1, 0, 0, 0, 0, 0], 16),
            UDP => (vec![1, 2, 3, 4, 0, 49, 0, 0], 6),
            _ => (vec![if is_ipv4 { 8 } else { 128 }, 0, 0, 0, 1, 1, 1, 1], 2),
        };
        upper.extend(payload);
        let mut upper = summed(&header, upper, at);
        if no_sum {
            upper[6..8].fill(0);
        }
        let mut packet = header.packet(&upper);
        packet.truncate(if is_ipv4 { 20 } else { 40 } + quoted);
        packet
    })
}

/// With a checksum at that place; ICMP has none over the addresses.
fn summed(header: &Header, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    if header.protocol != ICMP {
        return seal(header, bytes, at);
    }
    let sum = Sum::new().bytes(&bytes).checksum();
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Another host of that link.
pub(crate) fn router(address: IpAddr) -> IpAddr {
    let mut bytes = octets(address);
    *bytes.last_mut().unwrap() = 9;
    match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    }
}

/// Hides what says nothing: the identification of the kernel's own errors, which is a secret of each namespace, and which of the two
/// zeros of one's complement a checksum has (RFC 1071). For UDP the two differ (RFC 768) and are compared.
pub(crate) fn hide_chosen(packet: &mut [u8]) {
    let is_ipv6 = packet[0] >> 4 == 6;
    let (protocol, header) =
        if is_ipv6 { (packet[6], 40) } else { (packet[9], usize::from(packet[0] & 15) * 4) };
    if !is_ipv6 {
        let is_own_error = protocol == ICMP && matches!(packet.get(header), Some(3 | 11 | 12));
        if is_own_error {
            packet[4..6].fill(0);
            packet[10..12].fill(0);
        }
        one_zero(packet, 10);
    }
    match protocol {
        TCP => one_zero(packet, header + 16),
        ICMP | ICMPV6 => one_zero(packet, header + 2),
        _ => {}
    }
}

fn one_zero(packet: &mut [u8], at: usize) {
    if let Some(sum) = packet.get_mut(at..at + 2)
        && *sum == [0xff, 0xff]
    {
        sum.fill(0);
    }
}
