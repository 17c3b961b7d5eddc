//! Over a link: frames from live frames and from the kernel's own sockets, round trips, and what must go on working beside.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use weir_netlink::Rtnetlink;
use weir_packets::endpoint::Endpoint;
use weir_packets::xdp_receiver::XdpReceiver;
use weir_packets::{Family, Inject, Limit, Link, Offer, Protocol, Received, Sending, Stop, Way};
use weir_sys::NetNs;

use crate::fixture::*;

/// Both ends in one network, so that there is no gateway to pass.
const NETWORK: u8 = 15;

/// Asks until it is so; nothing here takes this long unless it is broken.
fn until(receiver: &XdpReceiver, enough: impl Fn(&Received) -> bool) -> Received {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let received = receiver.received();
        if enough(&received) || std::time::Instant::now() > deadline {
            return received;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The two ends with their addresses, as neighbours of each other.
fn connected(family: Family) -> Pair {
    let pair = Pair::new(1500);
    let (initiator, responder) = ends(family);
    let prefix = if family == Family::Ipv4 { NETWORK } else { 48 };
    let ends = [
        (&pair.sender, "s0", initiator, responder, MACS.1),
        (&pair.receiver, "r0", responder, initiator, MACS.0),
    ];
    for (namespace, interface, own, other, mac) in ends {
        let mut netlink = Rtnetlink::open_in(namespace).unwrap();
        netlink.add_address(interface, own, prefix).unwrap();
        netlink.add_neighbour(interface, other, mac).unwrap();
        netlink.wait_until_local(own, Duration::from_secs(20)).unwrap();
    }
    pair
}

fn initiator(family: Family) -> Link {
    Link { interface: "s0".into(), ..link(family, Way::Ingress) }
}

fn paced(family: Family, protocol: Protocol, frames: u64) -> Sending {
    let mut s = sending(family, protocol, if family == Family::Ipv4 { 64 } else { 84 }, 1000);
    // One address is enough for a thousand flows of these ports.
    s.tuples.source_ports = 1024..=65535;
    s.offer = Offer::Rate(100_000.0);
    s.limit = Limit { frames, duration: Duration::from_secs(20) };
    s.stamp_every = 10;
    s
}

#[test]
fn root_all_frames_of_a_sender_are_counted_once_and_their_delay_is_less_than_the_transfer() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for (family, protocol, _) in KINDS {
        let pair = connected(family);
        let s = paced(family, protocol, 20_000);
        let mut receiver = pair.open(&link(family, Way::Egress));
        assert_eq!(receiver.describe(), "XDP in the driver");
        receiver.expect(COOKIE, Some(&s), true).unwrap();
        let send =
            || Endpoint::open(&initiator(family), None).unwrap().send(COOKIE, &s, &Stop::default()).unwrap();
        let sent = pair.sender.run(send).unwrap();
        assert_eq!(sent.frames, 20_000);
        let received = until(&receiver, |r| r.frames == sent.frames);
        assert_eq!(counts(&received), [20_000, 0, 0, 0, 0, 0], "{family:?} {protocol:?}");
        assert_eq!((received.flows, received.source), (1000, Some(ends(family).0)));
        assert_eq!(received.delay.len(), 2000, "every tenth is stamped");
        assert!(received.delay.max() < sent.duration_ns, "{} of {}", received.delay.max(), sent.duration_ns);
        // Nothing is between the two, so flows arrive from where they were sent.
        for (flow, learnt) in receiver.learnt().iter() {
            let (source_port, destination_port, _) = s.tuples.flow(flow);
            assert_eq!((learnt.source_port, learnt.destination_port), (source_port, destination_port));
        }
    }
}

#[test]
fn root_stamped_frames_make_a_round_trip() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for (family, protocol, _) in KINDS {
        let pair = connected(family);
        let s = paced(family, protocol, 10_000);
        let mut far = pair.open(&link(family, Way::Egress));
        far.reflect(true);
        far.expect(COOKIE, Some(&s), true).unwrap();
        let near = pair.sender.run(|| {
            let index = Rtnetlink::open().unwrap().interface("s0").unwrap().index;
            let mut near = XdpReceiver::open(index, &initiator(family)).unwrap();
            near.expect(COOKIE, Some(&s), true).unwrap();
            Endpoint::open(&initiator(family), None).unwrap().send(COOKIE, &s, &Stop::default()).unwrap();
            near
        });
        let near = near.unwrap();
        let back = until(&near, |r| r.frames == 1000);
        let there = far.received();
        assert_eq!(counts(&there), [10_000, 0, 0, 0, 0, 0], "{family:?} {protocol:?}");
        assert_eq!(counts(&back), [1000, 0, 0, 0, 0, 0], "{family:?} {protocol:?}: every tenth");
        assert_eq!((there.delay.len(), back.delay.len()), (1000, 1000));
        // Each has gone the way there before it came back.
        assert!(back.delay.min() >= there.delay.min(), "{} and {}", back.delay.min(), there.delay.min());
        assert_eq!(back.source, Some(ends(family).1));
    }
}

