//! Frames for recipes: packets that no socket would send.

use std::net::Ipv4Addr;

use weir_wire::ethernet::IPV4;
use weir_wire::{Ethernet, Ipv4, Tcp, protocol};

/// The header of a packet of that protocol with `length` bytes behind it, whole and not to be fragmented.
pub(crate) fn header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, length: usize) -> Ipv4 {
    Ipv4 {
        tos: 0,
        total_length: (Ipv4::LENGTH + length) as u16,
        identification: 1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol,
        source: from,
        destination: to,
    }
}

/// A packet with that header between two Ethernet addresses; `fill` writes what is behind the header.
pub(crate) fn ipv4(
    own: [u8; 6],
    peer: [u8; 6],
    ip: Ipv4,
    fill: impl FnOnce(&mut [u8]) -> Result<(), weir_wire::Error>,
) -> Vec<u8> {
    let mut frame = vec![0; Ethernet::LENGTH + usize::from(ip.total_length)];
    let (front, payload) = frame.split_at_mut(Ethernet::LENGTH + Ipv4::LENGTH);
    let written = Ethernet { destination: peer, source: own, ethertype: IPV4 }
        .write(front)
        .and_then(|()| ip.write(&mut front[Ethernet::LENGTH..]))
        .and_then(|()| fill(payload));
    debug_assert!(written.is_ok(), "the frame has the very lengths that are written");
    frame
}

/// Turns the last byte over, so that the checksum no longer fits.
pub(crate) fn damaged(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(last) = frame.last_mut() {
        *last ^= 0xff;
    }
    frame
}

/// A SYN of TCP without options, from an address and port to another.
pub fn syn(own: [u8; 6], peer: [u8; 6], from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    let ip = Ipv4 { identification: from.1 ^ to.1, ..header(from.0, to.0, protocol::TCP, Tcp::LENGTH) };
    let tcp = Tcp {
        source_port: from.1,
        destination_port: to.1,
        sequence: 1,
        acknowledgement: 0,
        flags: Tcp::SYN,
        window: 64_240,
        checksum: 0,
        urgent: 0,
    };
    ipv4(own, peer, ip, |segment| tcp.seal(from.0.into(), to.0.into(), segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_what_it_says() {
        let frame = syn([2; 6], [4; 6], ([198, 18, 0, 2].into(), 40_000), ([198, 19, 0, 2].into(), 80));
        let packet = weir_wire::Datagram::in_frame(&frame).unwrap().unwrap();
        assert_eq!((packet.protocol, packet.hops), (6, 64));
        assert!(Tcp::is_sound(packet.source, packet.destination, packet.payload));
        let (tcp, _, _) = Tcp::read(packet.payload).unwrap();
        assert_eq!((tcp.source_port, tcp.destination_port, tcp.flags), (40_000, 80, Tcp::SYN));
    }
}
