//! The IPv6 header and its extension headers (RFC 8200).

use std::net::Ipv6Addr;

use crate::bytes::{at, room, take, u16_at, u32_at};
use crate::{Error, Fragment};

/// The fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6 {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of what follows this header, bytes.
    pub payload_length: u16,
    /// Type of the next header: an extension header or a protocol.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// From where.
    pub source: Ipv6Addr,
    /// To where.
    pub destination: Ipv6Addr,
}

const NAME: &str = "IPv6 header";

impl Ipv6 {
    /// Length, bytes.
    pub const LENGTH: usize = 40;

    /// Takes the header off the front of a whole packet. The rest begins with the first extension header or with the protocol
    /// (see [`upper_layer`]) and ends before the link's padding.
    ///
    /// # Errors
    /// If the packet is not whole, or the header is malformed. Jumbograms (RFC 2675) say a length of 0 and come back empty.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, rest) = Ipv6::fields(bytes)?;
        let length = usize::from(header.payload_length);
        let payload = rest.get(..length).ok_or(Error::Truncated {
            header: "IPv6 packet",
            needed: Self::LENGTH + length,
            there: bytes.len(),
        })?;
        Ok((header, payload))
    }

    /// As [`Ipv6::read`], for a packet of which an ICMPv6 error quotes only the beginning (RFC 4443 section 2.4).
    ///
    /// # Errors
    /// If the header is not whole, or malformed.
    pub fn read_quoted(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, rest) = Ipv6::fields(bytes)?;
        Ok((header, &rest[..rest.len().min(header.payload_length.into())]))
    }

    #[inline]
    fn fields(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) = take::<{ Self::LENGTH }>(bytes, NAME)?;
        let first = u32_at(h, 0);
        if first >> 28 != 6 {
            return Err(Error::Malformed { header: NAME, field: "version", value: (first >> 28) as usize });
        }
        let header = Ipv6 {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_length: u16_at(h, 4),
            next_header: h[6],
            hop_limit: h[7],
            source: Ipv6Addr::from(at::<16, _>(h, 8)),
            destination: Ipv6Addr::from(at::<16, _>(h, 24)),
        };
        Ok((header, rest))
    }

    /// Puts it at the front.
    ///
    /// # Errors
    /// If there is no room.
    ///
    /// # Panics
    /// If the flow label has more than 20 bits.
    pub fn write(&self, bytes: &mut [u8]) -> Result<(), Error> {
        assert!(self.flow_label <= 0xf_ffff, "flow label {:#x}", self.flow_label);
        let h = room::<{ Self::LENGTH }>(bytes, NAME)?;
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        h[..4].copy_from_slice(&first.to_be_bytes());
        h[4..6].copy_from_slice(&self.payload_length.to_be_bytes());
        h[6] = self.next_header;
        h[7] = self.hop_limit;
        h[8..24].copy_from_slice(&self.source.octets());
        h[24..].copy_from_slice(&self.destination.octets());
        Ok(())
    }
}

/// The part after the extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    /// Its protocol, also if it is 59 (no next header) or 50 (ESP, which only its ends can read).
    pub protocol: u8,
    /// Set if the packet is a fragment.
    pub fragment: Option<Fragment>,
    /// Its bytes: of a fragment that is not the first a piece from the middle.
    pub payload: &'a [u8],
}

/// Most extension headers that are skipped. RFC 8200 section 4.1 has an order in which each comes once (destination options
/// twice), seven in all. A packet with more is an attempt to keep us busy.
const MOST_EXTENSIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;

/// Skips hop-by-hop options, routing, fragment, authentication, destination options and mobility headers.
///
/// # Errors
/// If one is not whole, or there are more than eight.
#[inline]
pub fn upper_layer(next_header: u8, bytes: &[u8]) -> Result<UpperLayer<'_>, Error> {
    let mut upper = UpperLayer { protocol: next_header, fragment: None, payload: bytes };
    for _ in 0..=MOST_EXTENSIONS {
        let (h, length) = match upper.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY => {
                let h = first_eight(upper.payload)?;
                (h, 8 + usize::from(h[1]) * 8)
            }
            // RFC 4302 section 2.2: its length counts in units of 4 bytes.
            AUTHENTICATION => {
                let h = first_eight(upper.payload)?;
                (h, 8 + usize::from(h[1]) * 4)
            }
            FRAGMENT => (first_eight(upper.payload)?, 8),
            _ => return Ok(upper),
        };
        let rest = upper.payload.get(length..).ok_or(Error::Truncated {
            header: EXTENSION,
            needed: length,
            there: upper.payload.len(),
        })?;
        if upper.protocol == FRAGMENT {
            let place = u16_at(h, 2);
            let fragment = Fragment {
                identification: u32_at(h, 4),
                // The offset counts in units of 8 bytes and stands above three other bits.
                offset: usize::from(place & !7),
                more: place & 1 != 0,
            };
            upper.fragment = Some(fragment);
            if fragment.offset != 0 {
                // The rest is a piece from the middle, not a header.
                return Ok(UpperLayer { protocol: h[0], payload: rest, ..upper });
            }
        }
        upper = UpperLayer { protocol: h[0], payload: rest, ..upper };
    }
    Err(Error::Malformed { header: EXTENSION, field: "number", value: MOST_EXTENSIONS + 1 })
}

const EXTENSION: &str = "IPv6 extension header";

#[inline]
fn first_eight(bytes: &[u8]) -> Result<&[u8; 8], Error> {
    take::<8>(bytes, EXTENSION).map(|(h, _)| h)
}
