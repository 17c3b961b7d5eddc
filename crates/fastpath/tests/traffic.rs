//! Flows through a gateway that masquerades: what is carried, what is not, and that nothing arrives otherwise than without us.

mod world;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::time::Duration;

use weir_fastpath::{Change, Lesson, Options, Reason};
use weir_netlink::conntrack::{Conntrack, Status as ConntrackStatus, Tuple};
use weir_sys::privilege::test_needs_root;
use world::{Carried, NatWorld, PATIENCE, passes, sh, until, within};

/// A flow enters with its second packet.
const EARLY: Options = Options { connections: 1024, connections6: 1024, packets: 2, ..Options::DEFAULT };

/// The same on a kernel without conntrack's functions for BPF.
const BY_NETLINK: Options = Options { without_functions: true, ..EARLY };

fn udp_both_ways(ipv6: bool, options: Options) {
    let world = NatWorld::new(ipv6);
    let carried = world.carried(options);
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let both = || {
        let from = passes(&client, to, &server, &[1; 100]);
        assert_eq!(from.ip(), world.gateway_outside);
        passes(&server, from, &client, &[2; 120]);
    };
    if options.without_functions {
        until("the flow is carried", || (carried.during(both).0 == 2).then_some(()));
    } else {
        (0..4).for_each(|_| both());
    }
    let (packets, _) = carried.during(|| {
        for n in 0..50_u8 {
            let from = passes(&client, to, &server, &vec![n; 1 + usize::from(n)]);
            assert_eq!(from.ip(), world.gateway_outside);
            passes(&server, from, &client, &vec![n; 2 + usize::from(n)]);
        }
    });
    assert_eq!(packets, 100, "{:?}", carried.status());
    // Without the resident process the lease ends.
    let mut carried = carried;
    carried.keeper = None;
    until("the lease ends", || {
        let (packets, _) = carried.during(|| passes(&client, to, &server, b"x"));
        (packets == 0).then_some(())
    });
    assert!(carried.status().packets(Reason::NoLease) > 0);
}

#[test]
fn root_udp_is_carried_both_ways_as_long_as_the_lease_lasts() {
    if !test_needs_root() {
        [EARLY, BY_NETLINK].into_iter().for_each(|options| udp_both_ways(false, options));
    }
}

#[test]
fn root_udp_over_ipv6_is_carried_both_ways() {
    if !test_needs_root() {
        [EARLY, BY_NETLINK].into_iter().for_each(|options| udp_both_ways(true, options));
    }
}

/// Less than a quarter of UDP's timeout, after which a packet takes the kernel's way in any case.
const BEFORE_ITS_TURN: Duration = Duration::from_secs(5);

/// As many bytes as that, both ways at once.
fn exchange(near: &mut (impl Read + Write + Send), far: &mut (impl Read + Write + Send), bytes: usize) {
    let sent: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
    let mut got = vec![0; bytes];
    std::thread::scope(|scope| {
        scope.spawn(|| far.read_exact(&mut got).unwrap());
        near.write_all(&sent).unwrap();
    });
    assert!(got == sent, "the bytes arrive as they were sent");
}

