//! Frames for recipes: packets that no socket would send.

use std::net::Ipv4Addr;

use weir_wire::ethernet::IPV4;
use weir_wire::{Ethernet, Ipv4, Tcp, protocol};

/// A SYN of TCP over IPv4 in an Ethernet frame, from an address and port to another.
pub(super) fn syn(own: [u8; 6], peer: [u8; 6], from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    const IP_END: usize = Ethernet::LENGTH + Ipv4::LENGTH;
    let mut frame = vec![0; IP_END + Tcp::LENGTH];
    let ip = Ipv4 {
        tos: 0,
        total_length: (Ipv4::LENGTH + Tcp::LENGTH) as u16,
        identification: from.1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: protocol::TCP,
        source: from.0,
        destination: to.0,
    };
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
    let (headers, segment) = frame.split_at_mut(IP_END);
    let written = Ethernet { destination: peer, source: own, ethertype: IPV4 }
        .write(headers)
        .and_then(|()| ip.write(&mut headers[Ethernet::LENGTH..]))
        .and_then(|()| tcp.seal(from.0.into(), to.0.into(), segment));
    debug_assert!(written.is_ok(), "the frame is as long as its three headers");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_what_it_says() {
        let frame = syn([2; 6], [4; 6], ([198, 18, 0, 2].into(), 40_000), ([198, 19, 0, 2].into(), 80));
        let packet = weir_wire::Datagram::in_frame(&frame).unwrap().unwrap();
        assert!(Tcp::is_sound(packet.source, packet.destination, packet.payload));
        let (tcp, _, _) = Tcp::read(packet.payload).unwrap();
        assert_eq!((tcp.source_port, tcp.destination_port, tcp.flags), (40_000, 80, Tcp::SYN));
    }
}
