//! The packets that the fast path carries, by what its programs check of each of them (bpf/packet.h, bpf/carry.h): which bits are
//! known, which are the same for all packets of a flow, and which vary.

use weir_netlink::nftables::{Base, Registers};

use super::ends::Field;

/// IPPROTO_TCP, IPPROTO_UDP.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP's flags that are checked: FIN, SYN, RST and URG are not set, and ACK is.
pub(super) const FLAGS_KNOWN: u8 = 0x37;
pub(super) const FLAGS: u8 = 0x10;
/// ECN (RFC 3168); the other six bits are the DSCP, which is the same for all packets of an entry.
pub(super) const ECN: u8 = 0x03;
/// Bits of `ct state` (NF_CT_STATE_BIT): a packet that connection tracking has not seen yet reads as invalid.
pub(super) const INVALID: u32 = 1;
pub(super) const ESTABLISHED: u32 = 2;
pub(super) const NEW: u32 = 8;

/// UDP is learnt without a reply (bpf/learn.h, judge): rules for new connections meet each packet of such a flow. Once the programs
/// ask for IPS_SEEN_REPLY, this is false.
const CARRIES_UNANSWERED: bool = true;

/// A kind of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Traffic {
    pub(super) ipv6: bool,
    pub(super) udp: bool,
    /// A reply was seen. UDP is carried without one, too, and stays new for connection tracking.
    pub(super) answered: bool,
}

/// The conditions under which a rule is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Conditions {
    pub(super) traffic: Traffic,
    /// Connection tracking has seen the packet.
    pub(super) tracked: bool,
    /// The mark of packets may differ within a flow.
    pub(super) mark_varies: bool,
}

/// One byte. Bits that are neither known nor vary are the same for all packets of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Byte {
    pub(super) known: u8,
    pub(super) value: u8,
    pub(super) varies: u8,
    /// A noun for what varies.
    pub(super) what: &'static str,
    /// The field that it is a byte of, and which one, the first is 0: if an exclusion can name it.
    pub(super) of: Option<(Field, u8)>,
}

impl Byte {
    pub(super) const CONSTANT: Byte = Byte { known: 0, value: 0, varies: 0, what: "", of: None };

    pub(super) fn known(value: u8) -> Byte {
        Byte { known: 0xff, value, ..Byte::CONSTANT }
    }

    pub(super) fn varying(what: &'static str) -> Byte {
        Byte { varies: 0xff, what, ..Byte::CONSTANT }
    }

    fn partly(known: u8, value: u8, varies: u8, what: &'static str) -> Byte {
        Byte { known, value, varies, what, of: None }
    }

    fn field(field: Field, at: usize) -> Byte {
        Byte { of: Some((field, at as u8)), ..Byte::CONSTANT }
    }
}

impl Traffic {
    /// The kinds that are carried.
    pub(super) fn all() -> impl Iterator<Item = Traffic> {
        let udp = [true, false].into_iter().filter(|answered| *answered || CARRIES_UNANSWERED);
        let udp = udp.map(|answered| (true, answered));
        let protocols = std::iter::once((false, true)).chain(udp);
        protocols.flat_map(|(udp, answered)| [false, true].map(|ipv6| Traffic { ipv6, udp, answered }))
    }

    pub(super) fn protocol(self) -> u8 {
        if self.udp { UDP } else { TCP }
    }

    /// Bytes of the packet.
    pub(super) fn payload(self, base: Base, offset: u32, length: u32) -> Vec<Byte> {
        let at = |offset: usize| match base {
            Base::Link => self.link(offset),
            Base::Network => self.network(offset),
            Base::Transport => self.transport(offset),
            Base::Inner => Byte::varying("data of the packet"),
        };
        let start = offset as usize;
        (start..start.saturating_add(length.min(64) as usize)).map(at).collect()
    }

