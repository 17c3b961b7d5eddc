//! Datagrams of a client that has not proved its address: no address gets more than was sent in its name.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::ends::{PATIENCE, Running};
use super::raw::{frame_of, welcomed, works};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use serde_json::{Value, json};
use weir_probe::{Limits, frame};

#[test]
fn a_flow_that_proves_itself_often_takes_nobody_s_place() {
    let server = Running::start(Limits::default());
    let mut stream = welcomed(&server);
    let work = json!({"kind": "udp-rr", "connections": 2});
    let open = json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 20_000});
    stream.write_all(&frame_of(&open)).unwrap();
    let opened: Value = frame::read(&stream, 1 << 20).unwrap();
    let cookie = opened["cookie"].as_u64().unwrap().to_be_bytes();
    let request = |token: &[u8]| [&b"weirREQ1"[..], &cookie, token].concat();
    for _ in 0..2 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(&request(&[0; 16])).unwrap();
        let mut bytes = [0; 64];
        assert_eq!(socket.recv(&mut bytes).unwrap(), 32);
        let proof = request(&bytes[16..32]);
        for _ in 0..10 {
            socket.send(&proof).unwrap();
        }
        assert_eq!(socket.recv(&mut bytes).unwrap(), 32, "it is in");
        socket.send(&[&cookie[..], &[0; 8]].concat()).unwrap();
        assert_eq!(socket.recv(&mut bytes).unwrap(), 16, "and answered");
    }
    // A client that comes when both are in gets no challenge any more, and with it nothing to prove.
    assert_eq!(answered(server.address, &request(&[0; 16])).1, 0);
}

/// Datagrams to the socket that all share that the kernel has thrown away, from the last column of /proc/net/udp (proc_net(5)).
fn thrown_away(server: &Running) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let local = format!("0100007F:{:04X}", server.address.port());
    let of = |line: &str| {
        let fields: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (fields.get(1) == Some(&local) && fields.get(2).is_some_and(|f| f == "00000000:0000"))
            .then(|| fields.last().unwrap().parse().unwrap())
    };
    table.lines().find_map(of).unwrap()
}

#[test]
fn what_is_nobody_s_is_thrown_away_before_the_server_is_woken() {
    let server = Running::start(Limits::default());
    let request = |cookie: &[u8]| [&b"weirREQ1"[..], cookie, &[0; 16]].concat();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Over loopback a datagram is taken in, or not, when its sending returns.
    let grows = |datagram: &[u8]| {
        let before = thrown_away(&server);
        socket.send_to(datagram, server.address).unwrap();
        thrown_away(&server) - before
    };
    for garbage in [
        &b""[..],
        b"x",
        b"987",
        b"98765",
        b"weirMTU",
        &[0xaa; 1400],
        &request(&[7; 8]),
        &request(&[7; 8])[..31],
    ] {
        assert_eq!(grows(garbage), 1, "{garbage:?}");
    }
    for (greeting, probe) in [(b"9876", &b"weirMTU1"[..]), (b"6789", b"weirMTU1 and more")] {
        assert_eq!(grows(greeting) + grows(probe), 0, "{greeting:?} {probe:?}");
    }
    let open = |work: Value| {
        let mut stream = welcomed(&server);
        let open = json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 20_000});
        stream.write_all(&frame_of(&open)).unwrap();
        let opened: Value = frame::read(&stream, 1 << 20).unwrap();
        (opened["cookie"].as_u64().unwrap().to_be_bytes(), stream)
    };
    let (first, stays) = open(json!({"kind": "udp-rr"}));
    let (second, goes) = open(json!({"kind": "udp-stream", "rate-bps": 1e6}));
    let (tcp, _stream) = open(json!({"kind": "tcp-rr"}));
    assert_eq!((grows(&request(&first)), grows(&request(&second))), (0, 0));
    assert_eq!((grows(&request(&tcp)), grows(&request(&[7; 8]))), (1, 1), "no flows of UDP");
    drop(goes);
    let deadline = Instant::now() + PATIENCE;
    while grows(&request(&second)) == 0 {
        assert!(Instant::now() < deadline, "the second trial's number is still known");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(grows(&request(&first)), 0, "the other goes on");
    drop(stays);
}

