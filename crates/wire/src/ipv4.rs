//! The IPv4 header (RFC 791).

use std::net::Ipv4Addr;

use crate::bytes::{at, room, take, u16_at};
use crate::{Error, Fragment, Sum};

/// The header without its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4 {
    /// Type of service: DSCP and ECN (RFC 2474, RFC 3168).
    pub tos: u8,
    /// Length of header and payload, bytes.
    pub total_length: u16,
    /// Same in all fragments of a datagram.
    pub identification: u16,
    /// It must not be fragmented (DF).
    pub dont_fragment: bool,
    /// More fragments follow (MF).
    pub more_fragments: bool,
    /// Offset of the payload in the datagram's, in units of 8 bytes: 0 to 8191.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// From where.
    pub source: Ipv4Addr,
    /// To where.
    pub destination: Ipv4Addr,
}

const NAME: &str = "IPv4 header";
const DF: u16 = 0x4000;
const MF: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

impl Ipv4 {
    /// Length without options, bytes.
    pub const LENGTH: usize = 20;

    /// Takes it off the front of a whole packet, skips its options, and returns the payload without the link's padding.
    ///
    /// # Errors
    /// If the packet is not whole, or the header is malformed.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, length) = Ipv4::fields(bytes)?;
        let total = usize::from(header.total_length);
        let payload = bytes.get(length..total).ok_or(if total < length {
            Error::Malformed { header: NAME, field: "total length", value: total }
        } else {
            Error::Truncated { header: "IPv4 packet", needed: total, there: bytes.len() }
        })?;
        Ok((header, payload))
    }

    /// As [`Ipv4::read`], for a packet of which an ICMP error quotes only the beginning (RFC 792, RFC 1812 section 4.3.2.3): the
    /// payload is what is there of it.
    ///
    /// # Errors
    /// If the header is not whole, or malformed.
    pub fn read_quoted(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, length) = Ipv4::fields(bytes)?;
        let end = usize::from(header.total_length).min(bytes.len());
        Ok((header, bytes.get(length..end).unwrap_or_default()))
    }

    #[inline]
    fn fields(bytes: &[u8]) -> Result<(Self, usize), Error> {
        let (h, _) = take::<{ Self::LENGTH }>(bytes, NAME)?;
        let malformed = |field, value| Err(Error::Malformed { header: NAME, field, value });
        if h[0] >> 4 != 4 {
            return malformed("version", usize::from(h[0] >> 4));
        }
        let length = usize::from(h[0] & 0xf) * 4;
        if length < Self::LENGTH {
            return malformed("length", length);
        }
        if bytes.len() < length {
            return Err(Error::Truncated { header: NAME, needed: length, there: bytes.len() });
        }
        let flags = u16_at(h, 6);
        let header = Ipv4 {
            tos: h[1],
            total_length: u16_at(h, 2),
            identification: u16_at(h, 4),
            dont_fragment: flags & DF != 0,
            more_fragments: flags & MF != 0,
            fragment_offset: flags & OFFSET,
            ttl: h[8],
            protocol: h[9],
            source: Ipv4Addr::from(at::<4, _>(h, 12)),
            destination: Ipv4Addr::from(at::<4, _>(h, 16)),
        };
        Ok((header, length))
    }

    /// Puts it at the front, without options, with its checksum.
    ///
    /// # Errors
    /// If there is no room.
    ///
    /// # Panics
    /// If the fragment offset is above 8191.
    pub fn write(&self, bytes: &mut [u8]) -> Result<(), Error> {
        assert!(self.fragment_offset <= OFFSET, "fragment offset {}", self.fragment_offset);
        let h = room::<{ Self::LENGTH }>(bytes, NAME)?;
        let mut flags = self.fragment_offset;
        flags |= if self.dont_fragment { DF } else { 0 };
        flags |= if self.more_fragments { MF } else { 0 };
        h[0] = 0x45;
        h[1] = self.tos;
        h[2..4].copy_from_slice(&self.total_length.to_be_bytes());
        h[4..6].copy_from_slice(&self.identification.to_be_bytes());
        h[6..8].copy_from_slice(&flags.to_be_bytes());
        h[8] = self.ttl;
        h[9] = self.protocol;
        h[10..12].fill(0);
        h[12..16].copy_from_slice(&self.source.octets());
        h[16..].copy_from_slice(&self.destination.octets());
        let checksum = Sum::new().bytes(h).checksum();
        h[10..12].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    /// Which fragment it is, if it is one.
    pub fn fragment(&self) -> Option<Fragment> {
        let whole = self.fragment_offset == 0 && !self.more_fragments;
        (!whole).then(|| Fragment {
            identification: u32::from(self.identification),
            offset: usize::from(self.fragment_offset) * 8,
            more: self.more_fragments,
        })
    }

    /// True if these bytes begin with an IPv4 header, options included, whose checksum is right.
    pub fn is_sound(bytes: &[u8]) -> bool {
        Ipv4::fields(bytes).is_ok_and(|(_, length)| Sum::new().bytes(&bytes[..length]).is_sound())
    }
}
