//! Frames that the recipes of this group send.

use std::net::Ipv4Addr;

use weir_wire::ethernet::IPV4;
use weir_wire::{Ethernet, Ipv4, Udp};

/// A UDP datagram of IPv4, or the first piece of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram {
    /// From.
    pub(super) source: Ipv4Addr,
    /// To.
    pub(super) destination: Ipv4Addr,
    /// Number of the datagram.
    pub(super) identification: u16,
    /// It must not be fragmented.
    pub(super) dont_fragment: bool,
    /// Further fragments follow.
    pub(super) more_fragments: bool,
    /// Bytes of UDP with its header.
    pub(super) length: usize,
}

/// In a frame between two Ethernet addresses.
pub(super) fn frame(own: [u8; 6], peer: [u8; 6], datagram: Datagram) -> Vec<u8> {
    let mut frame = vec![0; Ethernet::LENGTH + Ipv4::LENGTH + datagram.length];
    let (front, payload) = frame.split_at_mut(Ethernet::LENGTH + Ipv4::LENGTH);
    let ethernet = Ethernet { destination: peer, source: own, ethertype: IPV4 };
    let ip = Ipv4 {
        tos: 0,
        total_length: (Ipv4::LENGTH + datagram.length) as u16,
        identification: datagram.identification,
        dont_fragment: datagram.dont_fragment,
        more_fragments: datagram.more_fragments,
        fragment_offset: 0,
        ttl: 64,
        protocol: weir_wire::protocol::UDP,
        source: datagram.source,
        destination: datagram.destination,
    };
    // The buffer has the very lengths that are written.
    let written =
        ethernet.write(front).and_then(|()| ip.write(&mut front[Ethernet::LENGTH..])).and_then(|()| {
            Udp::seal((datagram.source.into(), 40_000), (datagram.destination.into(), 7000), payload)
        });
    debug_assert!(written.is_ok());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_what_it_says() {
        let datagram = Datagram {
            source: [198, 18, 0, 2].into(),
            destination: [198, 19, 0, 2].into(),
            identification: 7,
            dont_fragment: false,
            more_fragments: true,
            length: 108,
        };
        let frame = frame([2; 6], [4; 6], datagram);
        let (ip, udp) = Ipv4::read(&frame[Ethernet::LENGTH..]).unwrap();
        assert_eq!((ip.identification, ip.more_fragments, ip.fragment_offset), (7, true, 0));
        assert!(Udp::is_sound(ip.source.into(), ip.destination.into(), udp));
    }
}