    fn ethertype(self) -> [u8; 2] {
        if self.ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] }
    }

    /// Only untagged frames are carried.
    fn link(self, at: usize) -> Byte {
        match at {
            0..=11 => Byte::CONSTANT,
            12 | 13 => Byte::known(self.ethertype()[at - 12]),
            _ => self.network(at - 14),
        }
    }

    fn network(self, at: usize) -> Byte {
        match (self.ipv6, at) {
            // Version and length of the header: no options.
            (false, 0) => Byte::known(0x45),
            (false, 1) => Byte::partly(0, 0, ECN, "the ECN bits"),
            (false, 2 | 3) | (true, 4 | 5) => Byte::varying("the packet's length"),
            (false, 4 | 5) => Byte::varying("the packet's identification"),
            // No fragments; the flag "don't fragment" is free.
            (false, 6) => Byte::partly(0x3f, 0, 0xc0, "the don't-fragment flag"),
            (false, 7) => Byte::known(0),
            (false, 8) => Byte::varying("the TTL"),
            (false, 9) | (true, 6) => Byte::known(self.protocol()),
            (false, 10 | 11) => Byte::varying("a checksum"),
            (false, 12..=15) => Byte::field(Field::SourceAddress, at - 12),
            (false, 16..=19) => Byte::field(Field::DestinationAddress, at - 16),
            (true, 8..=23) => Byte::field(Field::SourceAddress, at - 8),
            (true, 24..=39) => Byte::field(Field::DestinationAddress, at - 24),
            (false, _) => self.transport(at - 20),
            (true, 0) => Byte::partly(0xf0, 0x60, 0, ""),
            (true, 1) => Byte::partly(0, 0, 0x3f, "the ECN bits or the flow label"),
            (true, 2 | 3) => Byte::varying("the flow label"),
            (true, 7) => Byte::varying("the hop limit"),
            (true, _) => self.transport(at - 40),
        }
    }

    fn transport(self, at: usize) -> Byte {
        match (self.udp, at) {
            (_, 0 | 1) => Byte::field(Field::SourcePort, at),
            (_, 2 | 3) => Byte::field(Field::DestinationPort, at - 2),
            (false, 4..=11) => Byte::varying("TCP's sequence numbers"),
            (false, 13) => Byte::partly(FLAGS_KNOWN, FLAGS, !FLAGS_KNOWN, "TCP flags"),
            (false, 12 | 14..=19) => Byte::varying("TCP's header"),
            (false, _) => Byte::varying("TCP options or data"),
            (true, 4 | 5) => Byte::varying("the packet's length"),
            (true, 6 | 7) => Byte::varying("a checksum"),
            (true, _) => Byte::varying("data of the packet"),
        }
    }
}

impl Conditions {
    /// The kernel's knowledge of the packet (`enum nft_meta_keys`).
    pub(super) fn meta(self, key: u32) -> Vec<Byte> {
        let traffic = self.traffic;
        let known = |bytes: &[u8]| bytes.iter().map(|b| Byte::known(*b)).collect();
        let varying = |what| vec![Byte::varying(what); 16];
        match key {
            0 => varying("the packet's length"),
            1 => known(&traffic.ethertype()),
            2 => varying("the packet's priority"),
            3 if self.mark_varies => varying("the packet's mark"),
            10 | 11 | 23 => varying("the owner of a socket"),
            // NFPROTO_IPV4 and NFPROTO_IPV6.
            15 => known(&[if traffic.ipv6 { 10 } else { 2 }]),
            16 => known(&[traffic.protocol()]),
            // PACKET_HOST: others are not carried.
            19 => known(&[0]),
            20 => varying("the CPU"),
            24 => varying("a random number"),
            30..=32 => varying("the time"),
            // Interfaces and their groups, kinds and bridge ports, the route's realm, IPsec.
            3..=9 | 13 | 17 | 18 | 21 | 22 | 25..=29 | 33 | 34 | 36 => vec![Byte::CONSTANT; 16],
            _ => varying("a property of the packet that weir cannot read"),
        }
    }

    /// The knowledge of connection tracking (`enum nft_ct_keys`); `None` if the rule ends here, because it has not seen the packet.
    pub(super) fn ct(self, key: u32) -> Option<Vec<Byte>> {
        Some(match key {
            0 => self.state().to_ne_bytes().map(Byte::known).to_vec(),
            _ if !self.tracked => return None,
            5 => vec![Byte::varying("the time a connection has left"); 16],
            14..=16 => vec![Byte::varying("the packets or bytes of a connection"); 16],
            1..=13 | 17..=23 => vec![Byte::CONSTANT; 16],
            _ => vec![Byte::varying("a property of the connection that weir cannot read"); 16],
        })
    }

    /// The state of the connection, in the bits of `ct state`.
    pub(super) fn state(self) -> u32 {
        match (self.tracked, self.traffic.answered) {
            (false, _) => INVALID,
            (true, true) => ESTABLISHED,
            (true, false) => NEW,
        }
    }
}

/// Words of four bytes of the kernel's registers, byte by byte.
#[derive(Debug, Clone)]
pub(super) struct Bytes([Byte; Registers::BYTES]);

impl Default for Bytes {
    fn default() -> Self {
        Bytes([Byte::known(0); Registers::BYTES])
    }
}

impl Bytes {
    /// The rest of the last word becomes zero, as the kernel does it.
    pub(super) fn store(&mut self, word: u8, bytes: &[Byte]) {
        let padded = bytes.iter().copied().chain(std::iter::repeat(Byte::known(0)));
        let places = self.0.iter_mut().skip(usize::from(word) * 4);
        for (place, byte) in places.zip(padded.take(bytes.len().next_multiple_of(4))) {
            *place = byte;
        }
    }

    /// So many bytes; `None` beyond the last register.
    pub(super) fn load(&self, word: u8, length: usize) -> Option<&[Byte]> {
        let start = usize::from(word) * 4;
        self.0.get(start..start.checked_add(length)?)
    }

    /// A noun for something that varies in any register.
    pub(super) fn varying(&self) -> Option<&'static str> {
        varying(&self.0)
    }
}

/// A noun for something that varies among these bytes.
pub(super) fn varying(bytes: &[Byte]) -> Option<&'static str> {
    bytes.iter().find(|b| b.varies != 0).map(|b| b.what)
}
