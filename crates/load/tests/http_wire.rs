#![allow(missing_docs, reason = "a test program")]
//! Connections that are not kept, as they are on the wire, whatever sockets they have: read by a raw socket beside them.

mod ends;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ends::path::Path;
use ends::setting;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with, sockopt};
use serde_json::json;
use server::Server;
use weir_load::Part;
use weir_netlink::Rtnetlink;
use weir_sys::NetNs;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const CONNECTIONS: u32 = 300;
/// Longest wait for the server's threads.
const PATIENCE: Duration = Duration::from_secs(10);

/// One segment as the raw socket gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    source: u16,
    destination: u16,
    sequence: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: usize,
}

impl Segment {
    /// Fields of an IPv4 packet (RFC 791, RFC 9293 section 3.1).
    fn read(packet: &[u8]) -> Segment {
        let tcp = &packet[usize::from(packet[0] & 15) * 4..];
        let header = usize::from(tcp[12] >> 4) * 4;
        let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Segment {
            source: word(0),
            destination: word(2),
            sequence: u32::from(word(4)) << 16 | u32::from(word(6)),
            flags: tcp[13],
            window: word(14),
            options: tcp[20..header].to_vec(),
            payload: tcp.len() - header,
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Kinds of the options with their values, but for the time in timestamps (RFC 7323 section 3.2).
    fn lasting_options(&self) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        let mut rest = &self.options[..];
        while let [kind, after @ ..] = rest {
            // End of the list and padding have no length.
            let length = if *kind <= 1 { 1 } else { usize::from(after[0]) };
            let (option, behind) = rest.split_at(length);
            all.push((*kind, option.get(2..).filter(|_| *kind != 8).unwrap_or_default().to_vec()));
            rest = behind;
        }
        all
    }
}

/// The client's port and its first sequence number: a port may come again once its connection is forgotten.
type Client = (u16, u32);
type Connections = BTreeMap<Client, Vec<Segment>>;

/// Every TCP segment that comes in where it was opened; on loopback, those of both ends.
struct Tap {
    socket: OwnedFd,
    /// By the client's port, the key of its last connection.
    last: BTreeMap<u16, Client>,
    connections: Connections,
}

impl Tap {
    fn open() -> Tap {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::TCP)).unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        Tap { socket, last: BTreeMap::new(), connections: BTreeMap::new() }
    }

    /// All connections so far to that port of the server, with their segments in order.
    fn read(&mut self, server: u16) -> &mut Connections {
        let mut buffer = vec![0; 70_000];
        while let Ok((n, _)) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
            let segment = Segment::read(&buffer[..n]);
            let port = match (segment.source == server, segment.destination == server) {
                (true, _) => segment.destination,
                (_, true) => segment.source,
                _ => continue,
            };
            if segment.flags == SYN {
                self.last.insert(port, (port, segment.sequence));
            }
            self.connections.entry(self.last[&port]).or_default().push(segment);
        }
        &mut self.connections
    }

    /// All connections, once this is true of each: the last segments may be on their way when the client returns.
    fn read_until(&mut self, server: u16, ended: impl Fn(&[Segment]) -> bool) -> &mut Connections {
        let end = Instant::now() + PATIENCE;
        while !self.read(server).values().all(|c| ended(c)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        &mut self.connections
    }
}

fn run(options: serde_json::Value, server: SocketAddr) -> Part {
    let mut whole = json!({
        "kind": "http", "server": "none", "keep-alive": false, "connections": 4, "requests": CONNECTIONS,
    });
    whole.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    let w = ends::workload(whole);
    let initiator = w.engine().drive(&setting(0, 20_000), server).unwrap();
    let part = w.engine().combine(&[initiator], &[]);
    assert_eq!(part.value("ok"), f64::from(CONNECTIONS), "{:?}", part.values);
    assert_eq!(part.value("connections_opened"), f64::from(CONNECTIONS));
    part
}

fn answer(body: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {body}\r\n\r\n{}", "w".repeat(body))
}

/// A FIN is sent again if the server's thread holds the socket for longer than the timer of retransmissions.
fn without_retransmitted_fins(segments: &[Segment]) -> Vec<Segment> {
    let mut kept: Vec<Segment> = Vec::new();
    for segment in segments {
        let again = |s: &Segment| s.has(FIN) && (s.source, s.sequence) == (segment.source, segment.sequence);
        if !(segment.has(FIN) && kept.iter().any(again)) {
            kept.push(segment.clone());
        }
    }
    kept
}

/// Connections whose first sequence number lies right behind what another one's client had sent: those of a used socket (net/ipv4/tcp.c,
/// `tcp_disconnect`: by the largest window seen and 2; a window of 16 bits, scaled by 7 to 10 bits).
fn of_used_sockets(connections: &Connections, server: u16) -> usize {
    let sent = |segments: &[Segment], flag| {
        segments.iter().find(|s| s.destination == server && s.has(flag)).map(|s| s.sequence)
    };
    let ends: BTreeSet<u32> = connections.values().filter_map(|c| sent(c, FIN)).collect();
    let behind = |first: u32| ends.range(first.saturating_sub(1 << 20)..first).next().is_some();
    connections.values().filter_map(|c| sent(c, SYN)).filter(|first| behind(*first)).count()
}

