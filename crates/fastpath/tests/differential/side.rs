//! One of the two gateways, with raw packets at both of its ends.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use weir_fastpath::{Options, Reason, Xdp};
use weir_netlink::Rtnetlink;
use weir_netlink::conntrack::Tuple;
use weir_netlink::ethtool::Ethtool;
use weir_sys::NetNs;
use weir_sys::frames::FrameSocket;
use weir_wire::checksum::Sum;

use crate::offload::Offload;
use crate::packet::{Ends, FRAGMENT, ICMP, ICMPV6, MARKER, TCP, marker};
use crate::world::{Carried, Inside, NatWorld, PATIENCE, sh};

/// The port that inside hosts call, and the one that the server gets.
pub(crate) const CALLED: [(u16, u16); 2] = [(5000, 5000), (8000, 5001)];
pub(crate) const EARLY: Options =
    Options { connections: 4096, connections6: 4096, packets: 2, ..Options::DEFAULT };
pub(crate) const BY_XDP: Options = Options { xdp: Xdp::SingleFrames, ..EARLY };
/// As on a kernel without conntrack's functions for BPF.
pub(crate) const BY_NETLINK: Options = Options { without_functions: true, ..EARLY };

/// An end of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Inside,
    Server,
}

impl End {
    pub(crate) fn other(self) -> End {
        if self == End::Inside { End::Server } else { End::Inside }
    }
}

struct Port {
    socket: FrameSocket,
    gateway_mac: [u8; 6],
}

impl Port {
    fn new(ns: &NetNs, gateway: &NetNs, gateways: &str) -> Port {
        let interface = |ns: &NetNs, name: &str| Rtnetlink::open_in(ns).unwrap().interface(name).unwrap();
        let index = interface(ns, "e0").index;
        Port {
            socket: ns.run(|| FrameSocket::open_with_offloads(index).unwrap()).unwrap(),
            gateway_mac: interface(gateway, gateways).mac.unwrap(),
        }
    }
}

pub(crate) struct Side {
    pub(crate) world: NatWorld,
    pub(crate) carried: Option<Carried>,
    ipv6: bool,
    inside: Port,
    server: Port,
}

/// A packet as it came to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) offload: Offload,
    pub(crate) packet: Vec<u8>,
}

/// The packets that came to the two ends, in this order: inside, server.
pub(crate) type Arrivals = [Vec<Arrival>; 2];

impl Side {
    /// With the fast path by that; `None`: without it.
    pub(crate) fn new(ipv6: bool, inside: Inside, fastpath: Option<Options>) -> Side {
        let world = NatWorld::with(ipv6, inside);
        prepare(&world, ipv6);
        let inside = Port::new(&world.inside[0], &world.gateway, inside.interface());
        let server = Port::new(&world.server, &world.gateway, "out0");
        let carried = fastpath.map(|options| world.carried(options));
        Side { world, carried, ipv6, inside, server }
    }

    pub(crate) fn carried_packets(&self) -> u64 {
        self.carried.as_ref().unwrap().status().packets(Reason::Carried)
    }

    /// The fast path's verdict on a usual packet that comes in with these ends.
    pub(crate) fn verdict(&self, protocol: u8, ends: &Ends) -> Reason {
        let [(source, source_port), (destination, destination_port)] = *ends;
        let (source, destination) = (source.into(), destination.into());
        let tuple = Tuple { source, destination, protocol, source_port, destination_port };
        self.carried.as_ref().unwrap().fastpath.explain(&tuple).unwrap().0
    }

    /// False if the sender's own interface drops the packet, as it cannot cut it.
    pub(crate) fn send(&self, from: End, offload: &Offload, packet: &[u8]) -> bool {
        let port = if from == End::Inside { &self.inside } else { &self.server };
        let mut frame = Vec::from(offload.to_bytes());
        frame.extend(port.gateway_mac);
        frame.extend([2, 0, 0, 0, 0, 9]);
        frame.extend(self.ethertype());
        frame.extend(packet);
        match port.socket.send(&frame) {
            Err(e) if offload.has_segments() && e.kind() == ErrorKind::OutOfMemory => false,
            sent => sent.is_ok() || panic!("cannot send {offload:?}: {sent:?}"),
        }
    }

    fn ethertype(&self) -> [u8; 2] {
        if self.ipv6 { [0x86, 0xdd] } else { [8, 0] }
    }

