use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use weir_netlink::{Route, Rtnetlink};
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::sched::{allowed_cpus, pin_current_thread};

use super::*;
use crate::evidence::{DropGroup, FlowEvent, FlowEventKind};
use weir_testkit::Files;

/// A namespace of its own with a loopback interface.
fn world() -> NetNs {
    let world = NetNs::create().unwrap();
    world.run(|| Rtnetlink::open().unwrap().set_up("lo").unwrap()).unwrap();
    world
}

/// Runs `load` while the tracer looks; what it saw.
fn watched(options: &Options, room: Room, load: impl FnOnce()) -> Evidence {
    let mut evidence = Evidence::default();
    let tracer = Tracer::with_room(options, &mut evidence.evidence_sources, room);
    load();
    tracer.end(&mut evidence);
    evidence
}

fn lacks_bpf(evidence: &Evidence) -> bool {
    match &evidence.evidence_sources[&EvidenceSource::Drops] {
        Sight::Blind(why) => {
            println!("SKIP: {why}");
            true
        }
        _ => false,
    }
}

/// Sends datagrams to a port without a listener: each is one drop, in the sender's own call.
fn to_nobody(to: SocketAddr, times: usize, size: usize) {
    let from: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
    };
    let socket = UdpSocket::bind(from).unwrap();
    let payload = vec![0x5a; size];
    for _ in 0..times {
        // Not connected: the answering ICMP error has no owner.
        socket.send_to(&payload, to).unwrap();
    }
}

fn of(evidence: &Evidence, namespace: &NetNs) -> Vec<DropGroup> {
    let id = namespace.inode().unwrap();
    evidence.drops.iter().filter(|d| d.namespace == id).cloned().collect()
}

#[test]
fn root_every_drop_is_counted_with_reason_place_and_namespace() {
    if test_needs_root() {
        return;
    }
    let (first, second) = (world(), world());
    let to4: SocketAddr = (Ipv4Addr::LOCALHOST, 4711).into();
    let to6: SocketAddr = (Ipv6Addr::LOCALHOST, 4712).into();
    let evidence = watched(&Options::default(), Room::of(possible_cpus()), || {
        first.run(|| to_nobody(to4, 1000, 180)).unwrap();
        second.run(|| to_nobody(to6, 300, 10)).unwrap();
    });
    if lacks_bpf(&evidence) {
        return;
    }
    assert_eq!(evidence.evidence_sources[&EvidenceSource::Drops], Sight::Seen);
    // IP header, UDP header, payload.
    let (long, short) = (20 + 8 + 180, 40 + 8 + 10);
    for (namespace, packets, ethertype, to, place, length) in [
        (&first, 1000, 0x0800, to4, "__udp4_lib_rcv", long),
        (&second, 300, 0x86dd, to6, "__udp6_lib_rcv", short),
    ] {
        let drops = of(&evidence, namespace);
        assert_eq!(drops.len(), 1, "{drops:#?}");
        let drop = &drops[0];
        assert_eq!((drop.packets, drop.ethertype, drop.protocol), (packets, ethertype, 17), "{drop:?}");
        assert_eq!((drop.reason.as_str(), drop.location.as_str()), ("NO_SOCKET", place));
        // The loopback interface is number 1 of every namespace (LOOPBACK_IFINDEX).
        assert_eq!((drop.interface, drop.bytes), (1, packets * u64::from(length)));
        // Each of two cores may keep 16 of its own, if the sender moved.
        assert!((4..=32).contains(&drop.samples.len()), "{}", drop.samples.len());
        for sample in &drop.samples {
            let tuple = sample.tuple().unwrap();
            assert_eq!((tuple.destination, tuple.destination_port), (to.ip(), to.port()), "{sample:?}");
            assert_eq!((tuple.source, tuple.protocol), (to.ip(), 17));
            assert_eq!((sample.came_in, sample.mark, sample.length), (1, 0, length));
            assert_eq!(sample.header.len(), length.min(128) as usize);
        }
    }
    assert!(evidence.cost.bpf_runs.is_none_or(|runs| runs >= 1300), "{:?}", evidence.cost);
}

#[test]
fn root_what_finds_no_room_is_counted_as_lost() {
    if test_needs_root() {
        return;
    }
    let world = world();
    let room = Room { places: 0, groups: 1, samples: 1, samples_per_core: 1, connections: 1 };
    let evidence = watched(&Options::default(), room, || {
        world
            .run(|| {
                to_nobody((Ipv4Addr::LOCALHOST, 4711).into(), 200, 1);
                to_nobody((Ipv6Addr::LOCALHOST, 4711).into(), 200, 1);
                for port in 4720..4730 {
                    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap_err();
                    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
                }
            })
            .unwrap();
    });
    if lacks_bpf(&evidence) {
        return;
    }
    assert!(evidence.drops.len() <= 1);
    let here: u64 = of(&evidence, &world).iter().map(|d| d.packets).sum();
    assert!(here <= 200, "two groups in a table for one");
    // Others on this machine may drop something too.
    assert!(here + evidence.cost.events_lost >= 400, "{here} and {}", evidence.cost.events_lost);
    // Connections are still counted, but not told apart.
    for kind in [FlowEventKind::ResetSent, FlowEventKind::ResetReceived] {
        let events = flows(&evidence, &world, kind);
        assert_eq!(events.iter().map(|e| e.times).sum::<u64>(), 10, "{events:?}");
        assert!(events.iter().any(|e| e.tuple.is_none()) && events.len() <= 3, "{events:?}");
    }
}

