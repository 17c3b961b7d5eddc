//! A receiver in a namespace of its own, and frames for it.

use std::net::IpAddr;
use std::time::Duration;

use weir_netlink::{Rtnetlink, VethEnd};
use weir_packets::frame::{Marked, Tag, Template};
use weir_packets::transfer::address_after;
use weir_packets::xdp_receiver::XdpReceiver;
use weir_packets::{
    Family, Frame, Inject, Limit, Link, Offer, Order, Protocol, Received, Sending, Tuples, Way,
};
use weir_sys::NetNs;

/// The cookie of the transfer.
pub(crate) const COOKIE: u32 = 0x1234_5678;

/// XDP's verdicts on a frame (include/uapi/linux/bpf.h).
pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;
pub(crate) const REDIRECT: u32 = 4;

/// Ethernet addresses of sender and receiver.
pub(crate) const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

/// Two namespaces and the veth pair between them.
pub(crate) struct Pair {
    /// The source of the test's frames: its end is `s0`.
    pub(crate) sender: NetNs,
    /// The namespace of the receiver: its end is `r0`.
    pub(crate) receiver: NetNs,
}

impl Pair {
    pub(crate) fn new(mtu: u32) -> Self {
        let (sender, receiver) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        let mut netlink = Rtnetlink::open_in(&sender).unwrap();
        let end = |name, namespace, mac| VethEnd { name, namespace, mtu, mac: Some(mac) };
        netlink.create_veth(end("s0", None, MACS.0), end("r0", Some(&receiver), MACS.1)).unwrap();
        netlink.set_up("s0").unwrap();
        Rtnetlink::open_in(&receiver).unwrap().set_up("r0").unwrap();
        Pair { sender, receiver }
    }

    /// Opens a receiver at `r0`.
    pub(crate) fn open(&self, link: &Link) -> XdpReceiver {
        self.receiver
            .run(|| {
                let index = Rtnetlink::open().unwrap().interface("r0").unwrap().index;
                XdpReceiver::open(index, link).unwrap()
            })
            .unwrap()
    }
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The initiator's first address and the responder's.
pub(crate) fn ends(family: Family) -> (IpAddr, IpAddr) {
    match family {
        Family::Ipv4 => (address("198.18.0.2"), address("198.19.0.2")),
        Family::Ipv6 => (address("2001:2::ffff:fffe"), address("2001:2:0:8000::2")),
    }
}

/// The receiving endpoint's link: of the responder for egress frames, of the initiator for ingress frames.
pub(crate) fn link(family: Family, incoming: Way) -> Link {
    let (initiator, responder) = ends(family);
    let (address, target, way) = match incoming {
        Way::Egress => (responder, initiator, Way::Ingress),
        Way::Ingress => (initiator, responder, Way::Egress),
    };
    Link {
        interface: "r0".into(),
        address,
        target,
        way,
        inject: Inject::Wire,
        cpus: vec![0],
        reference: false,
    }
}

/// 3 source ports, 2 destination ports and as many addresses as the flows need.
pub(crate) fn tuples(flows: u32) -> Tuples {
    Tuples {
        flows,
        source_ports: 1024..=1026,
        destination_ports: 80..=81,
        order: Order::Permutation,
        seed: 1,
    }
}

pub(crate) fn sending(family: Family, protocol: Protocol, bytes: u16, flows: u32) -> Sending {
    Sending {
        frame: Frame { family, protocol, bytes },
        tuples: tuples(flows),
        offer: Offer::Unlimited,
        limit: Limit { frames: 1000, duration: Duration::from_secs(1) },
        stamp_every: 0,
    }
}

/// A frame of that flow as it should arrive: egress ones translated to `nat`, port 40000 + flow.
pub(crate) fn marked(s: &Sending, incoming: Way, tag: Tag) -> Marked {
    let (initiator, responder) = ends(s.frame.family);
    let (source_port, destination_port, host) = s.tuples.flow(tag.flow);
    let (source, source_port, destination, destination_port) = match incoming {
        Way::Egress => {
            (nat(s.frame.family), 40_000 + (tag.flow % 20_000) as u16, responder, destination_port)
        }
        Way::Ingress => (responder, destination_port, address_after(initiator, host), source_port),
    };
    Marked { tag, protocol: s.frame.protocol, source, source_port, destination, destination_port }
}

/// The gateway's outside address.
pub(crate) fn nat(family: Family) -> IpAddr {
    address(if family == Family::Ipv4 { "198.19.0.1" } else { "2001:2:0:8000::1" })
}

/// The frame's bytes.
pub(crate) fn bytes(s: &Sending, mark: &Marked) -> Vec<u8> {
    let template = Template::new(s.frame, MACS.0, MACS.1).unwrap();
    let mut bytes = template.bytes().to_vec();
    template.mark(&mut bytes, mark);
    bytes
}

/// A frame of the expected transfer.
pub(crate) fn frame(s: &Sending, incoming: Way, tag: Tag) -> Vec<u8> {
    bytes(s, &marked(s, incoming, tag))
}

pub(crate) fn tag(seq: u32, flow: u32) -> Tag {
    Tag { cookie: COOKIE, seq, flow, sent_ns: 0 }
}

/// Runs the receiver's program on a frame; returns its verdict and the frame afterwards.
pub(crate) fn run(receiver: &XdpReceiver, frame: &[u8]) -> (u32, Vec<u8>) {
    let result = weir_bpf::test_run(receiver.program(), frame, 0, 1).unwrap();
    (result.verdict, result.packet)
}

/// Frames counted in any way, in the order of the fields: counted, duplicated, reordered, late, mistranslated, foreign.
pub(crate) fn counts(r: &Received) -> [u64; 6] {
    [r.frames, r.duplicated, r.reordered, r.late, r.mistranslated, r.foreign]
}

/// Every family with every protocol.
pub(crate) const KINDS: [(Family, Protocol, u16); 4] = [
    (Family::Ipv4, Protocol::Udp, 64),
    (Family::Ipv4, Protocol::TcpSyn, 64),
    (Family::Ipv6, Protocol::Udp, 84),
    (Family::Ipv6, Protocol::TcpSyn, 84),
];
