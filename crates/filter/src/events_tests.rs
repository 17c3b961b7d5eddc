//! Events of refused packets: their fields, their number in a flood, and that none is written without a reader.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_bpf::test_run;
use weir_prefix::Ranges;
use weir_sys::clock::now_ns;
use weir_sys::privilege::test_needs_root;

use crate::events::LEASE;
use crate::shared::{WEIR_EVENTS_IN_WINDOW, WEIR_WINDOW_NS};
use crate::test_packets::{
    ACK, ICMP, ICMPV6, SYN, TCP, UDP, is_shot, packet, packet_with, refuses_all, socket,
};
use crate::{Action, At, Class, Compiled, Direction, Event, Events, Filter, Follower, Options};

const IN: At = At::Tc(Direction::Ingress);
const OUT: At = At::Tc(Direction::Egress);
const ALL: Options = Options { sample: 1, established_first: false };

/// The one event there is, without its time, which must lie between the two.
fn only(follower: &mut Follower, begun_ns: u64) -> Event {
    let events = follower.read().unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!((begun_ns..=now_ns()).contains(&events[0].time_ns), "{events:?}");
    Event { time_ns: 0, ..events[0] }
}

/// The expected event of a packet that came in and is in no list.
fn expected(from: SocketAddr, to: SocketAddr, protocol: u8, packet: &[u8]) -> Event {
    Event {
        time_ns: 0,
        direction: Direction::Ingress,
        source: from.ip(),
        destination: to.ip(),
        class: 0,
        action: "drop",
        protocol,
        port: None,
        fragment: false,
        bytes: packet.len() as u32,
    }
}

#[test]
fn root_an_event_says_who_what_and_where_to() {
    if test_needs_root() {
        return;
    }
    let filter = refuses_all(ALL);
    let mut follower = filter.follow().unwrap();
    let (from4, to4) = (socket("198.18.9.9:40000"), socket("198.18.0.1:22"));
    let (from6, to6) = (socket("[2001:2::9]:40000"), socket("[2001:2::1]:53"));
    // An IPv4 header of 24 bytes: the ports are behind the option (RFC 791 section 3.1).
    let mut with_option = packet(UDP, from4, to4, 0);
    with_option[14] = 0x46;
    with_option.splice(34..34, [1, 1, 1, 0]);
    // More fragments, as the first one has it, and an offset of one unit, as another has it.
    let (mut first, mut later) = (packet(UDP, from4, to4, 0), packet(UDP, from4, to4, 0));
    (first[14 + 6], later[14 + 7]) = (0x20, 1);
    let udp6 = [&[0x9c, 0x40, 0, 53, 0, 8, 0, 0][..], &[0; 12]].concat();
    // Hop-by-hop options (0), destination options (60), authentication (51, in units of 4 bytes less two), then UDP.
    let extended = [&[60, 0, 1, 4, 0, 0, 0, 0, 51, 0, 1, 4, 0, 0, 0, 0, 17, 1][..], &[0; 10], &udp6].concat();
    let extended = packet_with(0, from6, to6, &extended);
    let fragment =
        |offset: u8| packet_with(44, from6, to6, &[&[17, 0, 0, offset, 0, 0, 0, 1][..], &udp6].concat());
    let cases: Vec<(Vec<u8>, Event)> = vec![
        (packet(TCP, from4, to4, SYN), Event { port: Some(22), ..expected(from4, to4, TCP, &[]) }),
        (packet(UDP, from6, to6, 0), Event { port: Some(53), ..expected(from6, to6, UDP, &[]) }),
        (packet(TCP, from6, to6, ACK), Event { port: Some(53), ..expected(from6, to6, TCP, &[]) }),
        (with_option, Event { port: Some(22), ..expected(from4, to4, UDP, &[]) }),
        (packet_with(ICMP, from4, to4, &[8, 0, 0, 0]), expected(from4, to4, ICMP, &[])),
        (packet_with(ICMPV6, from6, to6, &[128, 0, 0, 0]), expected(from6, to6, ICMPV6, &[])),
        (first, Event { fragment: true, ..expected(from4, to4, UDP, &[]) }),
        (later, Event { fragment: true, ..expected(from4, to4, UDP, &[]) }),
        (extended, Event { port: Some(53), ..expected(from6, to6, UDP, &[]) }),
        // More fragments; an offset; and neither, which is a whole packet (RFC 6946).
        (fragment(1), Event { fragment: true, ..expected(from6, to6, UDP, &[]) }),
        (fragment(8), Event { fragment: true, ..expected(from6, to6, UDP, &[]) }),
        (fragment(0), Event { port: Some(53), ..expected(from6, to6, UDP, &[]) }),
        // Too short to have a port.
        (packet_with(UDP, from4, to4, &[0, 9]), expected(from4, to4, UDP, &[])),
        (packet_with(0, from6, to6, &[60]), expected(from6, to6, 0, &[])),
    ];
    for (bytes, event) in cases {
        for program in ["allow_ingress", "allow_xdp"] {
            let begun_ns = now_ns();
            test_run(filter.program(program), &bytes, 0, 1).unwrap();
            let event = Event { bytes: bytes.len() as u32, ..event };
            assert_eq!(only(&mut follower, begun_ns), event, "{program}");
        }
    }
    assert_eq!(follower.lost().unwrap(), 0);
}

