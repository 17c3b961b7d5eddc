//! UDP through a watched gateway.

mod world;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_flows::{Dns, Options, Reading, UdpFlow, UdpKind, UdpState};
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_testkit::{PATIENCE, until};
use world::PathWorld;

fn socket(ns: &NetNs, address: std::net::IpAddr, port: u16) -> UdpSocket {
    let socket = ns.run(|| weir_testkit::bound(|| UdpSocket::bind((address, port)))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends a datagram and receives it; the address that the receiver sees.
fn pass(from: &UdpSocket, to: &UdpSocket, address: SocketAddr, bytes: &[u8]) -> SocketAddr {
    from.send_to(bytes, address).unwrap();
    let mut room = [0; 2000];
    let (length, sender) = to.recv_from(&mut room).unwrap();
    assert_eq!(&room[..length], bytes);
    sender
}

#[track_caller]
fn flow_to(reading: &Reading, server: SocketAddr) -> &UdpFlow {
    let mut flows = reading.udp_flows.iter().filter(|f| f.server == server);
    let flow = flows.next().unwrap_or_else(|| panic!("{server}: {:?}", reading.udp_flows));
    assert_eq!(flows.next(), None);
    flow
}

#[test]
fn root_udp_of_both_sides_is_one_flow_with_its_bytes() {
    if test_needs_root() {
        return;
    }
    for (ipv6, masquerades, header) in [(false, true, 28), (false, false, 28), (true, true, 48)] {
        let world = PathWorld::new(ipv6, masquerades);
        let mut watch = world.watch(Options::default());
        let client = socket(&world.client, world.client_address, 4000);
        let server = socket(&world.server, world.server_address, 5000);
        let to = server.local_addr().unwrap();
        let seen = pass(&client, &server, to, &[1; 500]);
        (0..9).for_each(|_| _ = pass(&client, &server, to, &[1; 500]));
        (0..20).for_each(|_| _ = pass(&server, &client, seen, &[2; 1000]));
        let reading = watch.read().unwrap();
        let flow = flow_to(&reading, to);
        assert_eq!((flow.kind, flow.state, &flow.dns), (UdpKind::Other, UdpState::Open, &None));
        assert_eq!((flow.client, flow.client_outside), (client.local_addr().unwrap(), Some(seen)));
        assert_eq!(flow.server_inside, Some(to));
        let by = [flow.client_interface.as_deref(), flow.server_interface.as_deref()];
        assert_eq!(by, [Some("g0"), Some("g1")]);
        let counts = |side: &weir_flows::UdpSide| (side.packets, side.bytes);
        assert_eq!(counts(&flow.client_side), (10, 10 * (500 + header)));
        assert_eq!(counts(&flow.server_side), (20, 20 * (1000 + header)));
        assert_eq!((flow.client_side.unanswered, flow.server_side.unanswered), (0, 20));
        let network = &reading.networks[0];
        assert_eq!((network.udp.flows, network.udp.bytes(), network.flows), (1, flow.bytes(), 0));
        assert_eq!((reading.not_tracked.judged_udp, reading.udp_flows_now), (30, 1));
        assert_eq!(reading.udp_capacity, 8192);
    }
}

/// A query of one name (RFC 1035 section 4.1), which is as long as the answers here.
fn message(id: u16, flags: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [id, flags, 1, 0, 0, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(b"\x07example\x03net\0\0\x01\0\x01");
    bytes
}

const ANSWER: u16 = 0x8180;

/// A client with several ports, and a server of DNS that a test plays.
struct Resolving {
    world: PathWorld,
    server: UdpSocket,
}

impl Resolving {
    fn new(ipv6: bool, masquerades: bool) -> Self {
        let world = PathWorld::new(ipv6, masquerades);
        let server = socket(&world.server, world.server_address, 53);
        Resolving { world, server }
    }

    /// A client that has asked, and the address to answer to.
    fn ask(&self, id: u16) -> (UdpSocket, SocketAddr) {
        let client = socket(&self.world.client, self.world.client_address, 0);
        let seen = pass(&client, &self.server, self.server.local_addr().unwrap(), &message(id, 0x0100));
        (client, seen)
    }

    fn answer(&self, (client, seen): &(UdpSocket, SocketAddr), id: u16, flags: u16) {
        pass(&self.server, client, *seen, &message(id, flags));
    }

    fn dns<'a>(&self, reading: &'a Reading) -> &'a Dns {
        let flow = flow_to(reading, self.server.local_addr().unwrap());
        assert_eq!((flow.kind, flow.client.port()), (UdpKind::Dns, 0));
        assert_eq!(flow.client.ip(), self.world.client_address);
        flow.dns.as_ref().unwrap()
    }
}

#[test]
fn root_answers_of_dns_find_their_queries_through_nat() {
    if test_needs_root() {
        return;
    }
    for (ipv6, masquerades) in [(false, true), (false, false), (true, true)] {
        let here = Resolving::new(ipv6, masquerades);
        let mut watch = here.world.watch(Options::default());
        let asked: Vec<_> = (0..8).map(|id| here.ask(id)).collect();
        let before = watch.read().unwrap();
        let dns = here.dns(&before);
        assert_eq!((dns.queries, dns.answers, dns.waiting, dns.unanswered), (8, 0, 8, 0));
        // No error, SERVFAIL, NXDOMAIN, REFUSED, NOTIMP, and a cut one; the last two stay without an answer.
        for (id, code) in [0, 2, 3, 5, 4, 0x0200].into_iter().enumerate() {
            here.answer(&asked[id], id as u16, ANSWER | code);
        }
        // Not its identification.
        here.answer(&asked[6], 99, ANSWER);
        // The same question again, from the same port.
        let to = here.server.local_addr().unwrap();
        pass(&asked[7].0, &here.server, to, &message(7, 0x0100));
        let reading = watch.read().unwrap();
        let dns = here.dns(&reading);
        assert_eq!((dns.queries, dns.repeated, dns.answers, dns.waiting), (8, 1, 6, 2), "{dns:?}");
        assert_eq!((dns.servfail, dns.nxdomain, dns.refused, dns.other_failures), (1, 1, 1, 1));
        assert_eq!((dns.truncated, dns.unasked, dns.unjudged), (1, 1, 0));
        assert_eq!((dns.times.count, dns.times.buckets.iter().sum::<u64>()), (6, 6));
        assert_eq!(reading.udp_flows_now, 1, "one flow for all ports: {:?}", reading.udp_flows);
        assert_eq!(reading.not_tracked.judged_udp, 8 + 6 + 1 + 1);
        // Both wait for 5 s, and are then without an answer. One that comes later changes nothing.
        let patient = until("they are unanswered", PATIENCE, || {
            let reading = watch.read().unwrap();
            (here.dns(&reading).unanswered == 2).then_some(reading)
        });
        assert_eq!(here.dns(&patient).waiting, 0);
        assert_eq!(&patient.all.udp.dns, here.dns(&patient));
        here.answer(&asked[7], 7, ANSWER);
        let late = watch.read().unwrap();
        let dns = here.dns(&late);
        assert_eq!((dns.unanswered, dns.unasked, dns.answers, dns.times.count), (2, 2, 6, 6), "{dns:?}");
    }
}

/// Times are never shorter than the server took, and not longer than from before the question to after the answer.
#[test]
fn root_times_of_dns_are_those_of_the_server() {
    if test_needs_root() {
        return;
    }
    let here = Resolving::new(false, true);
    let mut watch = here.world.watch(Options::default());
    for id in 0..5 {
        let began = Instant::now();
        let asked = here.ask(id);
        let reached = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        let least = reached.elapsed().as_nanos() as u64;
        here.answer(&asked, id, ANSWER);
        let most = began.elapsed().as_nanos() as u64;
        let total = |reading: &Reading| here.dns(reading).times.total_ns;
        let reading = watch.read().unwrap();
        let sum = total(&reading);
        let times = &here.dns(&reading).times;
        assert_eq!(times.count, u64::from(id) + 1);
        assert!(times.smallest_ns.unwrap() >= 20_000_000, "{times:?}");
        // The first one alone has no others in its sum.
        if id == 0 {
            assert!(least <= sum && sum <= most, "{least} {sum} {most}");
        }
    }
}

/// A resolver on the gateway itself: its answers do not come in here, so that none counts as missing. Its own queries likewise.
#[test]
fn root_dns_of_the_gateway_itself_is_one_way_and_without_failures() {
    if test_needs_root() {
        return;
    }
    let here = Resolving::new(false, true);
    let world = &here.world;
    let mut watch = world.watch(Options::default());
    let own = SocketAddr::new("198.18.1.2".parse().unwrap(), 53);
    let resolver = socket(&world.gateway, own.ip(), 53);
    let client = socket(&world.client, world.client_address, 0);
    let seen = pass(&client, &resolver, own, &message(1, 0x0100));
    pass(&resolver, &client, seen, &message(1, ANSWER));
    let upstream = socket(&world.gateway, world.gateway_outside, 0);
    let seen = pass(&upstream, &here.server, here.server.local_addr().unwrap(), &message(2, 0x0100));
    pass(&here.server, &upstream, seen, &message(2, ANSWER));
    let reading = watch.read().unwrap();
    for server in [own, here.server.local_addr().unwrap()] {
        let flow = flow_to(&reading, server);
        let dns = flow.dns.as_ref().unwrap();
        assert_eq!((flow.state, dns.answers, dns.unanswered, dns.waiting), (UdpState::OneWay, 0, 0, 0));
    }
    let dns = &reading.all.udp.dns;
    assert_eq!((dns.queries, dns.unjudged, dns.unasked, dns.failures()), (1, 1, 1, 0), "{dns:?}");
}

/// The beginning of the client's Initial packet of RFC 9001 appendix A.2, whose datagram has 1200 bytes.
const INITIAL: [u8; 34] = [
    0xc0, 0x00, 0x00, 0x00, 0x01, 0x08, 0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08, 0x00, 0x00, 0x44,
    0x9e, 0x7b, 0x9a, 0xec, 0x34, 0xd1, 0xb1, 0xc9, 0x8d, 0xd7, 0x68, 0x9f, 0xb8, 0xec, 0x11, 0xd2, 0x42,
];

#[test]
fn root_quic_is_told_from_other_udp_by_its_long_header() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let mut watch = world.watch(Options::default());
    let mut first = INITIAL.to_vec();
    first.resize(1200, 0);
    let mut second = first.clone();
    // Version 2 (RFC 9369 section 3.1), another version, no fixed bit, an identification that is too long.
    second[..5].copy_from_slice(&[0xd0, 0x6b, 0x33, 0x43, 0xcf]);
    let (mut unknown, mut no_bit, mut long) = (first.clone(), first.clone(), first.clone());
    (unknown[4], no_bit[0], long[5]) = (9, 0x80, 21);
    let cases = [(first, true), (second, true), (unknown, false), (no_bit, false), (long, false)];
    for (n, (datagram, is_quic)) in (0..).zip(&cases) {
        let client = socket(&world.client, world.client_address, 4000 + n);
        let server = socket(&world.server, world.server_address, 6000 + n);
        let seen = pass(&client, &server, server.local_addr().unwrap(), datagram);
        pass(&server, &client, seen, &[0x40; 100]);
        let reading = watch.read().unwrap();
        let flow = flow_to(&reading, server.local_addr().unwrap());
        assert_eq!(flow.kind == UdpKind::Quic, *is_quic, "{n}: {flow:?}");
    }
    let udp = watch.read().unwrap().all.udp;
    assert_eq!((udp.flows, udp.quic_flows, udp.quic_bytes), (5, 2, 2 * (1228 + 128)));
}

