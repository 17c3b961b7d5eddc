//! A sampled packet as a rule sees it: what is known of it, and what is not.

use std::collections::HashMap;

use weir_netlink::nftables::{Base, Hook};

use crate::evidence::{DropGroup, Interface, Sample};

/// The possible connection tracking states of a packet, as bits of `ct state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Invalid = 1,
    Established = 2,
    Related = 4,
    New = 8,
    Untracked = 64,
}

/// An interface that a packet came through or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Through {
    /// There is none at this hook.
    None,
    /// The interface with this number.
    This(u32),
    /// It is unknown.
    Unknown,
}

/// A packet at a hook.
#[derive(Debug, Clone)]
pub(super) struct Packet<'a> {
    pub(super) sample: &'a Sample,
    pub(super) ethertype: u16,
    pub(super) hook: Hook,
    pub(super) came_in: Through,
    pub(super) goes_out: Through,
    pub(super) state: State,
    /// `skb->mark` as it was when the packet was thrown away may not be what an earlier rule saw.
    pub(super) marks_change: bool,
    upper: Upper,
}

/// The transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upper {
    /// It has none that a rule can look at: a later fragment, or no IP.
    None,
    /// Protocol, and where its header begins.
    At(u8, usize),
    /// The sample is too short to say.
    Unknown,
}

/// Bytes asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bytes {
    Known(Vec<u8>),
    Unknown,
    /// The packet has none: the rule does not match.
    Absent,
}

impl<'a> Packet<'a> {
    pub(super) fn new(sample: &'a Sample, group: &DropGroup, hook: Hook, state: State) -> Self {
        Packet {
            sample,
            ethertype: group.ethertype,
            hook,
            came_in: Through::Unknown,
            goes_out: Through::Unknown,
            state,
            marks_change: false,
            upper: upper(&sample.header, group.ethertype),
        }
    }

    /// IP version; 0 if it is no IP.
    pub(super) fn version(&self) -> u8 {
        match (self.ethertype, self.sample.header.first().map(|b| b >> 4)) {
            (0x0800, _) | (0, Some(4)) => 4,
            (0x86dd, _) | (0, Some(6)) => 6,
            _ => 0,
        }
    }

    /// Bytes of the packet.
    pub(super) fn payload(&self, base: Base, offset: u32, length: u32) -> Bytes {
        let start = match (base, self.upper) {
            (Base::Network, _) => 0,
            (Base::Transport, Upper::At(_, start)) => start,
            (Base::Transport | Base::Inner, Upper::None) => return Bytes::Absent,
            // Samples begin with the network header; what is behind the transport header would need its length.
            (Base::Link | Base::Inner, _) | (Base::Transport, Upper::Unknown) => return Bytes::Unknown,
        };
        let first = start + offset as usize;
        let last = first + length as usize;
        if let Some(bytes) = self.sample.header.get(first..last) {
            return Bytes::Known(bytes.to_vec());
        }
        if self.sample.length as usize >= last { Bytes::Unknown } else { Bytes::Absent }
    }

    /// Returns the kernel's metadata of the packet, by `enum nft_meta_keys`, as it is put into a register.
    pub(super) fn meta(&self, key: u32, names: &Names<'_>) -> Bytes {
        let number = |n: u32| Bytes::Known(n.to_ne_bytes().to_vec());
        let index = |through: Through| match through {
            Through::None => number(0),
            Through::This(index) => number(index),
            Through::Unknown => Bytes::Unknown,
        };
        let name = |through: Through| match through {
            Through::None => Bytes::Known(vec![0; 16]),
            Through::This(index) => names.padded(index).map_or(Bytes::Unknown, Bytes::Known),
            Through::Unknown => Bytes::Unknown,
        };
        match key {
            1 if self.ethertype != 0 => Bytes::Known(self.ethertype.to_be_bytes().to_vec()),
            3 if !self.marks_change => number(self.sample.mark),
            4 => index(self.came_in),
            5 => index(self.goes_out),
            6 => name(self.came_in),
            7 => name(self.goes_out),
            // NFPROTO_IPV4 and NFPROTO_IPV6, at hooks of IP.
            15 if self.hook != Hook::Ingress && self.hook != Hook::Egress => match self.version() {
                4 => Bytes::Known(vec![2]),
                6 => Bytes::Known(vec![10]),
                _ => Bytes::Unknown,
            },
            16 => self.protocol(),
            _ => Bytes::Unknown,
        }
    }

