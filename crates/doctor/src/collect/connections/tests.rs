//! Against the kernel, in namespaces of the tests' own.

use std::net::SocketAddr;

use weir_netlink::conntrack::NewEntry;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;

use weir_netlink::conntrack::Status;

use super::*;
use crate::evidence::FlowEvent;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn packet(from: &str, to: &str, protocol: u8) -> Tuple {
    let (from, to) = (at(from), at(to));
    let (source_port, destination_port) = (from.port(), to.port());
    Tuple { source: from.ip(), destination: to.ip(), protocol, source_port, destination_port }
}

/// The answer of a new namespace with these entries about these packets.
fn seen(entries: Vec<NewEntry>, packets: &[Tuple]) -> Connections {
    let reset = |tuple: &Tuple| FlowEvent {
        namespace: 0,
        kind: FlowEventKind::ResetSent,
        tuple: Some(*tuple),
        state: 0,
        times: 1,
        largest_bytes: 0,
        smallest_bytes: 0,
    };
    let flows: Vec<FlowEvent> = packets.iter().map(reset).collect();
    let asked = Asked { flows: flows.iter().collect(), ..Asked::default() };
    let ns = NetNs::create().unwrap();
    ns.run(|| {
        Conntrack::open().unwrap().insert(entries).unwrap();
        read(&ProcRoot::new("/"), &asked, &Common::new(0), 0).unwrap().unwrap()
    })
    .unwrap()
}

#[test]
fn root_a_table_is_summed_up_by_who_holds_it() {
    if test_needs_root() {
        return;
    }
    let mut entries = Vec::new();
    for port in 0..300 {
        entries.push(NewEntry::udp(at(&format!("10.0.0.1:{}", 1000 + port)), at("198.18.0.53:53")));
    }
    for port in 0..100 {
        let client = at(&format!("[2001:2::1]:{}", 1000 + port));
        entries.push(NewEntry::tcp(client, at("[2001:2::2]:443"), 7));
    }
    let lonely = NewEntry { status: Status(0), ..NewEntry::tcp(at("10.0.0.9:5"), at("10.0.0.8:80"), 1) };
    entries.push(lonely);
    let table = seen(entries, &[]);
    assert_eq!((table.count, table.read, table.beyond), (401, 401, 0));
    assert_eq!((table.assured, table.unreplied, table.partial), (400, 1, None));
    let states = [("tcp syn-sent", 1), ("tcp time-wait", 100), ("udp assured", 300)];
    assert_eq!(table.states, states.map(|(name, n)| (name.to_owned(), n)).into());
    assert_eq!(table.sources[0], ("10.0.0.1".parse().unwrap(), 300));
    assert_eq!((table.services[0].port, table.services[0].entries), (53, 300));
    let groups: Vec<_> = table.groups.iter().map(|g| (g.entries, g.state, g.replied)).collect();
    assert_eq!(groups, [(300, 0, true), (100, 7, true), (1, 1, false)]);
    assert!(table.groups[0].private_source && !table.groups[0].same_network);
    assert!(!table.groups[1].private_source && table.groups[1].same_network);
    assert_eq!(table.groups[2].example, Some(packet("10.0.0.9:5", "10.0.0.8:80", 6)));
    assert!(table.entry_bytes.is_none_or(|n| (200..2000).contains(&n)), "{:?}", table.entry_bytes);
    assert_eq!((table.pools, table.split), (vec![], vec![]));
}

/// A packet finds its entry by either direction, behind translation, and in another zone.
#[test]
fn root_packets_are_joined_with_their_entries() {
    if test_needs_root() {
        return;
    }
    let outside = Some(at("198.18.0.9:2000"));
    let translated =
        NewEntry { source_nat: outside, ..NewEntry::tcp(at("10.0.0.1:40000"), at("198.18.0.1:443"), 3) };
    let zoned = NewEntry { zone: 5, ..NewEntry::udp(at("10.0.0.2:7"), at("198.18.0.1:8")) };
    let back = packet("198.18.0.1:443", "198.18.0.9:2000", 6);
    let other = packet("198.18.0.1:443", "198.18.0.9:2001", 6);
    let elsewhere = packet("198.18.0.1:8", "10.0.0.2:7", 17);
    let table = seen(vec![translated, zoned], &[back, other, elsewhere]);
    assert_eq!(table.absent, [other]);
    let joined: Vec<_> = table.joined.iter().map(|(t, g)| (*t, g.state, g.source_nat, g.zone)).collect();
    assert_eq!(joined, [(back, 3, true, 0), (elsewhere, 0, false, 5)]);
    assert_eq!(table.joined[0].1.example, Some(packet("10.0.0.1:40000", "198.18.0.1:443", 6)));
}

#[test]
fn root_a_connection_in_two_zones_is_seen() {
    if test_needs_root() {
        return;
    }
    let half =
        |from: &str, to: &str, zone| NewEntry { zone, status: Status(0), ..NewEntry::udp(at(from), at(to)) };
    let table = seen(
        vec![
            half("10.0.0.1:7", "198.18.0.1:8", 5),
            half("198.18.0.1:8", "10.0.0.1:7", 0),
            // One that goes through two zones one after the other is none.
            half("10.0.0.1:9", "198.18.0.1:8", 5),
            half("10.0.0.1:9", "198.18.0.1:8", 6),
        ],
        &[],
    );
    // Without translation each is the answer of the other, and which comes first is the hash's to say.
    let [(answer, asks, answers)] = table.split[..] else { panic!("{:?}", table.split) };
    let expected = if answer.source_port == 8 { (5, 0) } else { (0, 5) };
    assert_eq!((asks, answers), expected, "{answer:?}");
}

#[test]
fn time_is_shared_and_who_lost_something_has_a_reserve() {
    let all = |entries| {
        let common = Common::new(entries);
        (common.ends - TIME, common)
    };
    let given = |(began, common): &(Instant, Common), after: Duration, (count, before), explains| {
        let now = *began + after;
        common.end_of(now, count, before, explains).map(|end| end - now)
    };
    // Four of the same size, each read in its time: a quarter, a third of what is left, a half, and nearly all.
    let four = all(4_000_000);
    let each = (1_000_000, 1_000_000);
    assert_eq!(given(&four, Duration::ZERO, each, false), Some(TIME / 4));
    assert_eq!(given(&four, TIME / 4, each, false), Some((TIME * 3 / 4).mul_f64(1.0 / 3.0)));
    assert_eq!(given(&four, TIME / 2, each, false), Some(TIME / 4));
    assert_eq!(given(&four, TIME * 3 / 4, each, false), Some((TIME / 4).mul_f64(MOST_OF_LEFT)));
    // One alone, also when it has grown, and whether it was counted before or not.
    for before in [1_000_000, 900_000, 0] {
        let given = given(&all(before), Duration::ZERO, (1_000_000, before), false);
        assert_eq!(given, Some(TIME.mul_f64(MOST_OF_LEFT)));
    }
    // A small one beside a large one.
    let unequal = all(1_000_010);
    let small = (10, 10);
    assert_eq!(given(&unequal, Duration::ZERO, small, false), Some(LEAST));
    assert_eq!(given(&unequal, TIME - LEAST / 3, small, false), Some(LEAST / 3));
    assert_eq!(given(&unequal, TIME, small, false), None);
    assert_eq!(given(&unequal, TIME, small, true), Some(LEAST));
    assert_eq!(given(&unequal, TIME + RESERVE, small, true), None);
}