#[test]
fn root_silence_is_seen_with_its_side_and_ends_with_an_answer() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let mut watch = world.watch(Options::default());
    let client = socket(&world.client, world.client_address, 4000);
    let server = socket(&world.server, world.server_address, 5000);
    let to = server.local_addr().unwrap();
    let dead = SocketAddr::new(world.server_address, 5999);
    world.rule(&world.behind, "udp dport 5999 drop");
    let seen = pass(&client, &server, to, b"first");
    pass(&server, &client, seen, b"answer");
    client.send_to(b"to nobody", dead).unwrap();
    let state = |reading: &Reading, to| flow_to(reading, to).state;
    let reading = watch.read().unwrap();
    assert_eq!(state(&reading, to), UdpState::Open);
    let reading = until("it is silent", PATIENCE, || {
        pass(&client, &server, to, b"more");
        std::thread::sleep(Duration::from_millis(100));
        let reading = watch.read().unwrap();
        (state(&reading, to) == UdpState::Silent).then_some(reading)
    });
    let flow = flow_to(&reading, to);
    assert!(flow.client_side.unanswered > 1 && flow.server_side.unanswered == 0, "{flow:?}");
    assert!(flow.client_side.longest_silence_seconds >= 3.0, "{flow:?}");
    assert_eq!(flow.server_side.longest_silence_seconds, 0.0, "{flow:?}");
    // More than three seconds have passed since the only packet of the other one.
    let reading = until("it is unanswered", PATIENCE, || {
        let reading = watch.read().unwrap();
        (state(&reading, dead) == UdpState::Unanswered).then_some(reading)
    });
    assert_eq!((reading.all.udp.unanswered_flows, reading.all.udp.silent_flows), (1, 1));
    pass(&server, &client, seen, b"answer");
    let reading = watch.read().unwrap();
    let flow = flow_to(&reading, to);
    assert_eq!((flow.state, flow.client_side.unanswered), (UdpState::Open, 0), "{flow:?}");
    assert!(flow.client_side.longest_silence_seconds >= 3.0, "the longest one stays: {flow:?}");
}

