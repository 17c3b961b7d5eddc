//! One step of a run: a few packets from one end.

use std::net::IpAddr;

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::flow::Flow;
use crate::offload::{self, Offload};
use crate::packet::{FRAGMENT, Header, ICMP, ICMPV6, TCP, has_wrong_transport_sum, octets, seal, translated};
use crate::side::{End, hide_chosen};

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) from: End,
    pub(crate) packets: Vec<Vec<u8>>,
    pub(crate) offload: Offload,
    /// It is more than one segment.
    pub(crate) is_super: bool,
    /// Sequence space that it takes if it arrives.
    pub(crate) length: u32,
    /// The packet that may arrive at the other end instead of those that the kernel alone delivers.
    pub(crate) permitted: Option<Vec<u8>>,
    /// The flow has ended, or conntrack knows another state of it from here on.
    pub(crate) ends_flow: bool,
    /// Flags of a segment that ends it, and that conntrack takes with and without us: what follows must arrive alike.
    pub(crate) sound_end: Option<u8>,
}

impl Case {
    pub(crate) fn of(from: End, packet: Vec<u8>) -> Case {
        Case {
            from,
            packets: vec![packet],
            offload: Offload::default(),
            is_super: false,
            length: 0,
            permitted: None,
            ends_flow: false,
            sound_end: None,
        }
    }
}

/// The next case of a flow. `offloads`: it may leave work to an interface.
pub(crate) fn draw(random: &mut ChaCha8Rng, flow: &Flow, number: u32, offloads: bool) -> Case {
    let from = if random.random_bool(0.5) { End::Inside } else { End::Server };
    if random.random_bool(0.08) {
        return Case::of(from, icmp_error(random, flow, from, number));
    }
    if offloads && random.random_bool(0.25) {
        return offload::draw(random, flow, from, number);
    }
    let upper = flow.draw(random, from);
    let mut header = flow.header(from, number);
    let is_ipv4 = header.source.is_ipv4();
    // One that may be treated otherwise has a plain header, so that it is known how.
    let mut is_plain = upper.is_out_of_window || !fault_header(random, &mut header, is_ipv4);
    if random.random_bool(0.04) && !upper.is_out_of_window && upper.bytes.len() > 48 {
        return Case { packets: fragments(random, &header, &upper.bytes), ..Case::of(from, Vec::new()) };
    }
    // Bytes behind the length that the IP header names are padding.
    let length = upper.bytes.len().min(upper.bytes.len().saturating_add_signed(header.lie.into()));
    let is_wrong = has_wrong_transport_sum(&header, &upper.bytes[..length]);
    let packet = header.packet(&upper.bytes);
    is_plain &= header.lie <= 0;
    let is_whole = length >= if flow.protocol == TCP { 20 } else { 8 };
    let may_differ = is_plain && is_whole && header.ttl > 1 && (is_wrong || upper.is_out_of_window);
    let permitted = may_differ.then(|| {
        let padding = upper.bytes.len() - length;
        let mut packet = translated(&packet[..packet.len() - padding], &flow.ends(from, false));
        hide_chosen(&mut packet);
        packet
    });
    let takes = if is_plain && !is_wrong && header.ttl > 2 { upper.length } else { 0 };
    // A reset that conntrack refuses without us may end the connection with us, and a segment outside of the window may change it.
    let is_sound = is_plain && !is_wrong && is_whole && header.lie == 0 && header.ttl > 2;
    let sound_end = upper.end.filter(|_| is_sound && !upper.is_out_of_window);
    Case { length: takes, ends_flow: upper.is_control, sound_end, permitted, ..Case::of(from, packet) }
}