/// In a namespace of its own with nothing but loopback: what was on the wire, and the server's port.
fn captured(sysctl: &str, options: serde_json::Value, body: usize) -> (Connections, u16) {
    let namespace = NetNs::create().unwrap();
    Rtnetlink::open_in(&namespace).unwrap().set_up("lo").unwrap();
    namespace
        .run(|| {
            if !sysctl.is_empty() {
                std::fs::write(format!("/proc/sys/net/ipv4/{sysctl}"), "0").unwrap();
            }
            let server = Server::start(move |_, _| answer(body));
            let mut tap = Tap::open();
            run(options, server.address);
            (mem::take(tap.read(server.address.port())), server.address.port())
        })
        .unwrap()
}

#[test]
fn root_a_used_socket_s_connections_look_like_any_other_client_s() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let namespace = NetNs::create().unwrap();
    Rtnetlink::open_in(&namespace).unwrap().set_up("lo").unwrap();
    let (connections, usual, port) = namespace
        .run(|| {
            let server = Server::start(|_, _| answer(612));
            let port = server.address.port();
            let mut tap = Tap::open();
            // A client that knows nothing of used sockets.
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
            drop(stream);
            let acknowledged = |c: &[Segment]| c.last().is_some_and(|s| s.source == port && s.flags == ACK);
            let (client, usual) = tap.read_until(port, acknowledged).pop_first().unwrap();
            run(json!({}), server.address);
            let mut connections = mem::take(tap.read_until(port, acknowledged));
            // A late segment of the other client's.
            connections.remove(&client);
            (connections, usual, port)
        })
        .unwrap();
    assert_eq!(connections.len(), CONNECTIONS as usize);
    let syn = &usual[0];
    for segments in connections.values() {
        let segments = without_retransmitted_fins(segments);
        let (ours, theirs): (Vec<_>, Vec<_>) = segments.iter().partition(|s| s.destination == port);
        let count = |side: &[&Segment], flag| side.iter().filter(|s| s.has(flag)).count();
        assert!(!segments.iter().any(|s| s.has(RST)), "{segments:?}");
        for side in [&ours, &theirs] {
            assert_eq!((count(side, SYN), count(side, FIN)), (1, 1), "{segments:?}");
        }
        // SYN, SYN-ACK, ACK, request; the server's FIN before ours, and nothing behind the acknowledgement of that.
        assert_eq!(segments[0].flags, SYN, "{segments:?}");
        assert_eq!(segments[1].flags, SYN | ACK, "{segments:?}");
        assert_eq!((segments[2].flags, segments[2].payload), (ACK, 0), "{segments:?}");
        assert!(segments[3].destination == port && segments[3].payload > 0, "{segments:?}");
        assert_eq!(ours.iter().filter(|s| s.payload > 0).count(), 1, "{segments:?}");
        let fin =
            |server: bool| segments.iter().position(|s| s.has(FIN) && (s.source == port) == server).unwrap();
        assert!(fin(true) < fin(false), "{segments:?}");
        // Bare acknowledgements: one of the server's, and ours of its answer if the cores change places between the two.
        let after = &segments[fin(false) + 1..];
        assert!(after.iter().all(|s| s.flags == ACK && s.payload == 0), "{segments:?}");
        assert!(after.iter().any(|s| s.source == port), "{segments:?}");
        // MSS, scale of the window, SACK, timestamps, and the window.
        assert_eq!(segments[0].lasting_options(), syn.lasting_options());
        assert_eq!(segments[0].window, syn.window, "{segments:?}");
    }
    // One connection in four places has a new socket, and the others an old one, but for those whose server's thread was still
    // busy closing.
    let used = of_used_sockets(&connections, port);
    println!("{used} of {CONNECTIONS} connections had a used socket");
    assert!(used >= CONNECTIONS as usize / 2, "{used}");
}

#[test]
fn root_without_timestamps_or_with_large_bodies_every_connection_has_a_socket_of_its_own() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let cases = [
        ("tcp_timestamps", json!({}), 5),
        ("", json!({}), 100_000),
        // A RST forgets the connection too, at once.
        ("", json!({"close": "reset"}), 5),
    ];
    for (sysctl, options, body) in cases {
        let (connections, port) = captured(sysctl, options.clone(), body);
        assert_eq!(connections.len(), CONNECTIONS as usize, "{sysctl} {options} {body}");
        // By chance a number lies in one of 300 ranges of 2^20 out of 2^32 in 7 % of cases: 22 connections of 300.
        let used = of_used_sockets(&connections, port);
        println!("{used} by chance: {sysctl} {options} {body}");
        assert!(used < CONNECTIONS as usize / 4, "{used}: {sysctl} {options} {body}");
    }
}

#[test]
fn root_a_connection_is_not_forgotten_before_its_end_was_acknowledged() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    // The answers wait in the shaper: 8 kB/s for each of four connections, so that the acknowledgement of our FIN is
    // never there when shutdown(2) returns. An end that forgets the connection then answers it with a RST.
    let path = Path::new();
    path.run(&path.gateway, "tc qdisc add dev gi root tbf rate 2mbit burst 1600 limit 1000000", "");
    let (mut tap, server) =
        path.responder.run(|| (Tap::open(), Server::start_at("0.0.0.0:9100", |_, _| answer(500)))).unwrap();
    let target = SocketAddr::new(path.site().address, 9100);
    path.initiator.run(|| run(json!({}), target)).unwrap();
    let connections = tap.read_until(9100, |c| c.iter().any(|s| s.has(FIN)));
    path.responder.run(|| drop(server)).unwrap();
    assert_eq!(connections.len(), CONNECTIONS as usize);
    let resets = connections.values().flatten().filter(|s| s.has(RST)).count();
    let ends = connections.values().filter(|c| c.iter().any(|s| s.has(FIN))).count();
    assert_eq!((resets, ends), (0, CONNECTIONS as usize));
}
