//! Against the kernel, in a namespace of the test's own.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;

use super::*;
use crate::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::ProcRoot;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::{run_with_input, which};

#[test]
fn root_entries_are_counted_and_flushed() {
    if test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let ns = NetNs::create().unwrap();
    Rtnetlink::open_in(&ns).unwrap().set_up("lo").unwrap();
    let mut command = Command::new("nft");
    command.args(["-f", "-"]);
    ns.enter_on_spawn(&mut command);
    // A rule that looks at the state makes the namespace track connections.
    let rules = b"table ip t { chain c { type filter hook input priority 0; ct state new accept; }; }\n";
    let output = run_with_input(command, rules, Duration::from_secs(10)).unwrap();
    assert!(output.status.success(), "{}", output.message());
    ns.run(|| {
        let mut conntrack = Conntrack::open().unwrap();
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..5 {
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
        }
        assert_eq!(ProcRoot::new("/").conntrack_count(), Some(5));
        let statistics = conntrack.statistics().unwrap();
        assert_eq!(statistics["insert_failed"], 0);
        assert_eq!(statistics["drop"], 0);
        conntrack.flush().unwrap();
        assert_eq!(ProcRoot::new("/").conntrack_count(), Some(0));
    })
    .unwrap();
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// 3,000 TCP connections of 30 clients in two states, 500 of UDP over IPv6, one echo, and one with a mark in a zone.
fn entries() -> Vec<NewEntry> {
    let mut all = Vec::new();
    for i in 0..3000_u16 {
        let client = SocketAddr::new(IpAddr::from([10, 0, 0, u8::try_from(i % 30).unwrap()]), 20_000 + i);
        let state = if i % 3 == 0 { 7 } else { 3 };
        let entry = NewEntry::tcp(client, at("198.18.0.1:443"), state);
        all.push(NewEntry {
            source_nat: (i < 100).then(|| at(&format!("198.18.0.9:{}", 2000 + i))),
            ..entry
        });
    }
    for i in 0..500_u16 {
        all.push(NewEntry::udp(at(&format!("[2001:2::7]:{}", 1000 + i)), at("[2001:2::53]:53")));
    }
    all.push(NewEntry { protocol: 1, ..NewEntry::udp(at("10.0.0.5:77"), at("198.18.0.1:0")) });
    all.push(NewEntry { mark: 0x2a, zone: 9, ..NewEntry::udp(at("10.0.0.6:1"), at("198.18.0.1:9")) });
    all
}

/// The entries that a filter passes, and the outcome.
fn matching(filter: &Filter) -> (Vec<Entry>, Dumped) {
    let mut found = Vec::new();
    let dumped = dump(filter, |entry| {
        found.push(*entry);
        ControlFlow::Continue(())
    });
    (found, dumped.unwrap())
}

#[test]
fn root_a_dump_is_what_conntrack_lists() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    ns.run(|| assert_eq!(Conntrack::open().unwrap().insert(entries()).unwrap(), 3502)).unwrap();
    let (all, dumped) = ns.run(|| matching(&Filter::default())).unwrap();
    assert_eq!(dumped, Dumped { received: 3502, matched: 3502, ..Dumped::default() });

    let of = |e: &Entry| (e.original.source.ip(), e.original.source_port, e.original.protocol);
    let mut made: Vec<_> = entries().iter().map(|e| (e.source.ip(), e.source.port(), e.protocol)).collect();
    let mut found: Vec<_> = all.iter().map(of).collect();
    made.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, made);
    let zoned = all.iter().find(|e| e.zone == 9).unwrap();
    assert_eq!((zoned.mark, zoned.original.destination_port), (0x2a, 9));
    assert!(zoned.timeout_s.is_some_and(|s| (500..=600).contains(&s)), "{zoned:?}");
    let echo = all.iter().find(|e| e.original.protocol == 1).unwrap();
    // Type 8, code 0: an echo request; 0, 0 its reply (RFC 792).
    assert_eq!((echo.original.destination_port, echo.reply.destination_port), (8 << 8, 0));

    if which("conntrack").is_none() {
        println!("SKIP: conntrack is not installed, so no other listing is compared");
        return;
    }
    let mut listing = BTreeMap::new();
    for family in ["ipv4", "ipv6"] {
        let mut command = Command::new("conntrack");
        command.args(["-L", "-o", "extended", "-f", family]);
        ns.enter_on_spawn(&mut command);
        let output = run_with_input(command, b"", Duration::from_secs(20)).unwrap();
        for line in output.stdout_text().lines() {
            // ipv4 2 tcp 6 431999 ESTABLISHED src=10.0.0.1 dst=... sport=.. dport=.. src=... dst=... sport=... dport=...
            let words: Vec<&str> = line.split_whitespace().collect();
            let values =
                |key: &str| -> Vec<&str> { words.iter().filter_map(|w| w.strip_prefix(key)).collect() };
            let key = format!("{} {:?} {:?}", words[2], values("src="), values("dport="));
            *listing.entry(key).or_insert(0) += 1;
        }
    }
    let mut own = BTreeMap::new();
    for e in &all {
        let ports = match e.original.protocol {
            1 => vec![],
            _ => vec![e.original.destination_port.to_string(), e.reply.destination_port.to_string()],
        };
        let name = match e.original.protocol {
            6 => "tcp",
            17 => "udp",
            _ => "icmp",
        };
        let sources = [e.original.source.ip().to_string(), e.reply.source.ip().to_string()];
        *own.entry(format!("{name} {sources:?} {ports:?}")).or_insert(0) += 1;
    }
    assert_eq!(own, listing);
}