/// Three kinds of drops, of which each core has a place in front for none, one or all, and room behind for the others.
#[test]
fn root_what_finds_its_place_taken_is_counted_behind() {
    if test_needs_root() {
        return;
    }
    let world = world();
    let closed: SocketAddr = (Ipv4Addr::LOCALHOST, 4711).into();
    let load = || {
        // In turns, so that none has the place for itself.
        for _ in 0..100 {
            to_nobody(closed, 5, 1);
            to_nobody((Ipv6Addr::LOCALHOST, 4711).into(), 3, 1);
            for _ in 0..2 {
                TcpStream::connect(closed).unwrap_err();
            }
        }
    };
    for places in [0, 1, 256] {
        let room = Room { places, ..Room::of(possible_cpus()) };
        let evidence = watched(&Options::default(), room, || world.run(load).unwrap());
        if lacks_bpf(&evidence) {
            return;
        }
        let drops = of(&evidence, &world);
        let nobody = drops.iter().filter(|d| d.reason == "NO_SOCKET");
        let packets: Vec<_> = nobody.map(|d| (d.location.as_str(), d.packets)).collect();
        // The most first.
        let expected = [("__udp4_lib_rcv", 500), ("__udp6_lib_rcv", 300), ("tcp_v4_rcv", 200)];
        assert_eq!(packets, expected, "{places} places");
    }
}

/// Every packet is as likely to be kept as any other. The positions of those kept, as a share of the window, have the mean and
/// the variance of the uniform distribution: 1/2, and 1/12.
#[test]
fn root_samples_are_from_everywhere_in_the_window() {
    if test_needs_root() {
        return;
    }
    const PACKETS: u16 = 1500;
    const WINDOWS: usize = 12;
    let world = world();
    let mut positions = Vec::new();
    for _ in 0..WINDOWS {
        let evidence = watched(&Options::default(), Room::of(possible_cpus()), || {
            world
                .run(|| {
                    // One core has all of them.
                    pin_current_thread(&allowed_cpus().unwrap()[..1]).unwrap();
                    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    for number in 0..PACKETS {
                        socket.send_to(&number.to_be_bytes(), (Ipv4Addr::LOCALHOST, 4711)).unwrap();
                    }
                })
                .unwrap();
        });
        if lacks_bpf(&evidence) {
            return;
        }
        let drops = of(&evidence, &world);
        assert_eq!(drops.iter().map(|d| d.packets).collect::<Vec<_>>(), [u64::from(PACKETS)]);
        assert_eq!(drops[0].samples.len(), Room::of(possible_cpus()).samples_per_core as usize);
        for sample in &drops[0].samples {
            // Behind the headers of IP and UDP.
            let number = u16::from_be_bytes([sample.header[28], sample.header[29]]);
            positions.push((f64::from(number) + 0.5) / f64::from(PACKETS));
        }
        // No packet is kept twice.
        let distinct: BTreeSet<_> = drops[0].samples.iter().map(|s| &s.header).collect();
        assert_eq!(distinct.len(), drops[0].samples.len());
    }
    let n = positions.len() as f64;
    let mean = positions.iter().sum::<f64>() / n;
    let square = positions.iter().map(|p| (p - 0.5).powi(2)).sum::<f64>() / n;
    // Six standard deviations: sqrt(1/12/n), and of the squares sqrt((1/80 - 1/144)/n).
    assert!((mean - 0.5).abs() < 6.0 * (1.0 / 12.0 / n).sqrt(), "mean {mean} of {n}");
    assert!((square - 1.0 / 12.0).abs() < 6.0 * (1.0 / 180.0 / n).sqrt(), "variance {square} of {n}");
}

fn flows<'a>(evidence: &'a Evidence, namespace: &NetNs, kind: FlowEventKind) -> Vec<&'a FlowEvent> {
    let id = namespace.inode().unwrap();
    evidence.flows.iter().filter(|f| f.namespace == id && f.kind == kind).collect()
}

