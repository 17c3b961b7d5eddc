//! One entry of the table, as ctnetlink writes it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Attributes, Message, u16_be, u32_be, u64_be};

// enum ctattr_type, include/uapi/linux/netfilter/nfnetlink_conntrack.h; those of a level stand together.
pub(super) const TUPLE_ORIG: u16 = 1;
pub(super) const TUPLE_REPLY: u16 = 2;
pub(super) const STATUS: u16 = 3;
pub(super) const PROTOINFO: u16 = 4;
pub(super) const TIMEOUT: u16 = 7;
pub(super) const MARK: u16 = 8;
const COUNTERS_ORIG: u16 = 9;
const COUNTERS_REPLY: u16 = 10;
pub(super) const ZONE: u16 = 18;
const TIMESTAMP: u16 = 20;

pub(super) const TUPLE_IP: u16 = 1;
pub(super) const TUPLE_PROTO: u16 = 2;
const TUPLE_ZONE: u16 = 3;

pub(super) const IP_V4_SRC: u16 = 1;
pub(super) const IP_V4_DST: u16 = 2;
pub(super) const IP_V6_SRC: u16 = 3;
pub(super) const IP_V6_DST: u16 = 4;

pub(super) const PROTO_NUM: u16 = 1;
pub(super) const PROTO_SRC_PORT: u16 = 2;
pub(super) const PROTO_DST_PORT: u16 = 3;
pub(super) const PROTO_ICMP_ID: u16 = 4;
pub(super) const PROTO_ICMP_TYPE: u16 = 5;
pub(super) const PROTO_ICMP_CODE: u16 = 6;
const PROTO_ICMPV6_ID: u16 = 7;
const PROTO_ICMPV6_TYPE: u16 = 8;
const PROTO_ICMPV6_CODE: u16 = 9;

pub(super) const PROTOINFO_TCP: u16 = 1;
const PROTOINFO_SCTP: u16 = 3;
/// CTA_PROTOINFO_TCP_STATE and CTA_PROTOINFO_SCTP_STATE.
pub(super) const PROTOINFO_STATE: u16 = 1;
/// CTA_PROTOINFO_TCP_FLAGS_ORIGINAL and CTA_PROTOINFO_TCP_FLAGS_REPLY.
pub(super) const PROTOINFO_FLAGS_ORIGINAL: u16 = 4;
pub(super) const PROTOINFO_FLAGS_REPLY: u16 = 5;
/// IP_CT_TCP_FLAG_BE_LIBERAL (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
pub(super) const LIBERAL: u8 = 1 << 3;
/// IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED, likewise.
const UNACKNOWLEDGED: u8 = 1 << 4;
/// IP_CT_TCP_FLAG_MAXACK_SET of `struct nf_ct_tcp_flags`: a last acknowledgement is known.
pub(super) const MAXACK_SET: u8 = 0x20;

const COUNTERS_PACKETS: u16 = 1;
const COUNTERS_BYTES: u16 = 2;
const TIMESTAMP_START: u16 = 1;

/// An IPv4 or IPv6 address in 16 bytes, so that tables of a million of them stay small: IPv4 as `::ffff:a.b.c.d`, which
/// never occurs on the wire (RFC 4291, section 2.5.5.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(u128);

impl Address {
    /// As the standard library's type.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from_bits(self.0).to_canonical()
    }

    /// As a number, the first byte of the address being the highest.
    pub(super) fn bits(self) -> u128 {
        self.0
    }

    fn v4(bytes: [u8; 4]) -> Self {
        Address(Ipv4Addr::from(bytes).to_ipv6_mapped().to_bits())
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Address(v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) => Address(v6.to_bits()),
        }
    }
}

/// One direction of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; the identifier of ICMP echo; 0 for protocols without ports.
    pub source_port: u16,
    /// Destination port; of ICMP `type << 8 | code`; 0 for protocols without ports.
    pub destination_port: u16,
}