#[test]
fn root_the_kernel_filters_what_it_can() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    ns.run(|| Conntrack::open().unwrap().insert(entries()).unwrap()).unwrap();
    let prefix = |text: &str| Some(text.parse().unwrap());
    let none = Filter::default();
    // Filter, entries that match, and entries that this kernel sends: fewer only where it can tell.
    let cases = [
        (Filter { v6: Some(true), ..none }, 500, 500),
        (Filter { v6: Some(false), protocol: Some(1), ..none }, 1, 1),
        (Filter { protocol: Some(6), ..none }, 3000, 3502),
        (Filter { source: prefix("10.0.0.7"), ..none }, 100, 100),
        (Filter { source: prefix("10.0.0.0/28"), ..none }, 1602, 3002),
        (Filter { source: prefix("2001:2::7"), ..none }, 500, 500),
        (Filter { source: prefix("2001:2::8"), ..none }, 0, 500),
        (Filter { tcp_states: 1 << 7, ..none }, 1000, 3502),
        (Filter { status: Status::SOURCE_NAT, ..none }, 100, 100),
        (Filter { status_not: Status::SOURCE_NAT, v6: Some(false), ..none }, 2902, 2902),
        (Filter { destination: prefix("198.18.0.1"), port: Some(9), ..none }, 1, 3002),
        (Filter { mark: Some((0x2a, u32::MAX)), ..none }, 1, 1),
        (Filter { zone: Some(9), ..none }, 1, 1),
    ];
    for (filter, matches, sent) in cases {
        let (found, dumped) = ns.run(|| matching(&filter)).unwrap();
        assert_eq!(found.len(), matches, "{filter:?}");
        assert!(found.iter().all(|e| filter.matches(e)), "{filter:?}");
        // A newer kernel may tell more apart, an older one less; it never holds back what matches.
        assert!(dumped.received >= matches as u64, "{filter:?}");
        let release = weir_sys::uname::Uname::current().release;
        if release.starts_with("6.18.") {
            assert!(dumped.received <= sent, "{filter:?}: {} sent", dumped.received);
        }
    }
}

#[test]
fn root_a_dump_can_be_left_early() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    ns.run(|| {
        Conntrack::open().unwrap().insert(entries()).unwrap();
        let mut left = 10;
        let dumped = dump(&Filter::default(), |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let dumped = dumped.unwrap();
        assert_eq!((dumped.matched, dumped.stopped), (10, true));
        // And the next one is whole.
        assert_eq!(matching(&Filter::default()).1.matched, 3502);
    })
    .unwrap();
}