/// Half of the table is for flows that are answered, and TCP has a table of its own.
#[test]
fn root_a_flood_of_udp_leaves_room_for_flows_with_answers() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, false);
    world.rule(&world.behind, "udp dport 7000-7999 drop");
    let mut watch = world.watch(Options { flows: 64, ..Options::default() });
    let client = socket(&world.client, world.client_address, 4000);
    for port in 7000..7500 {
        client.send_to(b"x", SocketAddr::new(world.server_address, port)).unwrap();
    }
    let seen = until("all have passed", PATIENCE, || {
        let reading = watch.read().unwrap();
        let not = reading.not_tracked;
        (not.judged_udp + not.too_many_opening + not.no_room == 500).then_some(reading)
    });
    assert_eq!((seen.udp_flows_now, seen.not_tracked.too_many_opening), (16, 484), "half of 32");
    let listener = world.listen(5001);
    let _tcp: Vec<_> = (0..64).map(|_| world.connect(&listener)).collect();
    let reading = watch.read().unwrap();
    assert_eq!((reading.flows_now, reading.not_tracked.no_room), (64, 0));
    // A server that speaks first needs no answer to have its place.
    for port in 0..20 {
        let server = socket(&world.server, world.server_address, 5000 + port);
        pass(&server, &client, client.local_addr().unwrap(), b"y");
    }
    let reading = watch.read().unwrap();
    assert_eq!(reading.udp_flows_now, 16, "its first packet awaits an answer as well");
    let without = Options { udp: false, ..Options::default() };
    drop(watch);
    let mut watch = world.watch(without);
    client.send_to(b"x", SocketAddr::new(world.server_address, 7000)).unwrap();
    let reading = until("it has passed", PATIENCE, || {
        let reading = watch.read().unwrap();
        (reading.not_tracked.other_protocol > 0).then_some(reading)
    });
    assert_eq!((reading.udp_flows_now, reading.udp_capacity), (0, 0));
}