/// Send as often as it takes, and count what comes back, in bytes.
fn answered(to: SocketAddr, datagram: &[u8]) -> (usize, usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut sent, mut came) = (0, 0);
    for _ in 0..4 {
        sent += socket.send_to(datagram, to).unwrap();
        let mut buffer = [0; 65_536];
        while let Ok((n, _)) = socket.recv_from(&mut buffer) {
            came += n;
        }
    }
    (sent, came)
}

#[test]
fn an_unproven_address_gets_no_more_than_was_sent_in_its_name() {
    let server = Running::start(Limits::default());
    // A trial whose answers are five hundred times its requests.
    let mut stream = welcomed(&server);
    let work = json!({"kind": "udp-rr", "request-bytes": 16, "response-bytes": 8000});
    let open = json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 20_000});
    stream.write_all(&frame_of(&open)).unwrap();
    let opened: Value = frame::read(&stream, 1 << 20).unwrap();
    let cookie = opened["cookie"].as_u64().unwrap().to_be_bytes();
    let request = |cookie: &[u8], token: &[u8]| [&b"weirREQ1"[..], cookie, token].concat();
    // A sender without an open trial's cookie gets nothing at all.
    for stranger in [
        request(&[9; 8], &[0; 16]),
        request(&cookie, &[0; 16])[..31].to_vec(),
        vec![0; 1000],
        cookie.to_vec(),
        Vec::new(),
        b"6789".to_vec(),
    ] {
        assert_eq!(answered(server.address, &stranger).1, 0, "{stranger:?}");
    }
    // The workload's own greeting, without the request.
    assert_eq!(answered(server.address, &[&cookie[..], &[0; 8]].concat()).1, 0);
    // With it, a challenge of the same size, and with a wrong answer to that, nothing.
    let (sent, came) = answered(server.address, &request(&cookie, &[0; 16]));
    assert!(came > 0 && came <= sent, "{came} of {sent}");
    assert_eq!(answered(server.address, &request(&cookie, &[5; 16])).1, 0);
    // A challenge that another port of the same host was sent is of no use.
    let one = UdpSocket::bind("127.0.0.1:0").unwrap();
    one.set_read_timeout(Some(PATIENCE)).unwrap();
    one.send_to(&request(&cookie, &[0; 16]), server.address).unwrap();
    let mut challenge = [0; 64];
    assert_eq!(one.recv(&mut challenge).unwrap(), 32);
    assert_eq!(answered(server.address, &request(&cookie, &challenge[16..32])).1, 0);
    // Its own is.
    one.send_to(&request(&cookie, &challenge[16..32]), server.address).unwrap();
    assert_eq!(one.recv(&mut challenge).unwrap(), 32);
    one.send_to(&[&cookie[..], &[0; 8]].concat(), server.address).unwrap();
    let mut answer = [0; 9000];
    assert_eq!(one.recv(&mut answer).unwrap(), 8000);
}

#[test]
fn datagrams_of_any_kind_get_no_more_back_than_they_have() {
    let server = Running::start(Limits::default());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut runner = TestRunner::new(Cases::with_cases(200));
    let starts = prop_oneof![
        Just(&b""[..]),
        Just(&b"weirREQ1"[..]),
        Just(&b"weirMTU1"[..]),
        Just(&b"weirUDP1"[..]),
        Just(&b"9876"[..])
    ];
    let any = (starts, proptest::collection::vec(any::<u8>(), 0..200));
    runner
        .run(&any, |(start, rest)| {
            let datagram = [start, &rest].concat();
            socket.send_to(&datagram, server.address).unwrap();
            let mut buffer = [0; 65_536];
            let mut came = 0;
            while let Ok(n) = socket.recv(&mut buffer) {
                came += n;
            }
            prop_assert!(came <= datagram.len(), "{} for {}", came, datagram.len());
            Ok(())
        })
        .unwrap();
    works(&server);
}
