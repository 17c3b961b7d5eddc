//! VLAN tags, and devices that the fast path does not support.

mod world;

use weir_bpf::{Direction, Loader, attach_tcx};
use weir_fastpath::{Fastpath, Lesson, Options, Reason};
use weir_netlink::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::frames::FrameSender;
use weir_sys::privilege::test_needs_root;
use weir_testkit::Files;
use weir_wire::checksum::Sum;
use world::{NatWorld, passes, sh, until};

const EARLY: Options = Options { connections: 1024, connections6: 64, packets: 2, ..Options::DEFAULT };

/// A datagram of inside host 0 from port 4000 to port 5000 of the server, without a checksum.
fn datagram(world: &NatWorld, payload: &[u8]) -> Vec<u8> {
    let octets = |address| match address {
        std::net::IpAddr::V4(a) => a.octets(),
        std::net::IpAddr::V6(_) => unreachable!("these tests are of IPv4"),
    };
    let mut ip = vec![0x45, 0];
    ip.extend((28 + payload.len() as u16).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    ip.extend(octets(world.inside_addresses[0]));
    ip.extend(octets(world.server_address));
    let sum = Sum::new().bytes(&ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    for word in [4000, 5000, 8 + payload.len() as u16, 0] {
        ip.extend(word.to_be_bytes());
    }
    ip.extend(payload);
    ip
}

fn mac(ns: &NetNs, name: &str) -> [u8; 6] {
    Rtnetlink::open_in(ns).unwrap().interface(name).unwrap().mac.unwrap()
}

#[test]
fn root_tagged_packets_of_a_carried_flow_take_the_kernels_way() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let carried = world.carried(EARLY);
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    for n in 0..6_u8 {
        passes(&client, server.local_addr().unwrap(), &server, &[n; 64]);
    }
    assert!(carried.packets() > 0);
    let index = Rtnetlink::open_in(&world.inside[0]).unwrap().interface("e0").unwrap().index;
    let sender = world.inside[0].run(|| FrameSender::open(index).unwrap()).unwrap();
    let send = |tags: &[[u8; 4]], payload: &[u8]| {
        let mut frame = Vec::from(mac(&world.gateway, "br0"));
        frame.extend(mac(&world.inside[0], "e0"));
        frame.extend(tags.concat());
        frame.extend([8, 0]);
        frame.extend(datagram(&world, payload));
        sender.send(&frame).unwrap();
    };
    let (packets, ()) = carried.during(|| {
        // VLAN 5 has no interface here, and neither has VLAN 5 within 6: the kernel drops them.
        send(&[[0x81, 0, 0, 5]], b"tagged");
        send(&[[0x88, 0xa8, 0, 6], [0x81, 0, 0, 5]], b"twice");
        // VLAN 0 is no VLAN: the kernel takes the packet for one without a tag.
        send(&[[0x81, 0, 0x60, 0]], b"urgent");
        let mut byte = [0; 16];
        let (length, _) = server.recv_from(&mut byte).unwrap();
        assert_eq!(&byte[..length], b"urgent");
    });
    let status = carried.status();
    assert_eq!((packets, status.packets(Reason::Tagged)), (0, 3), "{status:?}");
    // Without a tag the same packet is carried.
    let (packets, ()) = carried.during(|| {
        send(&[], b"plain");
        let mut byte = [0; 16];
        let (length, _) = server.recv_from(&mut byte).unwrap();
        assert_eq!(&byte[..length], b"plain");
    });
    assert_eq!(packets, 1);
}

/// This kernel may have no VLAN interfaces: a program that tags what leaves stands in for one.
#[test]
fn root_a_flow_that_leaves_with_a_tag_is_not_learnt() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    // bpf_skb_vlan_push is helper 18 (linux/bpf.h); -1 is TCX_NEXT.
    let program = "static int (*push)(void *, unsigned short, unsigned short) = (void *)18;\n\
         __attribute__((section(\"tc\"), used)) int tag(void *skb) { push(skb, 0x0081, 5); return -1; }\n\
         __attribute__((section(\"license\"), used)) char _license[] = \"GPL\";\n";
    let folder = Files::new(&[("tag.c", program)]);
    let (source, object) = (folder.path().join("tag.c"), folder.path().join("tag.o"));
    let (from, to) = (source.display(), object.display());
    sh(&world.gateway, &format!("clang -O2 -target bpf -c {from} -o {to}"));
    let bytes = std::fs::read(object).unwrap();
    let loaded = Loader::open("tag", &bytes).unwrap().load().unwrap();
    let index = Rtnetlink::open_in(&world.gateway).unwrap().interface("out0").unwrap().index;
    let program = loaded.program("tag").unwrap();
    let attached = world.gateway.run(|| attach_tcx(&program, index, Direction::Egress).unwrap()).unwrap();
    let carried = world.carried(EARLY);
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    for n in 0..20_u8 {
        client.send_to(&[n; 64], to).unwrap();
    }
    until("the packets have left", || {
        (carried.packets() > 0 || carried.status().lessons(Lesson::LeavesTagged) > 0).then_some(())
    });
    let status = carried.status();
    assert_eq!((carried.packets(), status.lessons(Lesson::Learnt)), (0, 0), "{status:?}");
    // Without the tags the same flow is learnt.
    drop(attached);
    for n in 0..40_u8 {
        passes(&client, to, &server, &[n; 64]);
    }
    assert!(carried.packets() > 0, "{:?}", carried.status());
}

#[test]
fn root_a_device_without_ethernet_headers_is_refused() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    sh(&world.gateway, "ip tuntap add dev tun7 mode tun && ip link set tun7 up");
    let message =
        world.gateway.run(|| Fastpath::load(EARLY).unwrap().attach("tun7").unwrap_err().to_string()).unwrap();
    assert!(message.contains("tun7") && message.contains("no Ethernet header"), "{message}");
    let plan = weir_fastpath::FastpathPlan::make;
    let plan = world.gateway.run(|| plan(&weir_fastpath::Request::default(), &weir_sys::ProcRoot::default()));
    let plan = plan.unwrap().unwrap();
    assert!(!plan.wanted.interfaces.contains(&"tun7".to_owned()));
    let why = &plan.left_out.iter().find(|left| left.name == "tun7").unwrap().why;
    assert!(why.contains("no Ethernet header"), "{why}");
}