/// `enum ip_conntrack_status` (include/uapi/linux/netfilter/nf_conntrack_common.h) as a set of bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// IPS_EXPECTED: a helper announced it.
    pub const EXPECTED: Status = Status(1 << 0);
    /// IPS_SEEN_REPLY: packets went both ways.
    pub const SEEN_REPLY: Status = Status(1 << 1);
    /// IPS_ASSURED: never evicted early when the table is full.
    pub const ASSURED: Status = Status(1 << 2);
    /// IPS_SRC_NAT: the source is translated.
    pub const SOURCE_NAT: Status = Status(1 << 4);
    /// IPS_DST_NAT: the destination is translated.
    pub const DESTINATION_NAT: Status = Status(1 << 5);
    /// IPS_SEQ_ADJUST: its sequence numbers are changed.
    pub const SEQUENCE_ADJUSTED: Status = Status(1 << 6);
    /// IPS_DYING: it is being removed.
    pub const DYING: Status = Status(1 << 9);
    /// IPS_FIXED_TIMEOUT: its timeout is not renewed.
    pub const FIXED_TIMEOUT: Status = Status(1 << 10);
    /// IPS_HELPER: its helper was set by hand.
    pub const HELPER: Status = Status(1 << 13);
    /// IPS_OFFLOAD: a flow table forwards it.
    pub const OFFLOAD: Status = Status(1 << 14);
    /// IPS_HW_OFFLOAD: the network card forwards it.
    pub const HARDWARE_OFFLOAD: Status = Status(1 << 15);
    /// IPS_NAT_CLASH: another connection has the same ports, and chance decides whose an answer is.
    pub const NAT_CLASH: Status = Status(1 << 16);

    /// True if all bits of `other` are set.
    pub fn has(self, other: Status) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Packets and bytes of both directions. Only where `nf_conntrack_acct` was 1 when the entry was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

/// An entry. A value that the kernel did not send is neutral or `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// From the side that opened it, before any translation.
    pub original: Tuple,
    /// Tuple of the packets that come back, after any translation: its destination is the outside address and port.
    pub reply: Tuple,
    /// Its status bits so far.
    pub status: Status,
    /// Seconds until it is forgotten if nothing more arrives. `None` of offloaded ones, whose flow table counts.
    pub timeout_s: Option<u32>,
    /// `enum tcp_conntrack` or `enum sctp_conntrack`.
    pub state: Option<u8>,
    /// For TCP: sequence numbers are not checked, in both directions.
    pub liberal: bool,
    /// For TCP: data of either side wait for an acknowledgement, as far as conntrack has seen.
    pub unacknowledged: bool,
    /// Mark of the connection (`ct mark`).
    pub mark: u32,
    /// Zone; 0 is the default one. If the directions are in different zones, the zone of the direction that has one.
    pub zone: u16,
    /// Traffic, where the kernel counts it.
    pub counters: Option<Counters>,
    /// When it began, ns since 1970, where the kernel keeps it (`nf_conntrack_timestamp`).
    pub start_ns: Option<u64>,
}

impl Entry {
    /// Reads the attributes of a message over the previous contents. False if a direction is missing or cut short, so that the
    /// message is no valid entry.
    pub(crate) fn read(&mut self, attributes: &[u8]) -> bool {
        *self = Entry::default();
        self.read_attributes(attributes) == Some(true)
    }

    fn read_attributes(&mut self, attributes: &[u8]) -> Option<bool> {
        let (mut original, mut reply) = (false, false);
        for (kind, payload) in Attributes(attributes) {
            match kind {
                TUPLE_ORIG => original = self.original.read(payload, &mut self.zone),
                TUPLE_REPLY => reply = self.reply.read(payload, &mut self.zone),
                STATUS => self.status = Status(u32_be(payload)?),
                TIMEOUT => self.timeout_s = Some(u32_be(payload)?),
                MARK => self.mark = u32_be(payload)?,
                ZONE => self.zone = u16_be(payload)?,
                PROTOINFO => {
                    (self.state, self.liberal, self.unacknowledged) =
                        protocol_state(payload).unwrap_or_default();
                }
                COUNTERS_ORIG | COUNTERS_REPLY => {
                    let sum = self.counters.get_or_insert_default();
                    for (kind, payload) in Attributes(payload) {
                        match kind {
                            COUNTERS_PACKETS => sum.packets = sum.packets.saturating_add(u64_be(payload)?),
                            COUNTERS_BYTES => sum.bytes = sum.bytes.saturating_add(u64_be(payload)?),
                            _ => {}
                        }
                    }
                }
                TIMESTAMP => self.start_ns = Attributes(payload).get(TIMESTAMP_START).and_then(u64_be),
                _ => {}
            }
        }
        Some(original && reply)
    }
}