#[test]
fn root_a_refused_entry_is_told() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    ns.run(|| {
        let twice = [NewEntry::udp(at("10.0.0.1:1"), at("10.0.0.2:2")); 2];
        let error = Conntrack::open().unwrap().insert(twice).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST), "{error}");
        assert_eq!(matching(&Filter::default()).1.matched, 1);
    })
    .unwrap();
}

/// An entry is found by a packet of either direction, also behind translation, and nothing by any other packet.
#[test]
fn root_an_entry_is_found_by_the_packets_of_both_directions() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    let tuple = |from: &str, to: &str, protocol| Tuple {
        source: at(from).ip().into(),
        destination: at(to).ip().into(),
        protocol,
        source_port: at(from).port(),
        destination_port: at(to).port(),
    };
    ns.run(|| {
        let mut conntrack = Conntrack::open().unwrap();
        let translated = NewEntry {
            source_nat: Some(at("198.18.0.9:2000")),
            ..NewEntry::tcp(at("10.0.0.1:40000"), at("198.18.0.1:443"), 3)
        };
        let v6 = NewEntry::udp(at("[2001:2::7]:1000"), at("[2001:2::53]:53"));
        conntrack.insert([translated, v6]).unwrap();
        let mut get = |from: &str, to: &str, protocol| conntrack.get(&tuple(from, to, protocol)).unwrap();
        let there = get("10.0.0.1:40000", "198.18.0.1:443", 6).unwrap();
        assert_eq!(there.reply, tuple("198.18.0.1:443", "198.18.0.9:2000", 6));
        assert_eq!((there.state, there.status.has(Status::SOURCE_NAT)), (Some(3), true));
        assert_eq!(get("198.18.0.1:443", "198.18.0.9:2000", 6).unwrap().original, there.original);
        assert!(get("[2001:2::53]:53", "[2001:2::7]:1000", 17).is_some());
        // Another port, another protocol, and the untranslated way back.
        assert_eq!(get("198.18.0.1:443", "198.18.0.9:2001", 6), None);
        assert_eq!(get("198.18.0.1:443", "198.18.0.9:2000", 17), None);
        assert_eq!(get("198.18.0.1:443", "10.0.0.1:40000", 6), None);
        assert!(conntrack.get(&tuple("10.0.0.1:1", "[2001:2::53]:53", 17)).is_err());
    })
    .unwrap();
}

#[test]
fn root_a_connection_can_be_let_go_on_whatever_its_sequence_numbers() {
    if test_needs_root() {
        return;
    }
    let ns = NetNs::create().unwrap();
    ns.run(|| {
        let mut conntrack = Conntrack::open().unwrap();
        let zoned = NewEntry::tcp(at("10.0.0.2:4000"), at("198.18.0.1:80"), 3);
        let made = [
            NewEntry { zone: 7, ..zoned },
            NewEntry::tcp(at("[2001:2::2]:4000"), at("[2001:2::1]:80"), 3),
            NewEntry::tcp(at("10.0.0.3:4000"), at("198.18.0.1:80"), 3),
        ];
        conntrack.insert(made).unwrap();
        let (before, _) = matching(&Filter::default());
        assert!(before.iter().all(|e| !e.liberal), "{before:?}");
        let meant = |e: &Entry| e.original.source.ip() != at("10.0.0.3:0").ip();
        for entry in before.iter().filter(|e| meant(e)) {
            assert!(conntrack.be_liberal(entry).unwrap(), "{entry:?}");
        }
        let (after, _) = matching(&Filter::default());
        assert_eq!(after.len(), 3, "nothing was added");
        assert!(after.iter().all(|e| e.liberal == meant(e) && e.state == Some(3)), "{after:?}");
        conntrack.flush().unwrap();
        assert!(!conntrack.be_liberal(&before[0]).unwrap(), "it is gone, and stays so");
        assert_eq!(matching(&Filter::default()).0, []);
    })
    .unwrap();
}
