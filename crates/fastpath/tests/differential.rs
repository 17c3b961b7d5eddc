//! The same packets through two gateways, one of them with the fast path: the server must get the same packets, to the byte.
//!
//! Two kinds of packets are left out, because conntrack would call them invalid and the fast path carries them: wrong checksums of the
//! transport header, and segments out of the window.

mod world;

use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use weir_fastpath::{Options, Reason};
use weir_netlink::Rtnetlink;
use weir_sys::frames::FrameSender;
use weir_sys::privilege::test_needs_root;
use weir_wire::checksum::{Sum, transport};
use world::{Carried, NatWorld};

const PACKETS: usize = 600;
/// Ports of flows that are learnt before; further ones are new.
const LEARNT: [u16; 3] = [4000, 4001, 4002];
const SERVER_PORT: u16 = 5000;
const UDP: u8 = 17;
/// ETH_P_ALL (linux/if_ether.h), in network order.
const ALL: u16 = 0x0003_u16.to_be();

/// A gateway with its ends.
struct Side {
    world: NatWorld,
    carried: Option<Carried>,
    sender: FrameSender,
    gateway_mac: [u8; 6],
    /// Everything that the server's link brings.
    captured: OwnedFd,
    /// Takes the datagrams, so that no ICMP answers them.
    _server: UdpSocket,
}

impl Side {
    fn new(with_fastpath: bool) -> Side {
        const EARLY: Options =
            Options { connections: 1024, connections6: 64, packets: 2, refresh: Duration::from_secs(30) };
        let world = NatWorld::new(false);
        let mac = |ns: &weir_sys::NetNs, name: &str| {
            Rtnetlink::open_in(ns).unwrap().interface(name).unwrap().mac.unwrap()
        };
        let gateway_mac = mac(&world.gateway, "br0");
        let index = Rtnetlink::open_in(&world.inside[0]).unwrap().interface("e0").unwrap().index;
        let sender = world.inside[0].run(|| FrameSender::open(index).unwrap()).unwrap();
        let any = Protocol::from_raw(u32::from(ALL).try_into().unwrap());
        let capture =
            || socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(any)).unwrap();
        let captured = world.server.run(capture).unwrap();
        let server = world.server_udp(SERVER_PORT);
        let carried = with_fastpath.then(|| world.carried(EARLY));
        Side { world, carried, sender, gateway_mac, captured, _server: server }
    }

    fn send(&self, packet: &[u8]) {
        let mut frame = Vec::from(self.gateway_mac);
        frame.extend([2, 0, 0, 0, 0, 9, 8, 0]);
        frame.extend(packet);
        self.sender.send(&frame).unwrap();
    }

    /// Adds the IPv4 packets that came to the server from outside of it, without padding. True if there was one.
    fn collect(&self, packets: &mut Vec<Vec<u8>>) -> bool {
        let (mut frame, before) = (vec![0; 65_536], packets.len());
        while let Ok((_, length)) = recv(&self.captured, &mut frame[..], RecvFlags::empty()) {
            let packet = &frame[14.min(length)..length];
            if frame[12..14] != [8, 0]
                || packet.len() < 20
                || packet[12..16] == octets(self.world.server_address)
            {
                continue;
            }
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]])).min(packet.len());
            packets.push(packet[..total].to_vec());
        }
        packets.len() > before
    }
}

fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(a) => a.octets(),
        IpAddr::V6(_) => unreachable!("this test is of IPv4"),
    }
}

