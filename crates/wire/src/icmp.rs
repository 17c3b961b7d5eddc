//! ICMP (RFC 792, RFC 1191) and ICMPv6 (RFC 4443): echo, and errors with the packet that they are about.

use std::net::IpAddr;

use crate::bytes::{room, take, u16_at, u32_at};
use crate::{Error, Sum, protocol};

/// A message, with the same words for both versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icmp<'a> {
    /// Echo request or reply.
    Echo {
        /// It is the answer.
        reply: bool,
        /// Identifier of the asking program.
        identifier: u16,
        /// Sequence number of the request.
        sequence: u16,
        /// Comes back as it is sent.
        data: &'a [u8],
    },
    /// The packet could not be delivered. The code says why; its meaning differs between the versions.
    Unreachable {
        /// Why.
        code: u8,
        /// Beginning of the packet.
        quote: &'a [u8],
    },
    /// The packet is longer than the next link carries (ICMP: unreachable with code 4).
    TooBig {
        /// MTU of the link, bytes; 0 from routers older than RFC 1191.
        mtu: u32,
        /// Beginning of the packet.
        quote: &'a [u8],
    },
    /// The packet went too many hops (code 0), or fragments were missing for too long (code 1).
    TimeExceeded {
        /// Which of them.
        code: u8,
        /// Beginning of the packet.
        quote: &'a [u8],
    },
    /// A field of the packet is wrong.
    ParameterProblem {
        /// Kind of problem.
        code: u8,
        /// Offset of the problem in the packet, bytes.
        pointer: u32,
        /// Beginning of the packet.
        quote: &'a [u8],
    },
    /// Anything else: neighbour discovery, redirects, ...
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// The four bytes after the checksum, and the rest.
        rest: &'a [u8],
    },
}

const NAME: &str = "ICMP header";

/// Length of the header of all messages that have a name here, bytes.
pub const LENGTH: usize = 8;

impl<'a> Icmp<'a> {
    /// Reads a message of ICMP.
    ///
    /// # Errors
    /// If the header is not whole.
    pub fn read_v4(bytes: &'a [u8]) -> Result<Self, Error> {
        let (h, rest) = take::<LENGTH>(bytes, NAME)?;
        Ok(match (h[0], h[1]) {
            (0 | 8, 0) => Icmp::echo(h, h[0] == 0, rest),
            (3, 4) => Icmp::TooBig { mtu: u32::from(u16_at(h, 6)), quote: rest },
            (3, code) => Icmp::Unreachable { code, quote: rest },
            (11, code) => Icmp::TimeExceeded { code, quote: rest },
            (12, code) => Icmp::ParameterProblem { code, pointer: u32::from(h[4]), quote: rest },
            (kind, code) => Icmp::Other { kind, code, rest: &bytes[4..] },
        })
    }

    /// Reads a message of ICMPv6.
    ///
    /// # Errors
    /// If the header is not whole.
    pub fn read_v6(bytes: &'a [u8]) -> Result<Self, Error> {
        let (h, rest) = take::<LENGTH>(bytes, NAME)?;
        Ok(match (h[0], h[1]) {
            (1, code) => Icmp::Unreachable { code, quote: rest },
            (2, _) => Icmp::TooBig { mtu: u32_at(h, 4), quote: rest },
            (3, code) => Icmp::TimeExceeded { code, quote: rest },
            (4, code) => Icmp::ParameterProblem { code, pointer: u32_at(h, 4), quote: rest },
            (128 | 129, 0) => Icmp::echo(h, h[0] == 129, rest),
            (kind, code) => Icmp::Other { kind, code, rest: &bytes[4..] },
        })
    }

    fn echo(h: &[u8; 8], reply: bool, data: &'a [u8]) -> Self {
        Icmp::Echo { reply, identifier: u16_at(h, 4), sequence: u16_at(h, 6), data }
    }

    /// The packet that an error is about.
    pub fn quote(&self) -> Option<&'a [u8]> {
        match *self {
            Icmp::Unreachable { quote, .. }
            | Icmp::TooBig { quote, .. }
            | Icmp::TimeExceeded { quote, .. }
            | Icmp::ParameterProblem { quote, .. } => Some(quote),
            Icmp::Echo { .. } | Icmp::Other { .. } => None,
        }
    }

    /// Writes the message with its checksum, and returns its length. The addresses are part of ICMPv6's checksum and say which
    /// version is meant.
    ///
    /// # Errors
    /// If there is no room, or a value does not fit ICMP's narrower field (an MTU above 65,535, a pointer above 255).
    pub fn write(&self, source: IpAddr, destination: IpAddr, bytes: &mut [u8]) -> Result<usize, Error> {
        let v6 = source.is_ipv6();
        let (header, tail) = self.parts(v6)?;
        let there = bytes.len();
        let length = LENGTH + tail.len();
        *room::<LENGTH>(bytes, NAME)? = header;
        bytes
            .get_mut(LENGTH..length)
            .ok_or(Error::Truncated { header: "ICMP message", needed: length, there })?
            .copy_from_slice(tail);
        let pseudo = if v6 {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            Sum::pseudo(source, destination, protocol::ICMPV6, length)
        } else {
            Sum::new()
        };
        let checksum = pseudo.bytes(&bytes[..length]).checksum();
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        Ok(length)
    }

    /// The header with a checksum of 0, and what follows it.
    fn parts(&self, v6: bool) -> Result<([u8; LENGTH], &'a [u8]), Error> {
        let wide = |field, value: u32| Error::Malformed { header: NAME, field, value: value as usize };
        let header = |kind, code, [a, b, c, d]: [u8; 4]| [kind, code, 0, 0, a, b, c, d];
        Ok(match *self {
            Icmp::Echo { reply, identifier, sequence, data } => {
                let kind = match (v6, reply) {
                    (false, true) => 0,
                    (false, false) => 8,
                    (true, false) => 128,
                    (true, true) => 129,
                };
                let ([a, b], [c, d]) = (identifier.to_be_bytes(), sequence.to_be_bytes());
                (header(kind, 0, [a, b, c, d]), data)
            }
            Icmp::Unreachable { code, quote } => (header(if v6 { 1 } else { 3 }, code, [0; 4]), quote),
            Icmp::TooBig { mtu, quote } if v6 => (header(2, 0, mtu.to_be_bytes()), quote),
            Icmp::TooBig { mtu, quote } => {
                let [a, b] = u16::try_from(mtu).map_err(|_| wide("MTU", mtu))?.to_be_bytes();
                (header(3, 4, [0, 0, a, b]), quote)
            }
            Icmp::TimeExceeded { code, quote } => (header(if v6 { 3 } else { 11 }, code, [0; 4]), quote),
            Icmp::ParameterProblem { code, pointer, quote } if v6 => {
                (header(4, code, pointer.to_be_bytes()), quote)
            }
            Icmp::ParameterProblem { code, pointer, quote } => {
                let at = u8::try_from(pointer).map_err(|_| wide("pointer", pointer))?;
                (header(12, code, [at, 0, 0, 0]), quote)
            }
            Icmp::Other { kind, code, rest } => {
                let (second, tail) = take::<4>(rest, NAME)?;
                (header(kind, code, *second), tail)
            }
        })
    }

    /// True if the message's checksum is right.
    pub fn is_sound(source: IpAddr, destination: IpAddr, bytes: &[u8]) -> bool {
        let pseudo = if source.is_ipv6() {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            Sum::pseudo(source, destination, protocol::ICMPV6, length)
        } else {
            Sum::new()
        };
        pseudo.bytes(bytes).is_sound()
    }
}