impl Tuple {
    /// Appends it to a request; only for protocols with ports, and addresses of one family.
    pub(super) fn write(&self, message: Message) -> Message {
        let message = message.nest(TUPLE_IP, |m| match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => m.attr(IP_V4_SRC, &a.octets()).attr(IP_V4_DST, &b.octets()),
            (IpAddr::V6(a), IpAddr::V6(b)) => m.attr(IP_V6_SRC, &a.octets()).attr(IP_V6_DST, &b.octets()),
            // Nothing is what the kernel refuses.
            _ => m,
        });
        message.nest(TUPLE_PROTO, |m| {
            m.attr(PROTO_NUM, &[self.protocol])
                .attr(PROTO_SRC_PORT, &self.source_port.to_be_bytes())
                .attr(PROTO_DST_PORT, &self.destination_port.to_be_bytes())
        })
    }

    /// True if both addresses and the protocol were there.
    fn read(&mut self, attributes: &[u8], zone: &mut u16) -> bool {
        let (mut addresses, mut protocol) = (false, false);
        for (kind, payload) in Attributes(attributes) {
            match kind {
                TUPLE_IP => addresses = self.read_addresses(payload).is_some(),
                TUPLE_PROTO => protocol = self.read_protocol(payload).is_some(),
                TUPLE_ZONE => *zone = u16_be(payload).unwrap_or(0),
                _ => {}
            }
        }
        addresses && protocol
    }

    fn read_addresses(&mut self, attributes: &[u8]) -> Option<()> {
        let v4 = |payload: &[u8]| Some(Address::v4(payload.get(..4)?.try_into().ok()?));
        let v6 = |payload: &[u8]| Some(Address(u128::from_be_bytes(payload.get(..16)?.try_into().ok()?)));
        let (mut source, mut destination) = (None, None);
        for (kind, payload) in Attributes(attributes) {
            match kind {
                IP_V4_SRC => source = v4(payload),
                IP_V4_DST => destination = v4(payload),
                IP_V6_SRC => source = v6(payload),
                IP_V6_DST => destination = v6(payload),
                _ => {}
            }
        }
        (self.source, self.destination) = (source?, destination?);
        Some(())
    }

    fn read_protocol(&mut self, attributes: &[u8]) -> Option<()> {
        let mut number = None;
        for (kind, payload) in Attributes(attributes) {
            match kind {
                PROTO_NUM => number = payload.first().copied(),
                PROTO_SRC_PORT | PROTO_ICMP_ID | PROTO_ICMPV6_ID => self.source_port = u16_be(payload)?,
                PROTO_DST_PORT => self.destination_port = u16_be(payload)?,
                PROTO_ICMP_TYPE | PROTO_ICMPV6_TYPE => {
                    self.destination_port |= u16::from(*payload.first()?) << 8;
                }
                PROTO_ICMP_CODE | PROTO_ICMPV6_CODE => self.destination_port |= u16::from(*payload.first()?),
                _ => {}
            }
        }
        self.protocol = number?;
        Some(())
    }
}