#[test]
fn root_an_event_tells_direction_class_and_action_also_behind_a_tag() {
    if test_needs_root() {
        return;
    }
    let (from, to) = (socket("198.18.9.9:40000"), socket("198.18.0.1:22"));
    let of = |address: u32| Class { v4: Ranges::new([(address, address)]), ..Class::default() };
    // 198.18.9.9 is logged, 198.18.0.1 is let through.
    let lists = [of(0xc612_0909), of(0xc612_0001)];
    let actions = [Action::Drop, Action::Log, Action::Allow];
    let filter = Filter::load(&Compiled::of(&lists).unwrap(), &actions, 1).unwrap();
    let mut follower = filter.follow().unwrap();
    let bytes = packet(TCP, from, to, SYN);
    let came = Event { class: 1, action: "log", port: Some(22), ..expected(from, to, TCP, &bytes) };
    let begun_ns = now_ns();
    assert!(!is_shot(&filter, &bytes));
    assert_eq!(only(&mut follower, begun_ns), came);
    // Outgoing packets are judged by their destination.
    filter.run(OUT, &packet(TCP, to, from, ACK), 1).unwrap();
    let back = Event { direction: Direction::Egress, source: to.ip(), destination: from.ip(), ..came };
    assert_eq!(only(&mut follower, begun_ns), Event { port: Some(40_000), ..back });
    // Two tags (802.1ad), as a card without VLAN offload hands them over.
    let mut tagged = bytes.clone();
    tagged.splice(12..12, [0x88, 0xa8, 0, 7, 0x81, 0x00, 0, 9]);
    test_run(filter.program("allow_xdp"), &tagged, 0, 1).unwrap();
    assert_eq!(only(&mut follower, begun_ns), Event { bytes: tagged.len() as u32, ..came });
    // No event is written of a source that is let through.
    assert!(!is_shot(&filter, &packet(TCP, to, from, ACK)));
    assert_eq!(follower.read().unwrap(), []);
}

#[test]
fn root_where_nobody_follows_nothing_is_written() {
    if test_needs_root() {
        return;
    }
    let filter = refuses_all(ALL);
    let bytes = packet(TCP, socket("198.18.9.9:1"), socket("198.18.0.1:22"), SYN);
    let events = || filter.status().unwrap().events;
    filter.run(IN, &bytes, 10).unwrap();
    assert_eq!(events(), Events::default());
    let mut follower = filter.follow().unwrap();
    assert_eq!(follower.read().unwrap(), [], "what came before is not told");
    filter.run(IN, &bytes, 10).unwrap();
    assert_eq!(events(), Events { written: 10, lost: 0, followed: true });
    drop(follower);
    filter.run(IN, &bytes, 10).unwrap();
    assert_eq!(events(), Events { written: 10, lost: 0, followed: false });
    // The next one is not told what was left for the one before.
    assert_eq!(filter.follow().unwrap().read().unwrap(), []);
    // With no sampling there are no events either.
    let silent = refuses_all(Options { sample: 0, ..ALL });
    let mut follower = silent.follow().unwrap();
    silent.run(IN, &bytes, 10).unwrap();
    assert_eq!(follower.read().unwrap(), []);
}

#[test]
fn root_a_follower_that_was_killed_is_forgotten_when_its_lease_is_over() {
    if test_needs_root() {
        return;
    }
    let filter = refuses_all(ALL);
    let bytes = packet(TCP, socket("198.18.9.9:1"), socket("198.18.0.1:22"), SYN);
    let written = || filter.status().unwrap().events.written;
    let begun = Instant::now();
    // As SIGKILL leaves it: nothing is dropped.
    std::mem::forget(filter.follow().unwrap());
    filter.run(IN, &bytes, 1).unwrap();
    let deadline = begun + LEASE + Duration::from_secs(20);
    while filter.status().unwrap().events.followed {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() >= LEASE);
    let before = written();
    assert!(before >= 1);
    filter.run(IN, &bytes, 100).unwrap();
    assert_eq!(written(), before);
}

#[test]
fn root_of_a_flood_each_core_writes_so_many_events_and_counts_the_others() {
    if test_needs_root() {
        return;
    }
    const AT_A_TIME: u32 = 20_000;
    let filter = refuses_all(ALL);
    let mut follower = filter.follow().unwrap();
    let bytes = packet(UDP, socket("198.18.9.9:1"), socket("198.18.0.1:53"), 0);
    let (begun_ns, mut sent, mut read) = (now_ns(), 0_u64, 0_u64);
    // Long enough for some windows, and for many more packets than events.
    while now_ns() < begun_ns + 4 * WEIR_WINDOW_NS || sent < 200_000 {
        filter.run(IN, &bytes, AT_A_TIME).unwrap();
        sent += u64::from(AT_A_TIME);
        read += follower.read().unwrap().len() as u64;
    }
    let windows = now_ns() / WEIR_WINDOW_NS - begun_ns / WEIR_WINDOW_NS + 1;
    let events = filter.status().unwrap().events;
    assert_eq!((events.written + events.lost, events.written), (sent, read));
    assert_eq!(follower.lost().unwrap(), events.lost);
    let most = windows * WEIR_EVENTS_IN_WINDOW * weir_bpf::possible_cpus() as u64;
    assert!((WEIR_EVENTS_IN_WINDOW..=most).contains(&read), "{read} of at most {most}");
    // Its source was still counted each time.
    assert_eq!(filter.status().unwrap().denied[0].packets, sent);
    // Another one begins with what is lost from then on.
    drop(follower);
    assert_eq!(filter.follow().unwrap().lost().unwrap(), 0);
}
