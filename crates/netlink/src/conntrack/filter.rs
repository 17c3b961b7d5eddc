//! Which entries a dump is about: the part that this kernel can tell apart is left to it, and every entry is checked again
//! here, because kernels that do not know an attribute of the request ignore it.

use std::net::IpAddr;
use std::str::FromStr;

use super::entry::{
    Address, Entry, IP_V4_DST, IP_V4_SRC, MARK, PROTO_NUM, STATUS, Status, TUPLE_IP, TUPLE_ORIG, TUPLE_PROTO,
    ZONE,
};
use super::{GET, request_for};
use crate::Message;

const MARK_MASK: u16 = 21;
const FILTER: u16 = 25;
const STATUS_MASK: u16 = 26;
const FILTER_ORIG_FLAGS: u16 = 1;
/// CTA_FILTER_F_CTA_IP_SRC and CTA_FILTER_F_CTA_PROTO_NUM (net/netfilter/nf_internals.h, from 5.8 on).
const BY_SOURCE: u32 = 1 << 0;
const BY_PROTOCOL: u32 = 1 << 3;

/// IPPROTO_TCP.
const TCP: u8 = 6;

/// An address and how many of its leading bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: Address,
    /// Bits that count, of 128.
    bits: u8,
    v4: bool,
}

impl Prefix {
    /// True if the address is in it.
    pub fn contains(self, address: Address) -> bool {
        let shift = 128 - u32::from(self.bits);
        // A shift by all bits is a prefix of length 0, which only IPv6 has here.
        let differs = (self.address.bits() ^ address.bits()).checked_shr(shift).unwrap_or(0);
        differs == 0 && address.ip().is_ipv4() == self.v4
    }

    fn exact_v4(self) -> Option<[u8; 4]> {
        match self.address.ip() {
            IpAddr::V4(v4) if self.bits == 128 => Some(v4.octets()),
            _ => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    /// `192.0.2.0/24`, `2001:db8::/32`, or a single address. Bits after the prefix must be 0, so that a typing error is reported.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let ip: IpAddr = address.parse().map_err(|_| format!("`{address}` is not an address"))?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let length: u8 = match length {
            None => most,
            Some(l) => l.parse().ok().filter(|l| *l <= most).ok_or(format!("`/{l}` is not 0 to {most}"))?,
        };
        let prefix = Prefix { address: ip.into(), bits: 128 - most + length, v4: ip.is_ipv4() };
        let rest = u128::MAX.checked_shr(u32::from(prefix.bits)).unwrap_or(0);
        if prefix.address.bits() & rest != 0 {
            return Err(format!("{text} has bits set after its first {length}"));
        }
        Ok(prefix)
    }
}

/// The conditions for an entry. The default accepts all entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter {
    /// True for IPv6, false for IPv4 alone.
    pub v6: Option<bool>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Bit n stands for state n of `enum tcp_conntrack`. Not 0: only TCP in one of them.
    pub tcp_states: u16,
    /// These bits of the status ...
    pub status: Status,
    /// ... and none of these.
    pub status_not: Status,
    /// Source of the one that opened it.
    pub source: Option<Prefix>,
    /// Destination, as it was asked for or after translation.
    pub destination: Option<Prefix>,
    /// Destination port, as it was asked for or after translation.
    pub port: Option<u16>,
    /// Zone.
    pub zone: Option<u16>,
    /// Value and mask of the connection's mark.
    pub mark: Option<(u32, u32)>,
}

impl Filter {
    /// True if it takes all entries.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// True if the entry has all of it.
    pub fn matches(&self, entry: &Entry) -> bool {
        let (original, reply) = (&entry.original, &entry.reply);
        let state = entry.state.map_or(0, |s| 1_u16.checked_shl(s.into()).unwrap_or(0));
        self.v6.is_none_or(|v6| v6 == original.source.ip().is_ipv6())
            && self.protocol.is_none_or(|p| p == original.protocol)
            && (self.tcp_states == 0 || original.protocol == TCP && self.tcp_states & state != 0)
            && entry.status.has(self.status)
            && entry.status.0 & self.status_not.0 == 0
            && self.source.is_none_or(|p| p.contains(original.source))
            && self.destination.is_none_or(|p| p.contains(original.destination) || p.contains(reply.source))
            && self.port.is_none_or(|p| p == original.destination_port || p == reply.source_port)
            && self.zone.is_none_or(|z| z == entry.zone)
            && self.mark.is_none_or(|(value, mask)| entry.mark & mask == value)
    }

    /// The request for a dump. Without `tuples` the part that older kernels refuse stays out of it.
    pub(super) fn request(&self, tuples: bool) -> Message {
        let family = match self.family() {
            None => libc::AF_UNSPEC,
            Some(false) => libc::AF_INET,
            Some(true) => libc::AF_INET6,
        };
        let mut message = request_for(family as u8, GET, libc::NLM_F_DUMP);
        let care = self.status.0 | self.status_not.0;
        if care != 0 {
            message =
                message.attr(STATUS, &self.status.0.to_be_bytes()).attr(STATUS_MASK, &care.to_be_bytes());
        }
        if let Some((value, mask)) = self.mark {
            message = message.attr(MARK, &value.to_be_bytes()).attr(MARK_MASK, &mask.to_be_bytes());
        }
        if let Some(zone) = self.zone {
            message = message.attr(ZONE, &zone.to_be_bytes());
        }
        if tuples { self.tuple(message) } else { message }
    }

