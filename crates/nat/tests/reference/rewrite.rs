//! Other endpoints for a packet, as a NAT writes them: the checksum is updated (RFC 1624), never computed anew, so a wrong one
//! stays wrong.

use std::net::{IpAddr, SocketAddr};

use weir_nat::Packet;
use weir_wire::{checksum, protocol};

/// Whether the transport checksum is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksum {
    Updated,
    Stale,
}

/// The packet with other endpoints.
pub(super) fn readdressed(
    packet: Packet,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
) -> Packet {
    rewritten(packet, source, destination, Checksum::Updated)
}

/// The same for a packet of which only the beginning may be there.
pub(super) fn rewritten(
    mut packet: Packet,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    update: Checksum,
) -> Packet {
    let before = covered(&packet);
    if let Some(source) = source {
        packet.header.source = source.ip();
        packet.payload[..2].copy_from_slice(&source.port().to_be_bytes());
    }
    if let Some(destination) = destination {
        packet.header.destination = destination.ip();
        packet.payload[2..4].copy_from_slice(&destination.port().to_be_bytes());
    }
    let at = if packet.header.protocol == protocol::TCP { 16 } else { 6 };
    let after = covered(&packet);
    let Some(field) = packet.payload.get_mut(at..at + 2) else { return packet };
    let old = u16::from_be_bytes([field[0], field[1]]);
    // UDP's 0: no checksum.
    if update == Checksum::Updated && (old != 0 || at == 16) {
        let new = checksum::updated_bytes(old, &before, &after);
        let new = if at == 6 { checksum::udp_value(new) } else { new };
        field.copy_from_slice(&new.to_be_bytes());
    }
    packet
}

/// Addresses and ports, which a transport checksum covers.
fn covered(packet: &Packet) -> Vec<u8> {
    [&octets(packet.header.source)[..], &octets(packet.header.destination), &packet.payload[..4]].concat()
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