/// One packet, as an inside host may send it, sound or not.
fn draw(random: &mut ChaCha8Rng, source: IpAddr, destination: IpAddr, number: u16) -> Vec<u8> {
    let port = if random.random_bool(0.8) {
        *LEARNT.choose(random).unwrap()
    } else {
        4100 + random.random_range(0..50)
    };
    let length = *[0, 1, 7, 100, 500, 1300].choose(random).unwrap();
    let payload: Vec<u8> =
        (0..length).map(|n| (n as u8).wrapping_mul(7).wrapping_add(number as u8)).collect();
    let mut udp = Vec::new();
    for word in [port, SERVER_PORT, 8 + length, 0] {
        udp.extend(word.to_be_bytes());
    }
    udp.extend(&payload);
    if random.random_bool(0.85) {
        let sum = transport(source, destination, UDP, &udp);
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    let fault = random.random_range(0..30);
    if fault < 3 {
        // Without a checksum, which would be wrong.
        udp[6..8].copy_from_slice(&[0, 0]);
    }
    match fault {
        // A length that is shorter or longer than the datagram, or none.
        0 => udp[4..6].copy_from_slice(&(8 + length / 2).to_be_bytes()),
        1 => udp[4..6].copy_from_slice(&(9 + length).to_be_bytes()),
        2 => udp[4..6].copy_from_slice(&[0, 0]),
        // Cut off in the header.
        3 => udp.truncate(random.random_range(0..8)),
        _ => {}
    }
    let options: &[u8] = if random.random_bool(0.05) { &[1, 1, 1, 0] } else { &[] };
    let protocol =
        *[UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, UDP, 1, 47]
            .choose(random)
            .unwrap();
    // More fragments, a later fragment, do not fragment.
    let fragment: u16 = match random.random_range(0..20) {
        0 => 0x2000,
        1 => 0x0010,
        2..8 => 0x4000,
        _ => 0,
    };
    let tos = *[0, 0, 0, 0, 1, 3, 0x48].choose(random).unwrap();
    let ttl = *[64, 64, 64, 64, 64, 64, 64, 64, 2, 1].choose(random).unwrap();
    let mut ip = vec![0x45 + (options.len() / 4) as u8, tos];
    let total = (20 + options.len() + udp.len()) as u16;
    ip.extend(if random.random_bool(0.03) { total + 5 } else { total }.to_be_bytes());
    ip.extend(number.to_be_bytes());
    ip.extend(fragment.to_be_bytes());
    ip.extend([ttl, protocol, 0, 0]);
    ip.extend(octets(source));
    ip.extend(octets(destination));
    ip.extend(options);
    let sum = if random.random_bool(0.03) { 1 } else { Sum::new().bytes(&ip).checksum() };
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend(udp);
    ip
}

#[test]
fn root_the_server_gets_the_same_packets_with_and_without_the_fast_path() {
    if test_needs_root() {
        return;
    }
    let seed = std::env::var("WEIR_FASTPATH_SEED").map_or(1, |text| text.parse().unwrap());
    let (plain, fast) = (Side::new(false), Side::new(true));
    let (source, destination) = (plain.world.inside_addresses[0], plain.world.server_address);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let begin = LEARNT.iter().flat_map(|port| {
        (0..6_u16).map(move |n| {
            let mut udp = Vec::new();
            for word in [*port, SERVER_PORT, 1208, 0] {
                udp.extend(word.to_be_bytes());
            }
            udp.resize(1208, n as u8);
            let mut ip = vec![0x45, 0];
            ip.extend(1228_u16.to_be_bytes());
            ip.extend((60_000 + n).to_be_bytes());
            ip.extend([0, 0, 64, UDP, 0, 0]);
            ip.extend(octets(source));
            ip.extend(octets(destination));
            let sum = Sum::new().bytes(&ip).checksum();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip.extend(udp);
            ip
        })
    });
    let drawn: Vec<_> = (0..PACKETS as u16).map(|n| draw(&mut random, source, destination, n)).collect();
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    for packet in begin.chain(drawn) {
        plain.send(&packet);
        fast.send(&packet);
        plain.collect(&mut expected);
        fast.collect(&mut got);
    }
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(300) {
        if plain.collect(&mut expected) | fast.collect(&mut got) {
            last = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    expected.sort();
    got.sort();
    let differs = expected.iter().zip(&got).position(|(a, b)| a != b);
    let at = differs.unwrap_or(expected.len().min(got.len()));
    assert!(
        expected == got,
        "seed {seed}: {} and {} packets, first difference at {at}:\nwithout {:02x?}\nwith    {:02x?}",
        expected.len(),
        got.len(),
        expected.get(at).map(|p| &p[..p.len().min(48)]),
        got.get(at).map(|p| &p[..p.len().min(48)])
    );
    assert!(expected.len() > PACKETS / 3, "{} packets arrived", expected.len());
    let status = fast.carried.as_ref().unwrap().status();
    assert!(status.packets(Reason::Carried) > PACKETS as u64 / 5, "{status:?}");
}