/// Datagrams of the kernel's own making that hold a tag: a sender that shares no code with ours.
fn datagram(seq: u32, flow: u32) -> Vec<u8> {
    let mut payload: Vec<u8> = [COOKIE, seq, flow, 0].iter().flat_map(|word| word.to_be_bytes()).collect();
    payload.extend([0, 0]);
    payload
}

#[test]
fn root_datagrams_of_a_socket_count_too_and_other_traffic_goes_on() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let pair = connected(Family::Ipv4);
    let (near, far) = ends(Family::Ipv4);
    let s = sending(Family::Ipv4, Protocol::Udp, 64, 2);
    let mut receiver = pair.open(&link(Family::Ipv4, Way::Egress));
    receiver.expect(COOKIE, Some(&s), true).unwrap();
    let bind = |namespace: &NetNs, address: SocketAddr| {
        let socket = namespace.run(|| UdpSocket::bind(address).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    };
    let (here, there) = (bind(&pair.sender, (near, 4321).into()), bind(&pair.receiver, (far, 80).into()));
    for seq in [0, 1, 1, 3, 2] {
        here.send_to(&datagram(seq, 0), (far, 80)).unwrap();
    }
    // A longer one is no frame of this transfer, and goes to whom it is for, through the program and back past it.
    let ask = b"anything else, and long enough to hold a tag";
    here.send_to(ask, (far, 80)).unwrap();
    let mut buffer = [0; 100];
    let (length, from) = there.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], ask, "the first that the socket gets");
    there.send_to(b"answer", from).unwrap();
    assert_eq!(here.recv(&mut buffer).unwrap(), 6);
    let received = receiver.received();
    assert_eq!(counts(&received), [4, 1, 1, 0, 0, 0]);
    assert_eq!(receiver.learnt().get(0).map(|l| (l.source, l.source_port)), Some((near, 4321)));
    assert_eq!(receiver.learnt().get(1), None);
}

#[test]
fn root_an_interface_without_xdp_in_its_driver_counts_as_well() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let namespace = NetNs::create().unwrap();
    let mut netlink = Rtnetlink::open_in(&namespace).unwrap();
    let (_, own) = ends(Family::Ipv4);
    netlink.set_up("lo").unwrap();
    netlink.add_address("lo", own, 32).unwrap();
    let s = sending(Family::Ipv4, Protocol::Udp, 64, 1);
    let link = Link { interface: "lo".into(), inject: Inject::Wire, ..link(Family::Ipv4, Way::Egress) };
    let index = netlink.interface("lo").unwrap().index;
    let receiver = namespace.run(|| {
        let mut receiver = XdpReceiver::open(index, &link).unwrap();
        receiver.expect(COOKIE, Some(&s), true).unwrap();
        let socket = UdpSocket::bind((own, 0)).unwrap();
        for seq in 0..10 {
            socket.send_to(&datagram(seq, 0), (own, 80)).unwrap();
        }
        receiver
    });
    let receiver = receiver.unwrap();
    assert!(receiver.describe().starts_with("generic XDP"), "{}", receiver.describe());
    assert_eq!(counts(&until(&receiver, |r| r.frames == 10)), [10, 0, 0, 0, 0, 0]);
}

#[test]
fn root_a_receiver_is_alone_on_its_interface_and_leaves_it_as_it_was() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for mtu in [1500, 9000] {
        let pair = Pair::new(mtu);
        let link = link(Family::Ipv6, Way::Egress);
        let open = || {
            let index = Rtnetlink::open().unwrap().interface("r0").unwrap().index;
            XdpReceiver::open(index, &link).map(|r| r.describe().to_owned())
        };
        let first = pair.open(&link);
        let second = pair.receiver.run(open).unwrap();
        assert!(second.is_err(), "{second:?}");
        drop(first);
        assert_eq!(pair.receiver.run(open).unwrap().unwrap(), "XDP in the driver", "MTU {mtu}");
    }
}