    fn protocol(&self) -> Bytes {
        match self.upper {
            Upper::At(protocol, _) => Bytes::Known(vec![protocol]),
            // A later fragment still has the protocol in its header (nft_set_pktinfo_ipv4).
            Upper::None if self.version() == 4 => self.payload(Base::Network, 9, 1),
            // In IPv6 it is in the header of the fragment (ipv6_find_hdr).
            Upper::None if self.version() == 6 => match weir_wire::Ipv6::read_quoted(&self.sample.header)
                .and_then(|(ip, rest)| weir_wire::ipv6::upper_layer(ip.next_header, rest))
            {
                Ok(upper) => Bytes::Known(vec![upper.protocol]),
                Err(_) => Bytes::Unknown,
            },
            Upper::None if self.version() == 0 => Bytes::Absent,
            Upper::None | Upper::Unknown => Bytes::Unknown,
        }
    }

    /// TCP flags of its header, if it is TCP and they were sampled.
    pub(super) fn tcp_flags(&self) -> Option<u8> {
        match self.upper {
            Upper::At(6, start) => self.sample.header.get(start + 13).copied(),
            _ => None,
        }
    }

    /// Type of ICMP or ICMPv6.
    pub(super) fn icmp_error(&self) -> bool {
        match self.upper {
            Upper::At(1, start) => {
                self.sample.header.get(start).is_some_and(|t| matches!(t, 3 | 4 | 5 | 11 | 12))
            }
            Upper::At(58, start) => self.sample.header.get(start).is_some_and(|t| *t < 128),
            _ => false,
        }
    }
}

/// Finds the transport header.
fn upper(header: &[u8], ethertype: u16) -> Upper {
    match (ethertype, header.first().map(|b| b >> 4)) {
        (0x0800 | 0, Some(4)) => {
            let (Some(first), Some(fragment)) = (header.first(), header.get(6..8)) else {
                return Upper::Unknown;
            };
            if u16::from_be_bytes([fragment[0], fragment[1]]) & 0x1fff != 0 {
                return Upper::None;
            }
            match header.get(9) {
                Some(protocol) => Upper::At(*protocol, usize::from(first & 15) * 4),
                None => Upper::Unknown,
            }
        }
        (0x86dd | 0, Some(6)) => {
            let Ok((ip, rest)) = weir_wire::Ipv6::read_quoted(header) else { return Upper::Unknown };
            match weir_wire::ipv6::upper_layer(ip.next_header, rest) {
                Ok(upper) if upper.fragment.is_some_and(|f| f.offset > 0) => Upper::None,
                Ok(upper) => Upper::At(upper.protocol, header.len() - upper.payload.len()),
                Err(_) => Upper::Unknown,
            }
        }
        _ => Upper::None,
    }
}

/// Names of interfaces by number.
#[derive(Debug)]
pub(super) struct Names<'a>(HashMap<u32, &'a str>);

impl<'a> Names<'a> {
    pub(super) fn of(interfaces: &'a [Interface]) -> Self {
        Names(interfaces.iter().map(|i| (i.index, i.name.as_str())).collect())
    }

    pub(super) fn get(&self, index: u32) -> Option<&'a str> {
        self.0.get(&index).copied()
    }

    /// As the kernel puts it into a register: IFNAMSIZ bytes.
    fn padded(&self, index: u32) -> Option<Vec<u8>> {
        let mut name = self.get(index)?.as_bytes().to_vec();
        name.resize(16, 0);
        Some(name)
    }
}
