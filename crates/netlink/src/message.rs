//! Netlink messages and attributes (include/uapi/linux/netlink.h).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Attributes and messages start at multiples of this (NLMSG_ALIGNTO, NLA_ALIGNTO).
const ALIGN: usize = 4;
/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Bytes of `struct nfgenmsg`: family, version, resource id.
pub(crate) const NFGENMSG: usize = 4;
/// NLA_F_NESTED: the attribute holds attributes.
const NESTED: u16 = 1 << 15;
/// NLA_F_NET_BYTEORDER.
const NET_BYTE_ORDER: u16 = 1 << 14;

/// A request under construction: header, family header, attributes.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A request of that type. NLM_F_REQUEST is added to the flags.
    pub(crate) fn new(kind: u16, flags: i32) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Message { bytes }
    }

    /// A request to a part of netfilter (NFNL_SUBSYS_*) about an address family; the resource is a queue's number, 0 for others.
    pub(crate) fn netfilter(subsystem: i32, kind: u16, flags: i32, family: u8, resource: u16) -> Self {
        let [high, low] = resource.to_be_bytes();
        Message::new((subsystem as u16) << 8 | kind, flags).raw(&[family, 0, high, low])
    }

    /// A request of rtnetlink for all objects of that type and address family, whose header has that many bytes.
    pub(crate) fn dump(kind: u16, family: i32, header: usize) -> Self {
        let mut bytes = vec![0; header];
        bytes[0] = family as u8;
        Message::new(kind, libc::NLM_F_DUMP).raw(&bytes)
    }

    /// Appends the family's header (`struct ifinfomsg` and its like).
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends an attribute.
    pub(crate) fn attr(mut self, kind: u16, payload: &[u8]) -> Self {
        let length = u16::try_from(4 + payload.len()).expect("attributes built here are a few bytes long");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(payload)
    }

    /// Appends a number in host byte order.
    pub(crate) fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends a text, terminated by zero.
    pub(crate) fn attr_str(self, kind: u16, text: &str) -> Self {
        self.attr(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Appends an attribute that holds what `fill` appends.
    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        self = fill(self);
        let length =
            u16::try_from(self.bytes.len() - start).expect("attributes built here are a few bytes long");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    /// The message on the wire, numbered. The kernel knows the sender by its socket, so the port id stays 0.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("a message is a few kilobytes at most");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message out of a datagram from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received<'a> {
    /// Message type.
    pub(crate) kind: u16,
    /// NLM_F_* flags.
    pub(crate) flags: u16,
    /// Number of the request that it answers.
    pub(crate) sequence: u32,
    /// The bytes after the header.
    pub(crate) payload: &'a [u8],
}

/// The messages in a datagram; a broken rest is left out.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?) as usize;
        let message = bytes.get(..length).filter(|m| m.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Received {
            kind: u16::from_ne_bytes([message[4], message[5]]),
            flags: u16::from_ne_bytes([message[6], message[7]]),
            sequence: u32::from_ne_bytes([message[8], message[9], message[10], message[11]]),
            payload: &message[HEADER..],
        })
    })
}

/// Walks attributes as (type without flags, payload); a broken rest is left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(self.0.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?) & !(NESTED | NET_BYTE_ORDER);
        let payload = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, payload))
    }
}

impl<'a> Attributes<'a> {
    /// The attributes behind a family header of that many bytes.
    pub(crate) fn after(payload: &'a [u8], header: usize) -> Self {
        Attributes(payload.get(header..).unwrap_or_default())
    }

    /// The payload of the first attribute of that type.
    pub(crate) fn get(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find(|(k, _)| *k == kind).map(|(_, payload)| payload)
    }
}

/// A text attribute without its terminating zero.
pub(crate) fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).trim_end_matches('\0').to_owned()
}

/// The bytes before the first zero: the text in a field of fixed length.
pub(crate) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}

/// A number in host byte order.
pub(crate) fn u32_ne(payload: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(payload.get(0..4)?.try_into().ok()?))
}

/// A number in host byte order.
pub(crate) fn u16_ne(payload: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(payload.get(0..2)?.try_into().ok()?))
}

/// A number in host byte order.
pub(crate) fn u64_ne(payload: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(payload.get(0..8)?.try_into().ok()?))
}

/// A number in network byte order.
pub(crate) fn u16_be(payload: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(payload.get(0..2)?.try_into().ok()?))
}

/// A number in network byte order.
pub(crate) fn u32_be(payload: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(payload.get(0..4)?.try_into().ok()?))
}

/// A number in network byte order.
pub(crate) fn u64_be(payload: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(payload.get(0..8)?.try_into().ok()?))
}

/// An address of either family, told by its length.
pub(crate) fn address(payload: &[u8]) -> Option<IpAddr> {
    match payload.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(payload).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(payload).ok()?).into()),
        _ => None,
    }
}

/// The family of an address, as a header names it.
pub(crate) fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

/// The bytes of an address, as an attribute holds them.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_the_header_file() {
        let bytes = Message::new(16, libc::NLM_F_ACK)
            .raw(&[7])
            .nest(18, |m| m.attr_str(1, "veth").attr(2, &[]))
            .attr_u32(4, 0x0102_0304)
            .finish(9);
        let mut expected = Vec::new();
        expected.extend_from_slice(&48u32.to_ne_bytes());
        expected.extend_from_slice(&16u16.to_ne_bytes());
        expected.extend_from_slice(&5u16.to_ne_bytes()); // NLM_F_REQUEST | NLM_F_ACK
        expected.extend_from_slice(&9u32.to_ne_bytes());
        expected.extend_from_slice(&[0; 4]);
        expected.extend_from_slice(&[7, 0, 0, 0]);
        // Nested: 4 + (4 + 5 + 3 padding) + 4 = 20 bytes.
        expected.extend_from_slice(&20u16.to_ne_bytes());
        expected.extend_from_slice(&(18u16 | 0x8000).to_ne_bytes());
        expected.extend_from_slice(&9u16.to_ne_bytes());
        expected.extend_from_slice(&1u16.to_ne_bytes());
        expected.extend_from_slice(b"veth\0\0\0\0");
        expected.extend_from_slice(&4u16.to_ne_bytes());
        expected.extend_from_slice(&2u16.to_ne_bytes());
        expected.extend_from_slice(&8u16.to_ne_bytes());
        expected.extend_from_slice(&4u16.to_ne_bytes());
        expected.extend_from_slice(&0x0102_0304u32.to_ne_bytes());
        assert_eq!(bytes, expected);

        let read: Vec<_> = messages(&bytes).collect();
        assert_eq!((read.len(), read[0].kind, read[0].sequence), (1, 16, 9));
        let attributes = Attributes::after(read[0].payload, 4);
        assert_eq!(text(Attributes(attributes.get(18).unwrap()).get(1).unwrap()), "veth");
        assert_eq!(u32_ne(attributes.get(4).unwrap()), Some(0x0102_0304));
        assert_eq!(attributes.get(99), None);
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics_or_loops(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            // Every step consumes at least a header, so the number of steps is bounded by the length.
            proptest::prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER);
            proptest::prop_assert!(Attributes(&bytes).count() <= bytes.len() / 4 + 1);
        }
    }
}