fn tcp_to_its_end(ipv6: bool, options: Options) {
    let world = NatWorld::new(ipv6);
    let carried = world.carried(options);
    let listener = world.listen(5001);
    let (mut near, mut far) = world.connect(0, &listener);
    // Each try is a packet each way and its acknowledgement; the window must be loosened before the flow is carried.
    until("TCP is carried both ways", || {
        let (packets, _) = carried.during(|| {
            for _ in 0..20 {
                exchange(&mut near, &mut far, 1);
                exchange(&mut far, &mut near, 1);
            }
        });
        (packets >= 40).then_some(())
    });
    let mut mostly_carried = || {
        let before = carried.status();
        exchange(&mut near, &mut far, 20 << 20);
        exchange(&mut far, &mut near, 20 << 20);
        let after = carried.status();
        let more = |reason| after.packets(reason) - before.packets(reason);
        more(Reason::Carried) > more(Reason::Unknown)
    };
    // Packets longer than any before are learnt anew. Without functions the flow waits until the resident process has asked, and
    // megabytes pass meanwhile.
    if options.without_functions {
        until("megabytes are carried", || mostly_carried().then_some(()));
    } else {
        assert!(mostly_carried(), "{:?}", carried.status());
    }
    assert_eq!(carried.status().packets(Reason::Failed), 0);
    // The end takes the kernel's way, which has seen none of the megabytes: the window must not be in its way. First one side ends, and
    // the other one goes on.
    near.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    exchange(&mut far, &mut near, 5 << 20);
    drop(far);
    near.read_to_end(&mut rest).unwrap();
    drop(near);
    until("conntrack has seen the end", || {
        let text = sh(&world.gateway, "conntrack -L -p tcp 2>/dev/null || true");
        (!text.contains("ESTABLISHED")).then_some(())
    });
    assert!(carried.status().packets(Reason::Control) >= 2);
    // The same ports anew: a flow that has ended is not carried.
    let (mut near, mut far) = world.connect(1, &listener);
    exchange(&mut near, &mut far, 1 << 20);
}

#[test]
fn root_tcp_is_carried_and_ends_as_without_us() {
    if !test_needs_root() {
        [EARLY, BY_NETLINK].into_iter().for_each(|options| tcp_to_its_end(false, options));
    }
}

#[test]
fn root_tcp_over_ipv6_is_carried_and_ends_as_without_us() {
    if !test_needs_root() {
        [EARLY, BY_NETLINK].into_iter().for_each(|options| tcp_to_its_end(true, options));
    }
}

/// The kernel gives the port to the other inside host as soon as its entry is gone. Answers must never come to the one that had it.
#[test]
fn root_a_port_that_is_issued_anew_never_delivers_to_the_host_that_had_it() {
    if !test_needs_root() {
        [EARLY, BY_NETLINK].into_iter().for_each(a_port_is_issued_anew);
    }
}

fn a_port_is_issued_anew(options: Options) {
    let world = NatWorld::new(false);
    let mut carried = world.carried(options);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let clients: Vec<_> =
        (0..2).map(|n| world.udp(&world.inside[n], world.inside_addresses[n], 4000)).collect();
    clients[1].set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let talk = |host: usize| {
        let mut source = None;
        for n in 0..6_u8 {
            let from = passes(&clients[host], to, &server, &[n; 64]);
            passes(&server, from, &clients[host], &[n; 64]);
            source = Some(from);
        }
        source.unwrap()
    };
    let first = talk(0);
    if options.without_functions {
        until("all is carried", || (carried.during(|| talk(0)).0 == 12).then_some(()));
    }
    assert!(carried.packets() > 0);
    // Without the resident process no event removes anything; the lease still lasts.
    let fastpath = std::sync::Arc::clone(&carried.fastpath);
    carried.keeper = None;
    fastpath.renew().unwrap();
    sh(&world.gateway, "conntrack -F");
    let second = talk(1);
    assert_eq!(first, second, "the same outside port, or this tests nothing");
    assert!(carried.status().lessons(Lesson::Reissued) >= 1, "{:?}", carried.status());
    let (_, got) = carried.during(|| {
        let mut byte = [0; 100];
        clients[0].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        clients[0].recv_from(&mut byte).is_ok()
    });
    assert!(!got, "an answer came to the host that had the port before");
}

/// More than the resident process removes by one call.
#[test]
fn root_no_entry_outlives_many_connections_that_end_at_once() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(true);
    let carried = world.carried(EARLY);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let clients: Vec<_> =
        (0..150).map(|n| world.udp(&world.inside[0], world.inside_addresses[0], 4000 + n)).collect();
    let entries = || carried.fastpath.flows(usize::MAX).unwrap().len();
    until("they are learnt", || {
        for client in &clients {
            let from = passes(client, to, &server, b"out");
            passes(&server, from, client, b"back");
        }
        (entries() > 290).then_some(())
    });
    sh(&world.gateway, "conntrack -F -f ipv6");
    until("none is left, stale or not", || (entries() == 0).then_some(()));
}