/// Makes a header unusual now and then. True if only the kernel may forward it.
pub(crate) fn fault_header(random: &mut ChaCha8Rng, header: &mut Header, is_ipv4: bool) -> bool {
    header.tos = *[0, 0, 0, 0, 0, 0, 1, 3, 0x48].choose(random).unwrap();
    header.ttl = *[64, 64, 64, 64, 64, 64, 64, 64, 64, 255, 2, 1].choose(random).unwrap();
    if random.random_bool(0.03) {
        header.lie = *[-9, -1, 1, 5].choose(random).unwrap();
    }
    if random.random_bool(0.3) && is_ipv4 {
        header.fragment = 0x4000;
    }
    let mut is_unusual = false;
    if random.random_bool(0.05) {
        is_unusual = true;
        if is_ipv4 {
            header.options = [&[1, 1, 1, 0][..], &[7, 7, 4, 0, 0, 0, 0, 0], &[0x94, 4, 0, 0]]
                .choose(random)
                .unwrap()
                .to_vec();
        } else {
            // Hop-by-hop, destination options, routing with no segments left; each padded (RFC 8200 section 4).
            let kind = *[0_u8, 60, 43].choose(random).unwrap();
            header
                .extensions
                .push((kind, if kind == 43 { vec![4, 0, 0, 0, 0, 0] } else { vec![1, 4, 0, 0, 0, 0] }));
        }
    }
    if random.random_bool(0.02) {
        is_unusual = true;
        if is_ipv4 {
            header.has_wrong_sum = true;
        } else {
            // A fragment that is whole (RFC 6946).
            let mut content = vec![0, 0];
            content.extend(header.number.to_be_bytes());
            header.extensions.push((FRAGMENT, content));
        }
    }
    is_unusual
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

/// An error about a packet of the flow that came from the other end, by the host or a router at this one.
fn icmp_error(random: &mut ChaCha8Rng, flow: &Flow, from: End, number: u32) -> Vec<u8> {
    let other = from.other();
    let [to, mine] = flow.ends(other, false);
    let upper = if flow.protocol == TCP {
        flow.segment(other, 16, &[], random.random(), &[7; 40])
    } else {
        flow.datagram(other, &[7; 40])
    };
    let mut quoted = Header::new(to.0, mine.0, flow.protocol, number);
    quoted.ttl = 60;
    let mut upper = upper;
    upper[0..2].copy_from_slice(&to.1.to_be_bytes());
    upper[2..4].copy_from_slice(&mine.1.to_be_bytes());
    let upper = seal(&quoted, upper, if flow.protocol == TCP { 16 } else { 6 });
    let mut quote = quoted.packet(&upper);
    if random.random_bool(0.4) {
        // Eight bytes of the transport header (RFC 792), sometimes fewer.
        quote.truncate(if to.0.is_ipv4() { 20 } else { 40 } + random.random_range(4..9));
    }
    let is_ipv4 = to.0.is_ipv4();
    let [kind, code] = *if is_ipv4 {
        [[3_u8, 1], [3, 3], [3, 4], [11, 0], [12, 0]].choose(random).unwrap()
    } else {
        [[1_u8, 0], [1, 4], [2, 0], [3, 0], [4, 0]].choose(random).unwrap()
    };
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(if kind == if is_ipv4 { 3 } else { 2 } { 1400_u32 } else { 0 }.to_be_bytes());
    icmp.extend(quote);
    let source = if random.random_bool(0.5) { mine.0 } else { router(mine.0) };
    let mut header = Header::new(source, to.0, if is_ipv4 { ICMP } else { ICMPV6 }, number);
    header.ttl = *[64, 64, 64, 1].choose(random).unwrap();
    let mut icmp = if is_ipv4 {
        let sum = weir_wire::Sum::new().bytes(&icmp).checksum();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        icmp
    } else {
        seal(&header, icmp, 2)
    };
    if random.random_bool(0.05) {
        icmp[2] ^= 1;
    }
    header.packet(&icmp)
}

/// Another host of that link.
fn router(address: IpAddr) -> IpAddr {
    let mut bytes = octets(address);
    *bytes.last_mut().unwrap() = 9;
    match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    }
}
