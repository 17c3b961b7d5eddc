//! Frames that the recipes of this group send.

use crate::recipe::{LabHost, Traffic};
use std::net::Ipv4Addr;

use weir_wire::{Ipv4, Udp, protocol};

use crate::recipe::frames::{header, ipv4};

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

impl Datagram {
    /// One that may be fragmented, and is not.
    pub(super) fn whole(source: [u8; 4], destination: [u8; 4], identification: u16, length: usize) -> Self {
        let (source, destination) = (source.into(), destination.into());
        Datagram { source, destination, identification, dont_fragment: false, more_fragments: false, length }
    }
}

/// In a frame between two Ethernet addresses.
pub(super) fn frame(own: [u8; 6], peer: [u8; 6], datagram: Datagram) -> Vec<u8> {
    let Datagram { source, destination, identification, dont_fragment, more_fragments, length } = datagram;
    let whole = header(source, destination, protocol::UDP, length);
    let ip = Ipv4 { identification, dont_fragment, more_fragments, ..whole };
    ipv4(own, peer, ip, |payload| Udp::seal((source.into(), 40_000), (destination.into(), 7000), payload))
}

/// Datagrams across the gateway of which only the first pieces come, each of another datagram.
pub(super) fn first_pieces() -> Traffic {
    let frames = |own, peer| {
        let one = |identification| {
            let whole = Datagram::whole([198, 18, 0, 2], [198, 19, 0, 2], identification, 228);
            frame(own, peer, Datagram { more_fragments: true, ..whole })
        };
        (1..=20_000).map(one).collect()
    };
    // All that come in the 30 s that they wait fit into the memory for them (4 MB), also on a machine that takes long.
    Traffic::Frames { from: LabHost::Initiator, rate: 50, frames }
}

#[cfg(test)]
mod tests {
    use weir_wire::Ethernet;

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
