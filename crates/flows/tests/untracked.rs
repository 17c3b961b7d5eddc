//! Flows that are not tracked, through a watched gateway: they are known by their bytes nevertheless.

mod world;

use std::net::UdpSocket;
use std::time::Duration;

use weir_flows::{Estimate, Options, Reading};
use weir_sys::privilege::test_needs_root;
use weir_testkit::{PATIENCE, until};
use world::PathWorld;

/// Headers of Ethernet, IP and UDP: the kernel counts their bytes, too.
const HEADERS: [u64; 2] = [42, 62];
const PAYLOAD: usize = 1400;

fn client(world: &PathWorld, port: u16) -> UdpSocket {
    let socket =
        world.client.run(|| weir_testkit::bound(|| UdpSocket::bind((world.client_address, port)))).unwrap();
    socket.connect((world.server_address, 5000)).unwrap();
    socket
}

fn send(socket: &UdpSocket) {
    // Its answer is an ICMP error, as no one listens, and is no concern here.
    let _ = socket.send(&[1; PAYLOAD]);
}

/// Links and neighbours take their time, and packets that wait for a neighbour are few.
fn wait_until_there_is_a_way(world: &PathWorld) {
    let server =
        world.server.run(|| weir_testkit::bound(|| UdpSocket::bind((world.server_address, 7777)))).unwrap();
    let client =
        world.client.run(|| weir_testkit::bound(|| UdpSocket::bind((world.client_address, 7778)))).unwrap();
    server.set_nonblocking(true).unwrap();
    until("a way", PATIENCE, || {
        client.send_to(b"?", server.local_addr().unwrap()).unwrap();
        server.recv_from(&mut [0]).ok()
    });
}

/// The estimate of the flow from that port.
#[track_caller]
fn size_of(reading: &Reading, port: u16) -> Estimate {
    let flows = &reading.untracked.flows;
    let mut found = flows.iter().filter(|f| f.protocol == 17 && f.source.port() == port);
    found.next().unwrap_or_else(|| panic!("port {port}: {flows:?}")).size
}

#[test]
fn root_flows_outside_of_the_sample_are_known_by_their_bytes() {
    if test_needs_root() {
        return;
    }
    for ipv6 in [false, true] {
        let world = PathWorld::new(ipv6, false);
        wait_until_there_is_a_way(&world);
        // Nothing is in such a sample.
        let mut watch = world.watch(Options { share: 1e-9, ..Options::default() });
        let sockets: Vec<UdpSocket> = (0..9).map(|n| client(&world, 4000 + n)).collect();
        // Eight of the same rate take turns: a note at equal distances would meet the same one again and again.
        const TURNS: usize = 14_336;
        for turn in 0..TURNS {
            sockets[..8].iter().for_each(send);
            // A core queues a thousand packets (net.core.netdev_max_backlog), and drops more: others that are busy must let it work them off.
            if turn % 64 == 63 {
                std::thread::sleep(Duration::from_millis(2));
            }
            if turn % 1000 == 0 {
                send(&sockets[8]);
                watch.read().unwrap();
            }
        }
        let reading = watch.read().unwrap();
        let bytes = (PAYLOAD as u64 + HEADERS[usize::from(ipv6)]) as f64;
        let seen = reading.not_tracked.outside_sample as f64 * bytes;
        let sent = (8 * TURNS) as f64 * bytes;
        assert!(seen > 0.9 * sent, "{seen} of {sent} bytes came here: {:?}", reading.not_tracked);
        let all = reading.untracked.all;
        assert!((all.bytes / seen - 1.0).abs() < 0.05, "{all:?} for {seen}");
        // More than 300 notes for each: a quarter is four standard deviations, so this fails once in 2,000 runs.
        for port in 4000..4008 {
            let size = size_of(&reading, port);
            assert!((size.bytes / (seen / 8.0) - 1.0).abs() < 0.25, "{port}: {size:?} for {}", seen / 8.0);
            assert!(size.low < size.bytes && size.bytes < size.high, "{size:?}");
        }
        assert!(reading.untracked.flows.iter().all(|f| f.source.port() != 4008), "a small flow");
        let from = |network: &weir_flows::UntrackedNetwork| network.from.bytes + network.to.bytes;
        let most = &reading.untracked.networks[0];
        assert!(from(most) > 0.9 * all.bytes, "{:?}", reading.untracked.networks);
        assert_eq!(watch.read_top(1, 3).unwrap().untracked.flows.len(), 3);
    }
}

#[test]
fn root_a_flow_that_is_tracked_is_not_among_them() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, false);
    let mut watch = world.watch(Options::default());
    let socket = client(&world, 4000);
    (0..5000).for_each(|_| send(&socket));
    let reading = watch.read().unwrap();
    assert!(reading.not_tracked.judged_udp > 4000, "{:?}", reading.not_tracked);
    assert_eq!(reading.untracked.flows, []);
}
