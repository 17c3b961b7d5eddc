//! The UDP header (RFC 768).

use std::net::IpAddr;

use crate::bytes::{room, take, u16_at};
use crate::checksum::{transport, udp_value};
use crate::{Error, Sum, protocol};

/// The header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Length of header and payload, bytes.
    pub length: u16,
    /// As it came; 0: none.
    pub checksum: u16,
}

const NAME: &str = "UDP header";

impl Udp {
    /// Length, bytes.
    pub const LENGTH: usize = 8;

    /// Takes it off the front of a whole datagram and returns the payload.
    ///
    /// # Errors
    /// If the datagram is not whole, or its length is below that of the header.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, _) = Udp::read_quoted(bytes)?;
        let length = usize::from(header.length);
        let payload = bytes.get(Self::LENGTH..length).ok_or(if length < Self::LENGTH {
            Error::Malformed { header: NAME, field: "length", value: length }
        } else {
            Error::Truncated { header: "UDP datagram", needed: length, there: bytes.len() }
        })?;
        Ok((header, payload))
    }

    /// As [`Udp::read`], for a datagram of which an ICMP error quotes only the beginning.
    ///
    /// # Errors
    /// If the header is not whole.
    #[inline]
    pub fn read_quoted(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) = take::<{ Self::LENGTH }>(bytes, NAME)?;
        let header = Udp {
            source_port: u16_at(h, 0),
            destination_port: u16_at(h, 2),
            length: u16_at(h, 4),
            checksum: u16_at(h, 6),
        };
        Ok((header, rest))
    }

    /// Puts a header before the payload that is in `datagram` already, with length and checksum.
    ///
    /// # Errors
    /// If the datagram has no room for the header, or is longer than 65,535 bytes.
    pub fn seal(source: (IpAddr, u16), destination: (IpAddr, u16), datagram: &mut [u8]) -> Result<(), Error> {
        let length = u16::try_from(datagram.len()).map_err(|_| Error::Malformed {
            header: NAME,
            field: "length",
            value: datagram.len(),
        })?;
        let h = room::<{ Self::LENGTH }>(datagram, NAME)?;
        h[..2].copy_from_slice(&source.1.to_be_bytes());
        h[2..4].copy_from_slice(&destination.1.to_be_bytes());
        h[4..6].copy_from_slice(&length.to_be_bytes());
        h[6..].fill(0);
        let checksum = udp_value(transport(source.0, destination.0, protocol::UDP, datagram));
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    /// True if the datagram's checksum is right. IPv4 may come without (RFC 768), IPv6 must not (RFC 8200 section 8.1).
    pub fn is_sound(source: IpAddr, destination: IpAddr, datagram: &[u8]) -> bool {
        match Udp::read(datagram) {
            Ok((header, _)) if header.checksum == 0 => source.is_ipv4(),
            Ok((header, _)) => {
                let length = header.length;
                Sum::pseudo(source, destination, protocol::UDP, length.into())
                    .bytes(&datagram[..length.into()])
                    .is_sound()
            }
            Err(_) => false,
        }
    }
}
