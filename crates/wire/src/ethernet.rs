//! Ethernet II frames, without preamble and check sequence: what a packet socket sees.

use crate::Error;
use crate::bytes::{at, room, take, u16_at};

/// Ethernet address.
pub type Mac = [u8; 6];

/// EtherType of IPv4 (RFC 894).
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ARP: u16 = 0x0806;
/// EtherType of a VLAN tag (IEEE 802.1Q).
pub const VLAN: u16 = 0x8100;
/// EtherType of IPv6 (RFC 2464).
pub const IPV6: u16 = 0x86dd;

/// The header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    /// To whom.
    pub destination: Mac,
    /// From whom.
    pub source: Mac,
    /// Type of the payload. Below 1536 it is the length field of IEEE 802.3, and the frame is not Ethernet II.
    pub ethertype: u16,
}

const NAME: &str = "Ethernet header";

impl Ethernet {
    /// Length, bytes.
    pub const LENGTH: usize = 14;

    /// Takes it off the front. A VLAN tag is not skipped: its EtherType says that it follows.
    ///
    /// # Errors
    /// If the bytes end too early.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) = take::<{ Self::LENGTH }>(bytes, NAME)?;
        Ok((Ethernet { destination: at(h, 0), source: at(h, 6), ethertype: u16_at(h, 12) }, rest))
    }

    /// Puts it at the front.
    ///
    /// # Errors
    /// If there is no room.
    pub fn write(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let h = room::<{ Self::LENGTH }>(bytes, NAME)?;
        h[..6].copy_from_slice(&self.destination);
        h[6..12].copy_from_slice(&self.source);
        h[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        Ok(())
    }
}