    /// True if the request has a part that older kernels refuse.
    pub(super) fn has_tuple(&self) -> bool {
        self.tuple_flags() != 0
    }

    /// The address family, where something in the filter settles it.
    fn family(&self) -> Option<bool> {
        let of_prefix = self.source.or(self.destination).map(|p| !p.v4);
        self.v6.or(of_prefix)
    }

    /// Only with a known family the kernel compares tuples. Its comparison of IPv6 addresses is the wrong way round (6.18,
    /// `ctnetlink_filter_match_tuple`), so those are compared here alone.
    fn tuple_flags(&self) -> u32 {
        if self.family().is_none() {
            return 0;
        }
        let source = self.source.and_then(Prefix::exact_v4).map_or(0, |_| BY_SOURCE);
        source | self.wanted_protocol().map_or(0, |_| BY_PROTOCOL)
    }

    fn wanted_protocol(&self) -> Option<u8> {
        self.protocol.or((self.tcp_states != 0).then_some(TCP))
    }

    fn tuple(&self, message: Message) -> Message {
        let flags = self.tuple_flags();
        if flags == 0 {
            return message;
        }
        message
            .nest(TUPLE_ORIG, |m| {
                let m = match self.source.and_then(Prefix::exact_v4) {
                    Some(source) => m.nest(TUPLE_IP, |m| m.attr(IP_V4_SRC, &source).attr(IP_V4_DST, &[0; 4])),
                    None => m,
                };
                match self.wanted_protocol() {
                    Some(protocol) => m.nest(TUPLE_PROTO, |m| m.attr(PROTO_NUM, &[protocol])),
                    None => m,
                }
            })
            .nest(FILTER, |m| m.attr_u32(FILTER_ORIG_FLAGS, flags))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn address(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn prefixes_hold_what_they_should() {
        for (text, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ] {
            assert!(prefix(text).contains(address(inside)), "{inside} is in {text}");
            assert!(!prefix(text).contains(address(outside)), "{outside} is not in {text}");
        }
        for bad in ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "::/129", "x/8", "10.0.0.0/-1"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// Against the definition: as numbers both lie in the same block of 2^(32 - length).
        #[test]
        fn prefixes_are_blocks(a: u32, b: u32, length in 0_u8..=32) {
            let block = |x: u32| u64::from(x) >> (32 - length);
            let start = u32::try_from(block(a) << (32 - length)).unwrap();
            let text = format!("{}/{length}", std::net::Ipv4Addr::from(start));
            let ip: IpAddr = std::net::Ipv4Addr::from(b).into();
            prop_assert_eq!(prefix(&text).contains(ip.into()), block(a) == block(b));
        }
    }

    #[test]
    fn conditions_are_all_needed() {
        let mut entry = Entry { state: Some(3), mark: 0x15, zone: 2, ..Entry::default() };
        entry.status = Status(Status::ASSURED.0 | Status::SEEN_REPLY.0);
        entry.original.protocol = TCP;
        entry.original.source = address("10.0.0.2");
        entry.original.destination = address("192.0.2.1");
        entry.original.destination_port = 80;
        entry.reply.source = address("10.9.9.9");
        entry.reply.source_port = 8080;
        let all = Filter {
            v6: Some(false),
            protocol: Some(TCP),
            tcp_states: 1 << 3 | 1 << 7,
            status: Status::ASSURED,
            status_not: Status::SOURCE_NAT,
            source: Some(prefix("10.0.0.0/8")),
            destination: Some(prefix("10.9.9.9")),
            port: Some(80),
            zone: Some(2),
            mark: Some((0x10, 0xf0)),
        };
        assert!(all.matches(&entry) && Filter::default().matches(&entry));
        assert!(Filter { port: Some(8080), ..all }.matches(&entry));
        for wrong in [
            Filter { v6: Some(true), ..all },
            Filter { protocol: Some(17), ..all },
            Filter { tcp_states: 1 << 4, ..all },
            Filter { status: Status::OFFLOAD, ..all },
            Filter { status_not: Status::ASSURED, ..all },
            Filter { source: Some(prefix("10.0.0.3")), ..all },
            Filter { destination: Some(prefix("10.0.0.2")), ..all },
            Filter { port: Some(443), ..all },
            Filter { zone: Some(0), ..all },
            Filter { mark: Some((0x20, 0xf0)), ..all },
        ] {
            assert!(!wrong.matches(&entry), "{wrong:?}");
        }
        // Not a state of TCP, whatever its number.
        entry.original.protocol = 132;
        assert!(!Filter { tcp_states: 1 << 3, ..Filter::default() }.matches(&entry));
        entry.state = Some(200);
        assert!(!Filter { tcp_states: u16::MAX, ..Filter::default() }.matches(&entry));
    }
}