#[test]
fn root_a_connection_that_is_deleted_is_carried_no_more() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let carried = world.carried(EARLY);
    let (client, server) =
        (world.udp(&world.inside[0], world.inside_addresses[0], 4000), world.server_udp(5000));
    let to = server.local_addr().unwrap();
    let talk = || {
        for n in 0..10_u8 {
            let from = passes(&client, to, &server, &[n; 64]);
            passes(&server, from, &client, &[n; 64]);
        }
    };
    // On a machine that stands still the lease ends for a moment.
    until("all is carried", || (carried.during(talk).0 == 20).then_some(()));
    sh(&world.gateway, "nft 'add chain ip nat f { type filter hook forward priority 0; policy drop; }'");
    // The rule alone: its event makes entries stale, long before a packet of the flow would take the kernel's way in its turn.
    let mut byte = [0; 10];
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut is_stopped = || {
        client.send_to(b"no", to).unwrap();
        server.recv_from(&mut byte).is_err().then_some(())
    };
    within(BEFORE_ITS_TURN, "the rule holds", &mut is_stopped);
    assert!(carried.status().packets(Reason::Stale) > 0);
    sh(&world.gateway, "nft delete chain ip nat f");
    // The same of forwarding as a whole.
    sh(&world.gateway, "sysctl -q net.ipv4.conf.all.forwarding=0");
    within(BEFORE_ITS_TURN, "without forwarding nothing is carried", &mut is_stopped);
    sh(&world.gateway, "sysctl -q net.ipv4.conf.all.forwarding=1");
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    until("all is carried again", || (carried.during(talk).0 == 20).then_some(()));
    sh(&world.gateway, "conntrack -D -p udp");
    let is_slow = |from: &UdpSocket, to: SocketAddr, at: &UdpSocket| {
        let (packets, source) = carried.during(|| passes(from, to, at, b"again"));
        (packets == 0).then_some(source)
    };
    let from = within(BEFORE_ITS_TURN, "one direction is removed", || is_slow(&client, to, &server));
    within(BEFORE_ITS_TURN, "the other direction is removed", || is_slow(&server, from, &client));
}

#[test]
fn root_what_is_unusual_takes_the_kernels_way() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let carried = world.carried(EARLY);
    let (client, server) =
        (world.udp(&world.inside[0], world.inside_addresses[0], 4000), world.server_udp(5000));
    let to = server.local_addr().unwrap();
    for n in 0..6_u8 {
        let from = passes(&client, to, &server, &[n; 64]);
        passes(&server, from, &client, &[n; 64]);
    }
    // Fragments.
    let (packets, from) = carried.during(|| passes(&client, to, &server, &[7; 4000]));
    assert_eq!((packets, from.ip()), (0, world.gateway_outside));
    assert_eq!(carried.status().packets(Reason::Fragment), 3, "{:?}", carried.status());
    // Longer than those before: the kernel's way first, then carried.
    let (packets, ()) = carried.during(|| {
        for _ in 0..3 {
            passes(&client, to, &server, &[7; 1000]);
        }
    });
    assert_eq!(packets, 2, "{:?}", carried.status());
    // The last hop: the kernel answers, and nothing arrives.
    client.set_ttl(1).unwrap();
    let (packets, _) = carried.during(|| client.send_to(b"x", to).unwrap());
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(server.recv_from(&mut [0; 10]).is_err() && packets == 0);
    assert_eq!(carried.status().packets(Reason::LastHop), 1);
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    // Another DSCP than the one that was learnt: rules and queues may treat it otherwise.
    let other = world.udp(&world.inside[0], world.inside_addresses[0], 4001);
    for n in 0..6_u8 {
        passes(&other, to, &server, &[n; 64]);
    }
    rustix::net::sockopt::set_ip_tos(&other, 0x48).unwrap();
    let (packets, _) = carried.during(|| passes(&other, to, &server, &[1; 64]));
    assert_eq!((packets, carried.status().packets(Reason::Otherwise)), (0, 1));
}

