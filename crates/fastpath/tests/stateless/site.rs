//! An inside host, a gateway that translates its prefix by rules of nft, and an outside host, with raw frames at both ends.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use weir_fastpath::{PrefixPair, Stateless};
use weir_netlink::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::frames::FrameSender;

use crate::case::router;
use crate::packet::{ICMPV6, MARKER, marker};

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// An end of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Inside,
    Outside,
}

struct Port {
    sender: FrameSender,
    gateway_mac: [u8; 6],
    /// Takes what comes in; what this end sends is not shown to sockets of one protocol.
    captured: OwnedFd,
}

/// Addresses of one IP version.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) inside: IpAddr,
    /// The address that stands for it outside.
    pub(crate) image: IpAddr,
    pub(crate) outside: IpAddr,
    gateway: [IpAddr; 2],
}

impl Addresses {
    pub(crate) fn of(ipv6: bool) -> Addresses {
        let texts = if ipv6 {
            ["2001:2::2", "2001:2:0:9::2", "2001:2:0:1::2", "2001:2::1", "2001:2:0:1::1"]
        } else {
            ["198.18.0.2", "198.18.9.2", "198.18.1.2", "198.18.0.1", "198.18.1.1"]
        };
        let [inside, image, outside, near, far] = texts.map(|text| text.parse().unwrap());
        Addresses { inside, image, outside, gateway: [near, far] }
    }
}

pub(crate) struct Site {
    _gateway: NetNs,
    pub(crate) addresses: Addresses,
    /// The programs, where there are any.
    pub(crate) stateless: Option<Stateless>,
    _hosts: [NetNs; 2],
    ports: [Port; 2],
}

/// The packets that came to the two ends, in this order: inside, outside.
pub(crate) type Arrivals = [Vec<Vec<u8>>; 2];

impl Site {
    pub(crate) fn new(ipv6: bool, with_programs: bool) -> Site {
        let addresses = Addresses::of(ipv6);
        let [inside, gateway, outside] = [(); 3].map(|()| NetNs::create().unwrap());
        for (ns, name) in [(&inside, "in0"), (&outside, "out0")] {
            let handle = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
            sh(&gateway, &format!("ip link add {name} type veth peer name e0 netns {handle}"));
        }
        // The hosts at the ends have no addresses: they answer nothing by themselves.
        for ns in [&inside, &outside] {
            sh(ns, "sysctl -q net.ipv6.conf.all.disable_ipv6=1; ip link set e0 up");
        }
        set_up_gateway(&gateway, &addresses, [&inside, &outside]);
        let ports = [Port::new(&inside, &gateway, "in0", ipv6), Port::new(&outside, &gateway, "out0", ipv6)];
        let stateless = with_programs.then(|| {
            let length = if ipv6 { 128 } else { 32 };
            let pair = PrefixPair::new(addresses.inside, addresses.image, length).unwrap();
            gateway
                .run(|| {
                    let mut stateless = Stateless::load(pair, "in0", "out0").unwrap();
                    stateless.attach().unwrap();
                    stateless
                })
                .unwrap()
        });
        Site { _gateway: gateway, addresses, stateless, _hosts: [inside, outside], ports }
    }

    pub(crate) fn translated(&self) -> u64 {
        self.stateless.as_ref().unwrap().status().unwrap().translated()
    }

    pub(crate) fn send(&self, from: End, packet: &[u8]) {
        let port = &self.ports[from as usize];
        let mut frame = Vec::from(port.gateway_mac);
        frame.extend([2, 0, 0, 0, 0, 9]);
        frame.extend(if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(packet);
        port.sender.send(&frame).unwrap();
    }

    /// Everything that has come since, when all that was sent before has come: markers go through the gateway behind it. This thread
    /// stays on its core, whose queue keeps the order.
    pub(crate) fn settle(&self, number: u32) -> Arrivals {
        let Addresses { inside, outside, .. } = self.addresses;
        self.send(End::Inside, &marker(router(inside), outside, number));
        let mut arrivals = Arrivals::default();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut there = Vec::new();
            self.ports[1].take(&mut there);
            let is_there = there.iter().any(|p| is_marker(p));
            arrivals[1].extend(there.into_iter().filter(|p| !is_marker(p)));
            if is_there {
                break;
            }
            assert!(Instant::now() < deadline, "the marker {number} does not arrive");
            std::thread::sleep(Duration::from_micros(50));
        }
        self.ports[0].take(&mut arrivals[0]);
        arrivals
    }
}

