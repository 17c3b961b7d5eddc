//! Packets as bytes, and single ones through the programs by BPF_PROG_TEST_RUN.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::net::{IpAddr, SocketAddr};

use weir_publish::{Direction, Publish, Reason};
use weir_sys::privilege::test_needs_root;
use weir_wire::{Icmp, Ipv4, Ipv6, Tcp, Udp, protocol};

use crate::world::PublishWorld;

/// TC_ACT_UNSPEC, TC_ACT_SHOT and TC_ACT_REDIRECT (linux/pkt_cls.h).
pub const LEFT: u32 = u32::MAX;
pub const DROPPED: u32 = 2;
pub const REDIRECTED: u32 = 7;

/// Length of the Ethernet header.
pub const LINK: usize = 14;

/// A packet to be written.
#[derive(Clone)]
pub struct Packet {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: u8,
    pub hops: u8,
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn transport(&self) -> Vec<u8> {
        let (source, destination) = (self.source, self.destination);
        match self.protocol {
            protocol::TCP => {
                let mut segment = vec![0; Tcp::LENGTH];
                segment.extend(&self.payload);
                let header = Tcp {
                    source_port: source.port(),
                    destination_port: destination.port(),
                    sequence: 0x1234_5678,
                    acknowledgement: 0x9abc_def0,
                    flags: 0x18,
                    window: 501,
                    checksum: 0,
                    urgent: 0,
                };
                header.seal(source.ip(), destination.ip(), &mut segment).unwrap();
                segment
            }
            protocol::UDP => {
                let mut datagram = vec![0; Udp::LENGTH];
                datagram.extend(&self.payload);
                Udp::seal(
                    (source.ip(), source.port()),
                    (destination.ip(), destination.port()),
                    &mut datagram,
                )
                .unwrap();
                datagram
            }
            _ => self.payload.clone(),
        }
    }

    /// From the IP header on.
    pub fn datagram(&self) -> Vec<u8> {
        let transport = self.transport();
        let mut bytes = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut bytes = vec![0; Ipv4::LENGTH];
                let header = Ipv4 {
                    tos: 0xb8,
                    total_length: (Ipv4::LENGTH + transport.len()) as u16,
                    identification: 77,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: self.hops,
                    protocol: self.protocol,
                    source,
                    destination,
                };
                header.write(&mut bytes).unwrap();
                bytes
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut bytes = vec![0; Ipv6::LENGTH];
                let header = Ipv6 {
                    traffic_class: 0xb8,
                    flow_label: 0x12345,
                    payload_length: transport.len() as u16,
                    next_header: self.protocol,
                    hop_limit: self.hops,
                    source,
                    destination,
                };
                header.write(&mut bytes).unwrap();
                bytes
            }
            _ => panic!("two versions"),
        };
        bytes.extend(transport);
        bytes
    }
}

/// The ends of one mapping, and a client.
pub struct Ends {
    pub client: SocketAddr,
    pub published: SocketAddr,
    pub inner: SocketAddr,
}

impl Ends {
    pub fn of(world: &PublishWorld, published: u16, inner: u16) -> Ends {
        Ends {
            client: (world.client_address, 40_000).into(),
            published: (world.published, published).into(),
            inner: (world.inner, inner).into(),
        }
    }

    /// As the client sends it, and as the container must get it; or as the container sends it and the client must get it.
    pub fn packet(&self, direction: Direction, protocol: u8, payload: &[u8]) -> (Packet, Packet) {
        let of = |source, destination, hops| Packet {
            source,
            destination,
            protocol,
            hops,
            payload: payload.to_vec(),
        };
        match direction {
            Direction::In => (of(self.client, self.published, 61), of(self.client, self.inner, 60)),
            Direction::Out => (of(self.inner, self.client, 64), of(self.published, self.client, 63)),
        }
    }

    /// An ICMP error about a packet of the other direction, as it comes and as it must go on; quoted is so much.
    pub fn error(
        &self,
        direction: Direction,
        about: u8,
        quoted: usize,
        message: impl Fn(&[u8]) -> Icmp<'_>,
    ) -> (Packet, Packet) {
        let other = if direction == Direction::In { Direction::Out } else { Direction::In };
        // The packet that came out on the other side is quoted here, and is to become what went in there, at the same hop.
        let (went_in, came_out) = self.packet(other, about, b"abcdefgh");
        let went_in = Packet { hops: came_out.hops, ..went_in };
        let (outer, expected) = self.packet(direction, 0, b"");
        let write = |packet: &Packet, quote: &Packet| {
            let quote = quote.datagram();
            let quote = &quote[..quoted.min(quote.len())];
            let mut bytes = vec![0; 2048];
            let n = message(quote).write(packet.source.ip(), packet.destination.ip(), &mut bytes).unwrap();
            bytes.truncate(n);
            let protocol = if packet.source.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
            Packet { protocol, payload: bytes, ..packet.clone() }
        };
        (write(&outer, &came_out), write(&expected, &went_in))
    }
}

/// A frame to this host, as the interface that the programs are run with has it: its address is all zeros.
pub fn frame(datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 6];
    frame.extend([2; 6]);
    frame.extend(if datagram[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(datagram);
    frame
}

pub fn run(world: &PublishWorld, publish: &Publish, direction: Direction, datagram: &[u8]) -> (u32, Vec<u8>) {
    let run = world.host.run(|| publish.run(direction, &frame(datagram), 1)).unwrap().unwrap();
    (run.verdict, run.packet[LINK..].to_vec())
}

/// The only reason that was counted once more.
pub fn reason_of(
    world: &PublishWorld,
    publish: &Publish,
    direction: Direction,
    datagram: &[u8],
) -> (u32, Reason) {
    let before = publish.status().unwrap();
    let (verdict, after) = run(world, publish, direction, datagram);
    if verdict != REDIRECTED {
        assert_eq!(after, datagram, "what is not translated stays as it is");
    }
    let now = publish.status().unwrap();
    let more: Vec<Reason> = now
        .reasons
        .iter()
        .filter(|r| r.2.packets != before.packets(r.0, r.1))
        .map(|r| {
            assert_eq!((r.0, r.2.packets), (direction, before.packets(r.0, r.1) + 1));
            r.1
        })
        .collect();
    assert_eq!(more.len(), 1, "{more:?}");
    (verdict, more[0])
}

pub const BOTH: [Direction; 2] = [Direction::In, Direction::Out];

pub fn for_each_family(test: impl Fn(&PublishWorld, &Publish)) {
    if test_needs_root() {
        return;
    }
    for ipv6 in [false, true] {
        let world = PublishWorld::new(ipv6);
        let publish = world.load();
        test(&world, &publish);
    }
}