/// Nearly as many directions of flows as buckets, and each bucket counts the packets of one unknown flow: two of one bucket must not keep
/// each other out for ever. About 50 buckets have several. Six flows are left to the kernel because more than four fall into one bucket
/// with a probability of about 10^-6.
#[test]
fn root_flows_that_take_turns_are_all_learnt() {
    if test_needs_root() {
        return;
    }
    let options = Options { connections: 64, connections6: 256, ..Options::default() };
    let world = NatWorld::new(true);
    let carried = world.carried(options);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let clients: Vec<_> = (0..100)
        .map(|n: u16| world.udp(&world.inside[0], world.inside_addresses[0], 4000 + n * n * 5))
        .collect();
    until("all are carried", || {
        let (packets, ()) = carried.during(|| {
            for client in &clients {
                passes(client, to, &server, b"in turn");
            }
        });
        (packets > 94).then_some(())
    });
}

/// The table begins small, and grows when flows find no room in it, but not for connections that are not carried. A bucket that by
/// chance is that of more than four of 600 flows is no reason to grow: with one bucket for each connection, there is such a bucket in
/// every third run, and it leaves the fifth flow to the kernel. Ten flows are left with a probability below 10^-10.
#[test]
fn root_a_table_that_is_full_grows_and_the_flows_are_carried() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    // Room for 256 directions at first, and for 1024 if no connection is carried.
    let carried = world.carried(Options { connections: 4096, at_first: 64, packets: 3, ..EARLY });
    let grown = || {
        let changes = carried.fastpath.changes();
        changes.iter().find(|count| count.change == Change::Room).map_or(0, |count| count.times)
    };
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let clients: Vec<_> =
        (0..600).map(|n| world.udp(&world.inside[0], world.inside_addresses[0], 4000 + n)).collect();
    let all_send = || {
        for client in &clients {
            passes(client, to, &server, b"one of many");
        }
    };
    all_send();
    // The resident process has looked at them four times.
    std::thread::sleep(Duration::from_secs(2));
    let before = grown();
    assert_eq!(carried.fastpath.live().unwrap(), 0);
    until("they are carried", || {
        let (packets, ()) = carried.during(all_send);
        // All that are in the table, which are all but those few.
        (packets > 590 && packets == carried.fastpath.live().unwrap()).then_some(())
    });
    assert!((1..grown()).contains(&before), "{before}, then {}", grown());
}