#[test]
fn root_resets_and_retransmissions_have_their_connection() {
    if test_needs_root() {
        return;
    }
    let world = world();
    let closed: SocketAddr = (Ipv4Addr::LOCALHOST, 4713).into();
    let silent: SocketAddr = "198.18.9.9:4714".parse().unwrap();
    let evidence = watched(&Options::default(), Room::of(possible_cpus()), || {
        world
            .run(|| {
                for to in [closed, (Ipv6Addr::LOCALHOST, 4713).into()] {
                    let refused = TcpStream::connect(to).unwrap_err();
                    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
                }
                // It comes back with another host's address and is thrown away: no answer comes, and TCP sends again after a second.
                let net = "198.18.9.0:0".parse::<SocketAddr>().unwrap().ip();
                let mut link = Rtnetlink::open().unwrap();
                link.add_address("lo", "198.18.8.1".parse().unwrap(), 32).unwrap();
                link.add_route(Route {
                    destination: Some((net, 24)),
                    via: None,
                    interface: "lo",
                    onlink: false,
                })
                .unwrap();
                let before = Instant::now();
                assert!(TcpStream::connect_timeout(&silent, Duration::from_millis(1500)).is_err());
                assert!(before.elapsed() >= Duration::from_millis(1400));
            })
            .unwrap();
    });
    if lacks_bpf(&evidence) {
        return;
    }
    assert_eq!(evidence.evidence_sources[&EvidenceSource::Flows], Sight::Seen);
    let sent = flows(&evidence, &world, FlowEventKind::ResetSent);
    let received = flows(&evidence, &world, FlowEventKind::ResetReceived);
    assert_eq!((sent.len(), received.len()), (2, 2), "{:#?}", evidence.flows);
    for to in [closed.ip(), Ipv6Addr::LOCALHOST.into()] {
        let sent = sent.iter().find(|e| e.tuple.is_some_and(|t| t.destination == to)).unwrap();
        let received = received.iter().find(|e| e.tuple.is_some_and(|t| t.destination == to)).unwrap();
        let (asked, answer) = (sent.tuple.unwrap(), received.tuple.unwrap());
        // The SYN as it came, and the reset on its way back, which is the other way round.
        assert_eq!(asked.destination_port, 4713);
        assert_eq!((asked.source_port, 4713), (answer.destination_port, answer.source_port));
        // include/net/tcp_states.h: no socket, and TCP_SYN_SENT.
        assert_eq!((sent.times, sent.state, received.times, received.state), (1, 0, 1, 2));
    }
    let again = flows(&evidence, &world, FlowEventKind::Retransmit);
    assert_eq!(again.len(), 1, "{again:?}");
    let tuple = again[0].tuple.unwrap();
    assert_eq!((tuple.destination, tuple.destination_port), (silent.ip(), 4714));
    // A SYN has no payload.
    assert_eq!((again[0].state, again[0].times, again[0].largest_bytes), (2, 1, 0));
}

#[test]
fn sources_that_are_hidden_are_not_looked_at() {
    let options = Options {
        hidden: BTreeSet::from([EvidenceSource::Drops, EvidenceSource::Flows]),
        ..Options::default()
    };
    let evidence = watched(&options, Room::of(2), || {});
    for source in [EvidenceSource::Drops, EvidenceSource::Flows] {
        assert_eq!(evidence.evidence_sources[&source], hidden());
    }
    assert_eq!((evidence.drops, evidence.flows), (Vec::new(), Vec::new()));
    assert_eq!(evidence.cost.bpf_runs, None);
}

/// A root without types; other files are read from the machine's own `/proc`.
fn without_types_at(format: Option<&str>) -> Files {
    let files = Files::new(&[]);
    files.link("proc", "/proc");
    if let Some(format) = format {
        files.put("sys/kernel/tracing/events/skb/kfree_skb/format", format);
    }
    files
}

#[test]
fn a_kernel_without_types_and_tracefs_is_blind_and_says_why() {
    let files = without_types_at(None);
    let options = Options { root: files.root(), ..Options::default() };
    let evidence = watched(&options, Room::of(2), || {});
    for (source, remedy) in
        [(EvidenceSource::Drops, "mount -t tracefs"), (EvidenceSource::Flows, "CONFIG_DEBUG_INFO_BTF")]
    {
        match &evidence.evidence_sources[&source] {
            Sight::Blind(why) => assert!(why.contains(remedy), "{why}"),
            other => panic!("{source:?}: {other:?}"),
        }
    }
    assert_eq!(evidence.drops, []);
}

#[test]
fn root_a_kernel_without_types_still_tells_reason_and_place() {
    if test_needs_root() {
        return;
    }
    let format = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .find_map(|dir| std::fs::read_to_string(format!("{dir}/events/skb/kfree_skb/format")).ok());
    let Some(format) = format else {
        println!("SKIP: needs tracefs (mount -t tracefs tracefs /sys/kernel/tracing)");
        return;
    };
    let files = without_types_at(Some(&format));
    let options = Options { root: files.root(), ..Options::default() };
    let world = world();
    let evidence = watched(&options, Room::of(possible_cpus()), || {
        world.run(|| to_nobody((Ipv4Addr::LOCALHOST, 4711).into(), 700, 1)).unwrap();
    });
    if lacks_bpf(&evidence) {
        return;
    }
    assert!(
        matches!(&evidence.evidence_sources[&EvidenceSource::Drops], Sight::Partly(_)),
        "{:?}",
        evidence.evidence_sources
    );
    let ours =
        |d: &&DropGroup| d.reason == "NO_SOCKET" && d.location == "__udp4_lib_rcv" && d.ethertype == 0x0800;
    let packets: u64 = evidence.drops.iter().filter(ours).map(|d| d.packets).sum();
    assert!(packets >= 700, "{:#?}", evidence.drops);
    assert!(evidence.drops.iter().all(|d| d.namespace == 0 && d.samples.is_empty()));
}
