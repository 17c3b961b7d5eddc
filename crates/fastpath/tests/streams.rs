//! UDP becomes a stream, with a longer timeout, by the first packet that conntrack sees two seconds after it began, if it has an answer.
//! The fast path must not keep that packet from it.

mod world;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use weir_fastpath::Options;
use weir_netlink::conntrack::{Conntrack, Entry, Status, Tuple};
use weir_sys::privilege::test_needs_root;
use world::{NatWorld, passes, sh};

/// A flow enters with its first packet.
const FIRST: Options = Options { connections: 1024, connections6: 1024, packets: 1, ..Options::DEFAULT };
/// The same on a kernel without conntrack's functions for BPF.
const BY_NETLINK: Options = Options { without_functions: true, ..FIRST };

/// Packets after which the flow is silent.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// Both ways at once, then one from inside.
    Out,
    /// Both ways at once, then one from outside.
    In,
    /// From inside only, then one answer, then one from inside.
    LateAnswer,
}

/// The time after which a packet makes a stream (nf_conntrack_udp_packet), and some more.
const STREAM: Duration = Duration::from_millis(2200);

fn entry(world: &NatWorld, client: &UdpSocket, server: &UdpSocket) -> Entry {
    let (inside, outside) = (client.local_addr().unwrap(), server.local_addr().unwrap());
    let tuple = Tuple {
        source: inside.ip().into(),
        destination: outside.ip().into(),
        protocol: 17,
        source_port: inside.port(),
        destination_port: outside.port(),
    };
    world.gateway.run(|| Conntrack::open().unwrap().get(&tuple).unwrap()).unwrap().unwrap()
}

/// Whether the kernel makes a stream of it, with the fast path or without it.
fn runs(ipv6: bool, options: Option<Options>, course: Course) {
    let world = NatWorld::new(ipv6);
    // A quarter of it, after which a packet takes the kernel's way in any case, is longer than this test.
    sh(&world.gateway, "sysctl -q net.netfilter.nf_conntrack_udp_timeout=60");
    let carried = options.map(|options| world.carried(options));
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let from = passes(&client, to, &server, b"?");
    let begun = Instant::now();
    for _ in 0..20 {
        passes(&client, to, &server, b"?");
        if !matches!(course, Course::LateAnswer) {
            passes(&server, from, &client, b"!");
        }
    }
    if matches!(course, Course::LateAnswer) {
        passes(&server, from, &client, b"!");
    }
    let young = entry(&world, &client, &server);
    assert!(!young.status.has(Status::ASSURED) && young.timeout_s <= Some(60), "{course:?} {young:?}");
    std::thread::sleep(STREAM.saturating_sub(begun.elapsed()));
    match course {
        Course::Out | Course::LateAnswer => passes(&client, to, &server, b"?"),
        Course::In => passes(&server, from, &client, b"!"),
    };
    let old = entry(&world, &client, &server);
    assert!(old.status.has(Status::ASSURED), "{course:?} {options:?} {old:?}");
    assert!(old.timeout_s > Some(100), "{course:?} {options:?} {old:?}");
    // Conntrack's functions tell when that is, so that the flow is carried until then; from now on it is carried by either.
    let Some(carried) = carried else { return };
    let packets = carried.packets();
    assert!(options == Some(BY_NETLINK) || packets > 0, "{course:?} {:?}", carried.status());
    let is_carried = |_| {
        passes(&client, to, &server, b"?");
        passes(&server, from, &client, b"!");
        carried.packets() > packets + 1
    };
    assert!((0..1000).any(is_carried), "{course:?} {:?}", carried.status());
}

/// Side by side: they mostly wait.
fn all(ipv6: bool) {
    std::thread::scope(|scope| {
        for course in [Course::Out, Course::In, Course::LateAnswer] {
            for options in [None, Some(FIRST), Some(BY_NETLINK)] {
                scope.spawn(move || runs(ipv6, options, course));
            }
        }
    });
}

#[test]
fn root_udp_becomes_a_stream_by_the_same_packet_as_without_the_fast_path() {
    if !test_needs_root() {
        all(false);
    }
}

#[test]
fn root_udp_over_ipv6_becomes_a_stream_by_the_same_packet() {
    if !test_needs_root() {
        all(true);
    }
}