/// With the rules of the variant `nft-stateless`, fixed neighbours, and no limit of ICMP errors.
fn set_up_gateway(gateway: &NetNs, addresses: &Addresses, hosts: [&NetNs; 2]) {
    let Addresses { inside, image, outside, gateway: own } = addresses;
    let ipv6 = inside.is_ipv6();
    let (length, nodad, ip) = if ipv6 { (64, "nodad", "ip6") } else { (24, "", "ip") };
    let quiet = if ipv6 {
        // The mask leaves no type under the kernel's limit for all destinations together (icmpv6_global_allow).
        "net.ipv6.icmp.ratelimit=0 net.ipv6.icmp.ratemask=0 net.ipv6.auto_flowlabels=0 \
         net.ipv6.conf.all.forwarding=1"
    } else {
        "net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_ratemask=0 net.ipv4.conf.all.forwarding=1"
    };
    sh(gateway, &format!("sysctl -q {quiet}"));
    for ((name, own), (peer, ns)) in
        ["in0", "out0"].into_iter().zip(own).zip([inside, outside].into_iter().zip(hosts))
    {
        let mac = Rtnetlink::open_in(ns).unwrap().interface("e0").unwrap().mac.unwrap();
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        sh(gateway, &format!("ip addr add {own}/{length} dev {name} {nodad}; ip link set {name} up"));
        sh(gateway, &format!("ip neigh replace {peer} lladdr {mac} dev {name} nud permanent"));
    }
    for (name, router) in [("in0", router(*inside)), ("out0", router(*outside))] {
        sh(gateway, &format!("ip neigh replace {router} lladdr 02:00:00:00:00:09 dev {name} nud permanent"));
    }
    // A packet that nft does not rewrite has no way. The kernel would report that a few times a second at most (ip_error).
    sh(gateway, &format!("ip route add blackhole {image}"));
    let rules = format!(
        "table {ip} s {{
            chain u {{ type filter hook prerouting priority raw;
                iifname in0 {ip} saddr {inside} {ip} daddr {outside} notrack
                iifname out0 {ip} daddr {image} notrack {ip} daddr set {inside}
            }}
            chain p {{ type filter hook postrouting priority srcnat;
                oifname out0 {ip} saddr {inside} {ip} daddr {outside} {ip} saddr set {image}
            }}
        }}"
    );
    sh(gateway, &format!("nft '{rules}'"));
}

impl Port {
    fn new(ns: &NetNs, gateway: &NetNs, gateways: &str, ipv6: bool) -> Port {
        let ethertype: u16 = if ipv6 { 0x86dd } else { 0x0800 };
        let interface = |ns: &NetNs, name: &str| Rtnetlink::open_in(ns).unwrap().interface(name).unwrap();
        let protocol = Protocol::from_raw(u32::from(ethertype.to_be()).try_into().unwrap());
        let capture = || {
            socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(protocol))
                .unwrap()
        };
        let index = interface(ns, "e0").index;
        Port {
            sender: ns.run(|| FrameSender::open(index).unwrap()).unwrap(),
            gateway_mac: interface(gateway, gateways).mac.unwrap(),
            captured: ns.run(capture).unwrap(),
        }
    }

    /// Without padding of the link, and without what the gateway sends to groups.
    fn take(&self, packets: &mut Vec<Vec<u8>>) {
        let mut frame = vec![0; 65_536];
        while let Ok((_, length)) = recv(&self.captured, &mut frame[..], RecvFlags::empty()) {
            let mut packet = frame[14..length].to_vec();
            let word = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
            let (total, to_group) = if packet[0] >> 4 == 6 {
                let is_neighbours = packet[6] == ICMPV6 && matches!(packet.get(40), Some(130..=143));
                (word(4) + 40, packet[24] == 0xff || is_neighbours)
            } else {
                (word(2), packet[16] >= 224)
            };
            packet.truncate(total);
            if !to_group {
                packets.push(packet);
            }
        }
    }
}

fn is_marker(packet: &[u8]) -> bool {
    packet[if packet[0] >> 4 == 6 { 6 } else { 9 }] == MARKER
}

#[track_caller]
fn sh(ns: &NetNs, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-ec", script]);
    ns.enter_on_spawn(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}
