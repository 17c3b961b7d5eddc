//! The addresses of each family, as the test needs them.

use std::net::IpAddr;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weir_filter::Class;
use weir_gateway::Family;
use weir_prefix::{Address, Ranges};

/// A family's addresses, of which each has a packet.
pub(crate) trait Source: Address {
    const FAMILY: Family;
    /// The name of the set in nft, the end of the one in ipset.
    const END: &'static str;
    fn drawn(random: &mut ChaCha8Rng) -> Self;
    /// With the low bits of another one.
    fn with_low(self, bits: u8, other: Self) -> Self;
    /// The address, with this as its first octet.
    fn in_slash_8(octet: u8, low: Self) -> Self;
    fn class(ranges: Ranges<Self>) -> Class;
    fn ranges(class: &Class) -> &Ranges<Self>;
    /// Puts it into a packet as its source.
    fn put(self, packet: &mut [u8]);
    /// An IP header and nothing in it, behind an Ethernet header.
    fn packet(to: [u8; 6], destination: IpAddr) -> Vec<u8>;
    /// The filter lets it pass with any list, because the link itself needs it (weir_filter's `LINK_LOCAL`).
    fn is_links_own(self) -> bool;
    /// The stack throws away what comes from there before any rule of iptables (ip6_rcv_core, net/ipv6/ip6_input.c).
    fn is_no_source(self) -> bool;
}

impl Source for u32 {
    const FAMILY: Family = Family::Ipv4;
    const END: &'static str = "4";

    fn drawn(random: &mut ChaCha8Rng) -> Self {
        random.random()
    }

    fn with_low(self, bits: u8, other: Self) -> Self {
        let mask = 1_u32.checked_shl(bits.into()).map_or(u32::MAX, |block| block - 1);
        self & !mask | other & mask
    }

    fn in_slash_8(octet: u8, low: Self) -> Self {
        (u32::from(octet) << 24).with_low(24, low)
    }

    fn class(v4: Ranges<Self>) -> Class {
        Class { v4, v6: Ranges::default() }
    }

    fn ranges(class: &Class) -> &Ranges<Self> {
        &class.v4
    }

    fn put(self, packet: &mut [u8]) {
        packet[26..30].copy_from_slice(&self.to_be_bytes());
        packet[24..26].fill(0);
        // RFC 1071: the ones' complement sum of the header's words.
        let sum: u32 = packet[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        packet[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }

    fn packet(to: [u8; 6], destination: IpAddr) -> Vec<u8> {
        let IpAddr::V4(destination) = destination else { panic!("of one family") };
        let mut packet = [&to[..], &[2, 0, 0, 0, 0, 9, 0x08, 0x00]].concat();
        // Protocol 253 is for experiments (RFC 3692): no host answers it.
        packet.extend([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 0, 0, 0, 0]);
        packet.extend(destination.octets());
        packet
    }

    fn is_links_own(self) -> bool {
        self == 0
    }

    fn is_no_source(self) -> bool {
        false
    }
}

impl Source for u128 {
    const FAMILY: Family = Family::Ipv6;
    const END: &'static str = "6";

    fn drawn(random: &mut ChaCha8Rng) -> Self {
        random.random()
    }

    fn with_low(self, bits: u8, other: Self) -> Self {
        let mask = 1_u128.checked_shl(bits.into()).map_or(u128::MAX, |block| block - 1);
        self & !mask | other & mask
    }

    fn in_slash_8(octet: u8, low: Self) -> Self {
        (u128::from(octet) << 120).with_low(120, low)
    }

    fn class(v6: Ranges<Self>) -> Class {
        Class { v4: Ranges::default(), v6 }
    }

    fn ranges(class: &Class) -> &Ranges<Self> {
        &class.v6
    }

    fn put(self, packet: &mut [u8]) {
        packet[22..38].copy_from_slice(&self.to_be_bytes());
    }

    fn packet(to: [u8; 6], destination: IpAddr) -> Vec<u8> {
        let IpAddr::V6(destination) = destination else { panic!("of one family") };
        let mut packet = [&to[..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd]].concat();
        packet.extend([0x60, 0, 0, 0, 0, 0, 253, 64]);
        packet.extend([0; 16]);
        packet.extend(destination.octets());
        packet
    }

    fn is_links_own(self) -> bool {
        self == 0 || self >> 118 == 0xfe80 >> 6
    }

    fn is_no_source(self) -> bool {
        let (loopback, mapped, multicast) = (self == 1, self >> 32 == 0xffff, self >> 120 == 0xff);
        loopback || mapped || multicast
    }
}
