//! ICMP errors about flows through a watched gateway.

mod world;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use weir_flows::{IcmpErrors, IcmpMeaning, Options, Reading};
use weir_sys::dont_fragment::{self, Splitting};
use weir_sys::privilege::test_needs_root;
use weir_testkit::{PATIENCE, until};
use world::{PathWorld, sh};

/// Waits until an error about each of so many flows has come.
fn errors(watch: &mut weir_flows::Watch, number: u64) -> Reading {
    until("the errors are there", PATIENCE, || {
        let reading = watch.read().unwrap();
        (reading.not_tracked.icmp_errors >= number).then_some(reading)
    })
}

fn of_udp(reading: &Reading, port: u16) -> &IcmpErrors {
    let flow = reading.udp_flows.iter().find(|f| f.server.port() == port).unwrap();
    flow.icmp_errors.as_ref().unwrap()
}

/// A filter behind the gateway answers packets of the client, a port of the server is closed, and a packet is too long for a link.
#[test]
fn root_errors_are_counted_with_their_flow_their_meaning_and_their_sender() {
    if test_needs_root() {
        return;
    }
    for (ipv6, masquerades) in [(false, true), (false, false), (true, true)] {
        println!("IPv6: {ipv6}, masquerades: {masquerades}");
        let world = PathWorld::new(ipv6, masquerades);
        let (family, behind) = if ipv6 { ("icmpv6", "2001:2:0:2::2") } else { ("icmp", "198.18.2.2") };
        let behind: IpAddr = behind.parse().unwrap();
        world.rule(&world.behind, &format!("udp dport 53 reject with {family} type admin-prohibited"));
        let no_way = if ipv6 { "no-route" } else { "host-unreachable" };
        world.rule(&world.behind, &format!("tcp dport 5002 reject with {family} type {no_way}"));
        sh(&world.behind, "ip link set h1 mtu 1400");
        let mut watch = world.watch(Options::default());
        let client = world.client.run(|| UdpSocket::bind((world.client_address, 0)).unwrap()).unwrap();
        let at = |port| SocketAddr::new(world.server_address, port);
        // In IPv4 a packet that may be cut is cut.
        dont_fragment::set(&client, ipv6, Splitting::Never).unwrap();
        client.send_to(&[0; 100], at(6001)).unwrap();
        client.send_to(&[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1], at(53)).unwrap();
        client.send_to(&[0; 1420], at(6002)).unwrap();
        // The routers before and behind the gateway, and itself, are three hops.
        dont_fragment::set_hops(&client, ipv6, 3).unwrap();
        client.send_to(&[0; 100], at(6003)).unwrap();
        assert!(world.try_connect(at(5002)).is_err());
        let reading = errors(&mut watch, 5);
        let closed = of_udp(&reading, 6001);
        assert_eq!((closed.meaning, closed.from), (IcmpMeaning::PortUnreachable, world.server_address));
        let filtered = of_udp(&reading, 53);
        assert_eq!((filtered.meaning, filtered.from), (IcmpMeaning::Prohibited, behind));
        let long = of_udp(&reading, 6002);
        assert_eq!((long.meaning, long.from, long.mtu), (IcmpMeaning::TooBig, behind, Some(1400)));
        let hops = of_udp(&reading, 6003);
        assert_eq!((hops.meaning, hops.from), (IcmpMeaning::HopLimit, behind));
        let tcp = reading.flows[0].icmp_errors.as_ref().unwrap();
        let meaning = if ipv6 { IcmpMeaning::NetworkUnreachable } else { IcmpMeaning::HostUnreachable };
        assert_eq!((tcp.meaning, tcp.from, tcp.mtu), (meaning, behind, None));
        for one in [closed, filtered, long, hops, tcp] {
            assert!(one.count >= 1 && one.about_client, "{one:?}");
        }
        let total: u64 = reading.icmp_errors.iter().map(|one| one.packets).sum();
        assert_eq!(total, reading.not_tracked.icmp_errors);
        assert_eq!(reading.icmp_errors.len(), 5, "{:?}", reading.icmp_errors);
        let big = reading.icmp_errors.iter().find(|one| one.meaning == IcmpMeaning::TooBig).unwrap();
        assert_eq!((big.from, big.smallest_mtu, big.packets), (behind, Some(1400), 1));
        assert_eq!(reading.not_tracked.stray_icmp_errors, 0);
    }
}

/// An error about a packet of the server, which the client's host sends.
#[test]
fn root_an_error_about_an_answer_is_about_the_server() {
    if test_needs_root() {
        return;
    }
    for ipv6 in [false, true] {
        let world = PathWorld::new(ipv6, true);
        let server = world
            .server
            .run(|| weir_testkit::bound(|| UdpSocket::bind((world.server_address, 7000))))
            .unwrap();
        let client = world.client.run(|| UdpSocket::bind((world.client_address, 0)).unwrap()).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        // It was there before the watch, and both sides of it are unknown to that.
        let to = server.local_addr().unwrap();
        client.send_to(b"x", to).unwrap();
        let (_, seen) = server.recv_from(&mut [0; 10]).unwrap();
        drop(client);
        let mut watch = world.watch(Options::default());
        server.send_to(b"y", seen).unwrap();
        let reading = errors(&mut watch, 1);
        let error = of_udp(&reading, 7000);
        // Conntrack, which the masquerade needs, knows who began; without it the first sender counts as the client.
        assert_eq!((error.meaning, error.about_client), (IcmpMeaning::PortUnreachable, false));
        assert_eq!(error.from, world.client_address);
    }
}