/// The state, whether sequence numbers are not checked, and whether data are unacknowledged.
fn protocol_state(attributes: &[u8]) -> Option<(Option<u8>, bool, bool)> {
    let (kind, inner) =
        Attributes(attributes).find(|(kind, _)| matches!(*kind, PROTOINFO_TCP | PROTOINFO_SCTP))?;
    let first = |attribute| Attributes(inner).get(attribute).and_then(|bytes| bytes.first().copied());
    let flags = [PROTOINFO_FLAGS_ORIGINAL, PROTOINFO_FLAGS_REPLY].map(|side| match kind {
        PROTOINFO_TCP => first(side).unwrap_or_default(),
        _ => 0,
    });
    let liberal = flags.iter().all(|flags| flags & LIBERAL != 0);
    Some((first(PROTOINFO_STATE), liberal, flags.iter().any(|flags| flags & UNACKNOWLEDGED != 0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::HEADER;

    /// The kernel's message about one TCP connection behind source NAT: `struct nfgenmsg` left out.
    fn message() -> Vec<u8> {
        let tuple = |m: Message, kind: u16, a: [u8; 4], b: [u8; 4], p: u16, q: u16| {
            m.nest(kind, |m| {
                m.nest(TUPLE_IP, |m| m.attr(IP_V4_SRC, &a).attr(IP_V4_DST, &b)).nest(TUPLE_PROTO, |m| {
                    m.attr(PROTO_NUM, &[6])
                        .attr(PROTO_SRC_PORT, &p.to_be_bytes())
                        .attr(PROTO_DST_PORT, &q.to_be_bytes())
                })
            })
        };
        let m = Message::new(0x100, 0);
        let m = tuple(m, TUPLE_ORIG, [10, 0, 0, 2], [198, 18, 0, 9], 40_000, 443);
        let m = tuple(m, TUPLE_REPLY, [198, 18, 0, 9], [198, 18, 0, 1], 443, 1025);
        m.attr(STATUS, &0x19e_u32.to_be_bytes())
            .attr(MARK, &7_u32.to_be_bytes())
            .attr(TIMEOUT, &431_999_u32.to_be_bytes())
            .nest(PROTOINFO, |m| m.nest(PROTOINFO_TCP, |m| m.attr(PROTOINFO_STATE, &[3])))
            .nest(COUNTERS_ORIG, |m| {
                m.attr(COUNTERS_PACKETS, &2_u64.to_be_bytes()).attr(COUNTERS_BYTES, &120_u64.to_be_bytes())
            })
            .nest(COUNTERS_REPLY, |m| {
                m.attr(COUNTERS_PACKETS, &1_u64.to_be_bytes()).attr(COUNTERS_BYTES, &60_u64.to_be_bytes())
            })
            .attr(ZONE, &5_u16.to_be_bytes())
            .finish(1)[HEADER..]
            .to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Entry> {
        let mut entry = Entry { mark: 99, counters: Some(Counters::default()), ..Entry::default() };
        entry.read(bytes).then_some(entry)
    }

    #[test]
    fn every_attribute_arrives_where_it_belongs() {
        let entry = read(&message()).unwrap();
        let ip = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let original = Tuple {
            source: ip("10.0.0.2"),
            destination: ip("198.18.0.9"),
            protocol: 6,
            source_port: 40_000,
            destination_port: 443,
        };
        assert_eq!(entry.original, original);
        assert_eq!((entry.reply.destination, entry.reply.destination_port), (ip("198.18.0.1"), 1025));
        assert!(entry.status.has(Status::ASSURED) && entry.status.has(Status::SOURCE_NAT));
        assert!(!entry.status.has(Status::DESTINATION_NAT));
        assert_eq!((entry.timeout_s, entry.state), (Some(431_999), Some(3)));
        assert_eq!((entry.mark, entry.zone), (7, 5));
        assert_eq!(entry.counters, Some(Counters { packets: 3, bytes: 180 }));
        assert_eq!(entry.start_ns, None);
        assert_eq!(entry.original.source.ip().to_string(), "10.0.0.2");
    }

    proptest! {
        /// A cut message has lost something or is still whole, and never a half of an address.
        #[test]
        fn a_truncated_message_is_no_other_entry(cut in 0_usize..400) {
            let whole = message();
            let cut = cut.min(whole.len());
            if let Some(entry) = read(&whole[..cut]) {
                let all = read(&whole).unwrap();
                prop_assert_eq!((entry.original, entry.reply), (all.original, all.reply));
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(entry) = read(&bytes) {
                // Both directions take at least a nested address pair and a protocol.
                prop_assert!(bytes.len() >= 2 * (4 + 4 + 8 + 8 + 4 + 5));
                prop_assert!(entry.original.source.ip() == entry.original.source.ip());
            }
        }

        /// Bytes turned over in a real message, lengths among them.
        #[test]
        fn a_damaged_message_never_panics(at in prop::collection::vec((0_usize..400, any::<u8>()), 1..8)) {
            let mut bytes = message();
            for (at, value) in at {
                let length = bytes.len();
                bytes[at % length] = value;
            }
            if let Some(entry) = read(&bytes) {
                let _ = (entry.original.source.ip(), entry.reply.destination.ip());
            }
        }
    }
}