/// Behind NAT too, where each direction has other ends, and its first packet decides for the later ones.
#[test]
fn root_a_sample_of_udp_has_whole_flows() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let mut watch = world.watch(Options { share: 0.5, ..Options::default() });
    let server = socket(&world.server, world.server_address, 5000);
    let to = server.local_addr().unwrap();
    let clients: Vec<_> = (0..100).map(|n| socket(&world.client, world.client_address, 4000 + n)).collect();
    for _ in 0..5 {
        for client in &clients {
            let seen = pass(client, &server, to, b"question");
            pass(&server, client, seen, b"answer");
        }
    }
    let reading = watch.read().unwrap();
    // 100 draws with probability 1/2: outside of this once in 10^8.
    assert!((22..=78).contains(&reading.udp_flows_now), "{}", reading.udp_flows_now);
    for flow in &reading.udp_flows {
        assert_eq!((flow.client_side.packets, flow.server_side.packets), (5, 5), "{flow:?}");
    }
    assert_eq!(reading.not_tracked.outside_sample, 10 * (100 - reading.udp_flows_now));
}

/// The sample becomes smaller where the program takes too long. Flows that leave it stay in the sums.
#[test]
fn root_a_budget_makes_the_sample_smaller() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, true);
    let server = socket(&world.server, world.server_address, 5000);
    let to = server.local_addr().unwrap();
    let clients: Vec<_> = (0..50).map(|n| socket(&world.client, world.client_address, 4000 + n)).collect();
    // A thousandth of a thousandth of a core.
    let mut watch = world.watch(Options { budget: Some(1e-6), ..Options::default() });
    for client in &clients {
        pass(client, &server, to, b"x");
    }
    let all = watch.read().unwrap();
    assert_eq!((all.udp_flows_now, all.sample_share, all.core_budget), (50, 1.0, Some(1e-6)));
    let over = AtomicBool::new(false);
    let reading = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Some thousand packets a second, while the time of runs is taken.
            while !over.load(Ordering::Relaxed) {
                clients.iter().for_each(|client| _ = client.send_to(b"x", to).unwrap());
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let reading = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the sample is smaller", PATIENCE, || {
                let reading = watch.read().unwrap();
                (reading.sample_share < 0.1 && reading.udp_flows_now < 25).then_some(reading)
            })
        }));
        over.store(true, Ordering::Relaxed);
        reading.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let (ns, core) = (reading.packet_ns.unwrap(), reading.core_share.unwrap());
    assert!((1.0..1e6).contains(&ns) && core > 1e-6, "{ns} ns, {core} of a core");
    assert!(reading.udp_flows_now + reading.udp_flows_over >= 50, "{reading:?}");
    assert!(reading.all.udp.flows >= 50, "{:?}", reading.all.udp);
}

/// Without CAP_SYS_ADMIN no time of runs is taken: the sample stays, and the reading says why.
#[test]
fn root_a_budget_that_cannot_be_kept_is_told() {
    if test_needs_root() {
        return;
    }
    let world = PathWorld::new(false, false);
    let mut watch = world.watch(Options { budget: Some(1e-6), ..Options::default() });
    let reading = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // Privileges are of a thread: this one ends here.
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            until("the program was looked at", PATIENCE, || {
                let reading = watch.read().unwrap();
                reading.budget_unknown.is_some().then_some(reading)
            })
        });
        reader.join().unwrap()
    });
    let reason = reading.budget_unknown.as_deref().unwrap();
    assert!(reason.contains("run time"), "{reason}");
    assert_eq!((reading.sample_share, reading.packet_ns), (1.0, None));
    let shown = weir_flows::render(&reading, weir_text::layout::Terminal { width: 100, color: false });
    assert!(shown.contains("--budget has no effect: "), "{shown}");
}
