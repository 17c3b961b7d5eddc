//! The TCP header (RFC 9293).

use std::net::IpAddr;

use crate::bytes::{room, take, u16_at, u32_at};
use crate::checksum::transport;
use crate::{Error, Sum, protocol};

/// The header without its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number: means something only with [`Tcp::ACK`].
    pub acknowledgement: u32,
    /// Control bits.
    pub flags: u8,
    /// Window.
    pub window: u16,
    /// As it came; not used for writing.
    pub checksum: u16,
    /// Urgent pointer.
    pub urgent: u16,
}

const NAME: &str = "TCP header";

impl Tcp {
    /// Length without options, bytes.
    pub const LENGTH: usize = 20;
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// First of a connection.
    pub const SYN: u8 = 0x02;
    /// The connection is reset.
    pub const RST: u8 = 0x04;
    /// Hand it to the application now.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;

    /// Takes it off the front and returns its options and the payload.
    ///
    /// # Errors
    /// If the header is not whole, or its length is below 20 bytes.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8], &[u8]), Error> {
        let (header, rest) = Tcp::fields(bytes)?;
        let length = usize::from(bytes[12] >> 4) * 4;
        let options = length.checked_sub(Self::LENGTH).ok_or(Error::Malformed {
            header: NAME,
            field: "length",
            value: length,
        })?;
        let (options, payload) = rest.split_at_checked(options).ok_or(Error::Truncated {
            header: NAME,
            needed: length,
            there: bytes.len(),
        })?;
        Ok((header, options, payload))
    }

    #[inline]
    fn fields(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) = take::<{ Self::LENGTH }>(bytes, NAME)?;
        let header = Tcp {
            source_port: u16_at(h, 0),
            destination_port: u16_at(h, 2),
            sequence: u32_at(h, 4),
            acknowledgement: u32_at(h, 8),
            flags: h[13],
            window: u16_at(h, 14),
            checksum: u16_at(h, 16),
            urgent: u16_at(h, 18),
        };
        Ok((header, rest))
    }

    /// Puts the header, without options, before the payload that is in `segment` already, with its checksum.
    ///
    /// # Errors
    /// If the segment has no room for the header.
    pub fn seal(&self, source: IpAddr, destination: IpAddr, segment: &mut [u8]) -> Result<(), Error> {
        let h = room::<{ Self::LENGTH }>(segment, NAME)?;
        h[..2].copy_from_slice(&self.source_port.to_be_bytes());
        h[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        h[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        h[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        h[12] = (Self::LENGTH as u8 / 4) << 4;
        h[13] = self.flags;
        h[14..16].copy_from_slice(&self.window.to_be_bytes());
        h[16..18].fill(0);
        h[18..].copy_from_slice(&self.urgent.to_be_bytes());
        let checksum = transport(source, destination, protocol::TCP, segment);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }

    /// True if the segment's checksum is right.
    pub fn is_sound(source: IpAddr, destination: IpAddr, segment: &[u8]) -> bool {
        let length = u32::try_from(segment.len()).unwrap_or(u32::MAX);
        Tcp::read(segment).is_ok()
            && Sum::pseudo(source, destination, protocol::TCP, length).bytes(segment).is_sound()
    }
}