#[test]
fn root_udp_without_answers_has_its_own_short_time_and_keeps_the_kernels_timeout() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    for (name, seconds) in [("nf_conntrack_udp_timeout", 100), ("nf_conntrack_udp_timeout_stream", 1000)] {
        sh(&world.gateway, &format!("sysctl -q net.netfilter.{name}={seconds}"));
    }
    // Buckets of four for 128 directions: 256 entries.
    let carried = world.carried(Options { connections: 64, ..EARLY });
    let client = world.udp(&world.inside[0], world.inside_addresses[0], 4000);
    let server = world.server_udp(5000);
    let to = server.local_addr().unwrap();
    let (packets, ()) = carried.during(|| {
        for _ in 0..40 {
            passes(&client, to, &server, b"no answer");
        }
    });
    assert!(packets > 0, "{:?}", carried.status());
    // After its own time the kernel sees a packet. A quarter of its timeout would be 25 s.
    let of = |reason| carried.status().packets(reason);
    let (due, mut stale, mut quiet) = (of(Reason::Due), of(Reason::Stale), 0);
    while of(Reason::Due) == due {
        assert!(quiet < 5, "{:?}", carried.status());
        std::thread::sleep(Duration::from_millis(2200));
        passes(&client, to, &server, b"due");
        // A neighbour that changes has the flow learned anew, and its time begins again.
        let now = of(Reason::Stale);
        quiet = if now == stale { quiet + 1 } else { 0 };
        stale = now;
    }
    let tuple = Tuple {
        source: world.inside_addresses[0].into(),
        destination: to.ip().into(),
        protocol: 17,
        source_port: 4000,
        destination_port: 5000,
    };
    let look = || Conntrack::open().unwrap().get(&tuple).unwrap();
    let entry = world.gateway.run(look).unwrap();
    let entry = entry.unwrap();
    let has = |status| entry.status.has(status);
    assert!(!has(ConntrackStatus::ASSURED) && !has(ConntrackStatus::SEEN_REPLY), "{entry:?}");
    assert!(entry.timeout_s.unwrap() <= 100, "no stream's timeout: {entry:?}");
    // A flood of them fills the table, and holds it for a quarter of the timeout and two seconds: not for half a minute more.
    sh(&world.gateway, "sysctl -q net.netfilter.nf_conntrack_udp_timeout=20");
    let full = (0..4_u16).find_map(|turn| flood_for(&world, &carried, &server, 6000 + 1000 * turn));
    let full = full.expect("seven seconds without a change of interfaces, which empties the table, too");
    for port in 4100..4106 {
        let client = world.udp(&world.inside[0], world.inside_addresses[0], port);
        for _ in 0..3 {
            let from = passes(&client, to, &server, b"?");
            passes(&server, from, &client, b"!");
        }
    }
    assert_eq!(carried.status().lessons(Lesson::NoRoom), full, "there is room again: {:?}", carried.status());
}

/// Fills the table by UDP without answers, and waits until its time is over: attempts that found no room. `None` if something else made
/// everything stale meanwhile: the kernel tells of a bridge's port some time after it was made.
fn flood_for(world: &NatWorld, carried: &Carried, server: &UdpSocket, first: u16) -> Option<u64> {
    let changes = || carried.fastpath.changes().iter().map(|count| count.times).sum::<u64>();
    let (before, refused) = (changes(), carried.status().lessons(Lesson::NoRoom));
    for port in first..first + 600 {
        let client = world.udp(&world.inside[1], world.inside_addresses[1], port);
        for _ in 0..3 {
            passes(&client, server.local_addr().unwrap(), server, b"flood");
        }
    }
    let full = carried.status().lessons(Lesson::NoRoom);
    assert!(full > refused + 100, "{:?}", carried.status());
    std::thread::sleep(Duration::from_millis(7500));
    (changes() == before).then_some(full)
}

/// Conntrack compares a reset with the last acknowledgement that it saw (nf_conntrack_proto_tcp.c, RFC 5961 section 3.2): if that is
/// more than 2 GiB ago, the reset looks old, is not translated, and the far end waits for ever.
#[test]
fn root_a_reset_after_more_than_two_gibibytes_arrives() {
    if test_needs_root() {
        return;
    }
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 2600;
    let world = NatWorld::new(false);
    let carried = world.carried(EARLY);
    let listener = world.listen(5001);
    let (mut near, mut far) = world.connect(0, &listener);
    let piece = vec![7; PIECE];
    let mut got = vec![0; PIECE];
    std::thread::scope(|scope| {
        scope.spawn(|| (0..PIECES).for_each(|_| far.read_exact(&mut got).unwrap()));
        (0..PIECES).for_each(|_| near.write_all(&piece).unwrap());
    });
    let status = carried.status();
    let share = status.packets(Reason::Carried) as f64
        / status.reasons.iter().map(|(_, count)| count.packets as f64).sum::<f64>();
    assert!(share > 0.9, "{status:?}");
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::ZERO)).unwrap();
    drop(near);
    let error = far.read(&mut got).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}