    /// Everything that has come since, when all that was sent before has come: a marker goes through the gateway behind it. This thread
    /// stays on its core, whose queue keeps the order.
    pub(crate) fn settle(&self, number: u32) -> Arrivals {
        let (from, to) = (self.world.inside_addresses[0], self.world.server_address);
        assert!(self.send(End::Inside, &Offload::default(), &marker(from, to, number)));
        let mut arrivals = Arrivals::default();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut server = Vec::new();
            self.take(&self.server, &mut server);
            let is_there = server.iter().any(|a| self.protocol(&a.packet) == MARKER);
            arrivals[1].extend(server.into_iter().filter(|a| self.protocol(&a.packet) != MARKER));
            if is_there {
                break;
            }
            assert!(Instant::now() < deadline, "the marker {number} does not arrive");
            std::thread::sleep(Duration::from_micros(50));
        }
        self.take(&self.inside, &mut arrivals[0]);
        arrivals
    }

    fn protocol(&self, packet: &[u8]) -> u8 {
        packet[if self.ipv6 { 6 } else { 9 }]
    }

    fn take(&self, port: &Port, arrivals: &mut Vec<Arrival>) {
        let mut buffer = vec![0; Offload::BYTES + 65_536];
        while let Some(length) = port.socket.receive(&mut buffer).unwrap() {
            let (offload, frame) = buffer[..length].split_at(Offload::BYTES);
            if frame[12..14] != self.ethertype() {
                continue;
            }
            let mut offload = Offload::of_arrival(offload.try_into().unwrap());
            // With GRO at the ends.
            if self.world.kind == Inside::SingleFrames {
                offload = offload.unchecked();
            }
            let mut packet = frame[14..].to_vec();
            let total = usize::from(if self.ipv6 {
                u16::from_be_bytes([packet[4], packet[5]]) + 40
            } else {
                u16::from_be_bytes([packet[2], packet[3]])
            });
            // Padding may be there or not, but none behind segments: it would be cut with them.
            if !offload.has_segments() {
                packet.truncate(total);
            }
            let is_neighbours = self.ipv6 && packet[6] == ICMPV6 && (130..=143).contains(&packet[40]);
            // Reports of groups, which go to a group.
            if is_neighbours || if self.ipv6 { packet[24] == 0xff } else { packet[16] == 224 } {
                continue;
            }
            hide_chosen(&mut packet);
            arrivals.push(Arrival { offload, packet });
        }
    }
}

/// Hides what the kernel chooses by a secret of each namespace.
pub(crate) fn hide_chosen(packet: &mut [u8]) {
    if packet[0] >> 4 == 6 { hide_fragment(packet) } else { hide_identification(packet) }
}

/// The kernel numbers its own errors and resets by a secret of the namespace; they may have any translated source.
fn hide_identification(packet: &mut [u8]) {
    let header = usize::from(packet[0] & 15) * 4;
    let is_error = packet[9] == ICMP && packet.get(header).is_some_and(|kind| *kind != 8);
    let is_reset = packet[9] == TCP && packet.get(header + 13).is_some_and(|flags| flags & 4 != 0);
    if is_error || is_reset {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
        let sum = Sum::new().bytes(&packet[..header]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The kernel numbers what it puts together and cuts again by a secret, too.
fn hide_fragment(packet: &mut [u8]) {
    let (mut next, mut at) = (packet[6], 40);
    while at + 8 <= packet.len() {
        match next {
            FRAGMENT => return packet[at + 4..at + 8].fill(0),
            0 | 43 | 60 => (next, at) = (packet[at], at + 8 + usize::from(packet[at + 1]) * 8),
            _ => return,
        }
    }
}

/// Ports are translated, too; the gateway answers each bad packet; and the hosts at the ends answer nothing by themselves.
fn prepare(world: &NatWorld, ipv6: bool) {
    // The inside gets segments one by one and their checksums whole, the server what the interface leaves to the other end.
    if world.kind == Inside::Bridge {
        let offloads = ["tso", "tx-udp-segmentation", "tx"].map(|name| (name.to_owned(), false));
        world.gateway.run(|| Ethtool::open().unwrap().set("p0", &offloads.into()).unwrap()).unwrap();
    }
    let ip = if ipv6 { "ip6" } else { "ip" };
    let (server, near) = (world.server_address, world.kind.interface());
    let to = if ipv6 { format!("[{server}]:{}", CALLED[1].1) } else { format!("{server}:{}", CALLED[1].1) };
    let mut script = format!("add chain {ip} nat d {{ type nat hook prerouting priority dstnat; }}\n");
    for protocol in ["tcp", "udp"] {
        script += &format!(
            "add rule {ip} nat d iifname {near} {ip} daddr {server} {protocol} dport {} dnat to {to}\n",
            CALLED[1].0
        );
    }
    sh(&world.gateway, &format!("nft '{script}'"));
    let unlimited = if ipv6 {
        "net.ipv6.icmp.ratelimit=0 net.ipv6.icmp.ratemask=0 net.ipv6.auto_flowlabels=0"
    } else {
        "net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_ratemask=0"
    };
    sh(&world.gateway, &format!("sysctl -q {unlimited}"));
    let neighbours = if ipv6 {
        "add rule inet silent c icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"
    } else {
        ""
    };
    let silent = format!(
        "add table inet silent\n\
         add chain inet silent c {{ type filter hook prerouting priority raw; policy drop; }}\n{neighbours}"
    );
    for ns in [&world.inside[0], &world.server] {
        sh(ns, &format!("nft '{silent}'"));
    }
}
