//! Clients that mean harm, or die: they cost the server little, and the others nothing.

#[path = "../ends/mod.rs"]
mod ends;
mod nat;
mod raw;
mod shares;
mod unproven;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ends::{PATIENCE, Running, span, workload};
use raw::{connect, frame_of, hello, welcomed, works};
use serde_json::{Value, json};
use weir_load::{Direction, Stop, Workload};
use weir_probe::client::{Error, Visit};
use weir_probe::{Key, Limits, frame};

/// Short, so that the test need not wait for long.
fn impatient() -> Limits {
    Limits { patience: Duration::from_millis(300), idle: Duration::from_millis(600), ..Limits::default() }
}

/// True if the server closes, in whatever way, without having said more than a refusal.
fn is_closed(mut stream: &TcpStream) -> bool {
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(n) => said.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return true,
            Err(_) => return false,
        }
        assert!(said.len() < 10_000, "{} bytes", said.len());
    }
}

#[test]
fn strangers_garbage_and_malformed_frames_close_that_connection_only() {
    let server = Running::start(impatient());
    let with_hello = |rest: &[u8]| [&hello()[..], rest].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a web browser", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("zeros", vec![0; 1000]),
        ("a trial that is not open", [&b"weirTCP1"[..], &[7; 100]].concat()),
        ("a latency trial that is not open", [&b"weir-lt1"[..], &[7; 100]].concat()),
        ("half an opening", b"weirC".to_vec()),
        ("half a cookie of iperf3", b"abcdefgh".to_vec()),
        ("an opening and no more", b"weirCTL1".to_vec()),
        ("half a length", b"weirCTL1\0\0".to_vec()),
        ("a huge length", b"weirCTL1\xff\xff\xff\xff{}".to_vec()),
        (
            "a length just above the bound",
            [&b"weirCTL1"[..], &(65_537u32).to_be_bytes(), &[b' '; 70_000]].concat(),
        ),
        ("half a frame", b"weirCTL1\0\0\x01\0{\"ask\":".to_vec()),
        ("no JSON", b"weirCTL1\0\0\0\x04\xff\xfe\xfd\xfc".to_vec()),
        ("deep JSON", [&b"weirCTL1"[..], &(60_000u32).to_be_bytes(), &[b'['; 60_000]].concat()),
        ("another message", [&b"weirCTL1"[..], &frame_of(&json!({"ask": "finish"}))].concat()),
        ("an unknown message", [&b"weirCTL1"[..], &frame_of(&json!({"ask": "launch"}))].concat()),
        (
            "another version",
            [
                &b"weirCTL1"[..],
                &frame_of(&json!({"ask": "hello", "version": 99, "nonce": "", "program": ""})),
            ]
            .concat(),
        ),
        (
            "no nonce",
            [
                &b"weirCTL1"[..],
                &frame_of(&json!({"ask": "hello", "version": 1, "nonce": "zz", "program": ""})),
            ]
            .concat(),
        ),
        ("hello and garbage", with_hello(&[0xff; 64])),
        ("hello twice", with_hello(&hello()[8..])),
        (
            "a program to start",
            with_hello(&frame_of(
                &json!({"ask": "open", "workload": {"kind": "external", "program": "sh"}, "warmup_ms": 0, "duration_ms": 1}),
            )),
        ),
    ];
    for (what, bytes) in cases {
        let mut stream = connect(server.address);
        // The server may have closed before all of it was written.
        let _ = stream.write_all(&bytes);
        if what != "a program to start" {
            assert!(is_closed(&stream), "{what}");
        }
        works(&server);
    }
    // Nothing that a client calls itself reaches the log as it is; the log's reader cleans it.
    assert!(server.note("a frame of").peer.ip().is_loopback());
}

#[test]
fn what_cannot_be_asked_for_is_refused_and_the_conversation_goes_on() {
    let server = Running::start(Limits { streams: 4, ..Limits::default() });
    let mut stream = welcomed(&server);
    for work in [
        json!({"kind": "http"}),
        json!({"kind": "tcp-stream", "streams": 5, "congestion": ""}),
        json!({"kind": "tcp-rr", "window": 1}),
    ] {
        let open = json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 100});
        stream.write_all(&frame_of(&open)).unwrap();
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], "refused", "{work}: {said}");
    }
    let open =
        json!({"ask": "open", "workload": {"kind": "tcp-rr"}, "warmup_ms": 0, "duration_ms": u64::MAX});
    stream.write_all(&frame_of(&open)).unwrap();
    let said: Value = frame::read(&stream, 1 << 20).unwrap();
    assert!(said["reason"].as_str().unwrap().contains("allows up to"), "{said}");
    let open = json!({"ask": "open", "workload": {"kind": "tcp-rr"}, "warmup_ms": 0, "duration_ms": 100});
    stream.write_all(&frame_of(&open)).unwrap();
    let said: Value = frame::read(&stream, 1 << 20).unwrap();
    assert_eq!(said["tell"], "opened", "{said}");
    // And then it dies.
    drop(stream);
    server.note("closed the connection");
    works(&server);
}

#[test]
fn a_reason_reaches_also_who_had_more_to_say() {
    let server = Running::start(Limits::default());
    // Unread bytes when the server closes would reset the connection, and the reason would be lost with it.
    for rest in [vec![b' '; 60_000], frame_of(&json!({"ask": "finish"}))] {
        let mut stream = connect(server.address);
        stream.write_all(&[&hello()[..], &frame_of(&json!({"ask": "finish"})), &rest].concat()).unwrap();
        for tell in ["challenge", "welcome", "refused"] {
            let said: Value = frame::read(&stream, 1 << 20).unwrap();
            assert_eq!(said["tell"], tell, "{said}");
        }
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "closed in order");
    }
}

/// A client's conversation in which a trial is open, and that trial's cookie.
fn opened(server: &Running) -> (TcpStream, u64) {
    let mut stream = welcomed(server);
    let open = json!({"ask": "open", "workload": {"kind": "tcp-rr"}, "warmup_ms": 0, "duration_ms": 5000});
    stream.write_all(&frame_of(&open)).unwrap();
    let opened: Value = frame::read(&stream, 1 << 20).unwrap();
    (stream, opened["cookie"].as_u64().unwrap())
}

#[test]
fn a_measurement_that_breaks_off_is_logged_as_what_it_was_and_once() {
    let server = Running::start(Limits::default());
    let (stream, cookie) = opened(&server);
    let mut data = connect(server.address);
    data.write_all(&[&b"weir-lt1"[..], &cookie.to_be_bytes()].concat()).unwrap();
    data.read_exact(&mut [0; 16]).unwrap();
    for _ in 0..10 {
        data.write_all(&[1]).unwrap();
        data.read_exact(&mut [0]).unwrap();
    }
    drop((stream, data));
    let note = server.note("closed the connection");
    assert!(note.workload.as_deref().is_some_and(|w| w.contains("request/response")), "{note:?}");
    // Logged twice it would be by now.
    works(&server);
    let such = server.notes().iter().filter(|n| n.end == note.end).count();
    assert_eq!(such, 1, "{:?}", server.notes());
}

#[test]
fn the_slow_and_the_silent_run_out_of_time() {
    let server = Running::start(impatient());
    let silent = connect(server.address);
    let mut half = connect(server.address);
    half.write_all(b"weirTCP1").unwrap();
    let idle = welcomed(&server);
    // A byte now and then does not help.
    let mut slow = connect(server.address);
    slow.write_all(b"weirCTL1").unwrap();
    let begun = Instant::now();
    let frame = &hello()[8..];
    let mut cut = false;
    for byte in frame {
        std::thread::sleep(Duration::from_millis(20));
        if slow.write_all(&[*byte]).is_err() {
            cut = true;
            break;
        }
    }
    assert!(cut || is_closed(&slow));
    assert!(begun.elapsed() < Duration::from_millis(20) * frame.len() as u32 + PATIENCE);
    for (what, stream) in [("silent", &silent), ("half", &half), ("idle", &idle)] {
        assert!(is_closed(stream), "{what}");
    }
    works(&server);
}

#[test]
fn a_client_has_the_key_or_stays_outside() {
    let key = || Key::new(b"0123456789abcdef0123").unwrap();
    let server = Running::on("127.0.0.1:0", Limits::default(), Some(key()));
    let visit = |key: Option<&Key>| Visit::begin(server.address, key, &Stop::default());
    assert!(matches!(visit(None), Err(Error::KeyWanted(_))));
    let wrong = Key::new(b"0123456789abcdef0124").unwrap();
    let error = visit(Some(&wrong)).unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("key")), "{error}");
    let m = visit(Some(&key())).unwrap().measure(
        &workload(json!({"kind": "tcp-rr"})),
        span(100),
        &Stop::default(),
        &mut |_| {},
    );
    assert!(m.unwrap().trial.value("answered") > 0.0);
    server.note("the key is not");
    // A client that leaves the proof out, or asks first, gets nowhere.
    for next in [
        json!({"ask": "finish"}),
        json!({"ask": "open", "workload": {"kind": "tcp-rr"}, "warmup_ms": 0, "duration_ms": 1}),
    ] {
        let mut stream = connect(server.address);
        stream.write_all(&hello()).unwrap();
        let challenge: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(challenge["keyed"], true);
        stream.write_all(&frame_of(&next)).unwrap();
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], "refused", "{said}");
        assert!(is_closed(&stream));
    }
    // iperf3 has no key.
    let mut iperf3 = connect(server.address);
    iperf3.write_all(b"abcdefghijklmnopqrstuvwxyz234567abcd\0").unwrap();
    assert!(is_closed(&iperf3));
}

#[test]
fn a_server_without_the_key_is_not_believed() {
    let server = Running::start(Limits::default());
    let key = Key::new(b"0123456789abcdef0123").unwrap();
    let error = Visit::begin(server.address, Some(&key), &Stop::default()).unwrap_err();
    assert!(matches!(error, Error::KeyUnproved(_)), "{error}");
    // One that says that it wants a key, and then lets anyone in.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        let _: Value = frame::read(&stream, 1 << 20).unwrap();
        let challenge = json!({"tell": "challenge", "version": 1, "nonce": "11".repeat(32), "keyed": true});
        stream.write_all(&frame_of(&challenge)).unwrap();
        let _: Value = frame::read(&stream, 1 << 20).unwrap();
        let welcome = json!({"tell": "welcome", "proof": "00".repeat(32), "program": "weir"});
        stream.write_all(&frame_of(&welcome)).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let error = Visit::begin(address, Some(&key), &Stop::default()).unwrap_err();
    assert!(matches!(error, Error::KeyUnproved(_)), "{error}");
    impostor.join().unwrap();
}

#[test]
fn places_are_limited_and_come_back() {
    let server = Running::start(Limits { sessions_per_client: 2, ..Limits::default() });
    let (one, two) = (server.visit(), server.visit());
    let error = Visit::begin(server.address, None, &Stop::default()).unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("2 from one address")), "{error}");
    drop(one);
    let deadline = Instant::now() + PATIENCE;
    while Visit::begin(server.address, None, &Stop::default()).is_err() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(two);
}

#[test]
fn who_has_the_key_is_not_kept_out_by_those_who_have_not_shown_it() {
    let key = || Key::new(b"0123456789abcdef0123").unwrap();
    let limits = Limits { sessions: 2, patience: PATIENCE, ..Limits::default() };
    let server = Running::on("127.0.0.1:0", limits, Some(key()));
    let strangers: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(&hello()).unwrap();
            let challenge: Value = frame::read(&stream, 1 << 20).unwrap();
            assert_eq!(challenge["keyed"], true);
            stream
        })
        .collect();
    let visit = || Visit::begin(server.address, Some(&key()), &Stop::default());
    let _guests = [visit().unwrap(), visit().unwrap()];
    assert!(strangers.iter().all(is_closed));
    assert!(server.note("made room").workload.is_none());
    // Both places are of those who have it now.
    let error = visit().unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.contains("2 clients at a time")), "{error}");
}

#[test]
fn too_many_streams_of_one_trial_are_closed() {
    let server = Running::start(Limits::default());
    let (_stream, cookie) = opened(&server);
    let dial = || {
        let mut stream = connect(server.address);
        stream.write_all(&[&b"weir-lt1"[..], &cookie.to_be_bytes()].concat()).unwrap();
        stream
    };
    let mut first = dial();
    first.read_exact(&mut [0; 16]).unwrap();
    assert!(is_closed(&dial()), "one was asked for");
    first.write_all(&[1]).unwrap();
    first.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_bit_rate_that_is_not_left_is_refused() {
    let server = Running::start(Limits { total_rate_bps: Some(1e6), ..Limits::default() });
    let mut stream = welcomed(&server);
    let open = |bps: f64| {
        let work = json!({"kind": "udp-stream", "rate-bps": bps});
        frame_of(&json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 5000}))
    };
    stream.write_all(&open(8e5)).unwrap();
    let said: Value = frame::read(&stream, 1 << 20).unwrap();
    assert_eq!(said["tell"], "opened", "{said}");
    let mut other = welcomed(&server);
    for (bps, tell) in [(3e5, "refused"), (1e5, "opened")] {
        other.write_all(&open(bps)).unwrap();
        let said: Value = frame::read(&other, 1 << 20).unwrap();
        assert_eq!(said["tell"], tell, "{bps}: {said}");
    }
}

#[test]
fn tcp_takes_as_much_of_the_total_rate_as_it_names_and_else_what_is_left() {
    let server = Running::start(Limits { total_rate_bps: Some(8e7), ..Limits::default() });
    let mut others = Vec::new();
    for (bps, tell) in [(2e7, "opened"), (7e7, "refused"), (2e7, "opened")] {
        let mut stream = welcomed(&server);
        let work = json!({"kind": "tcp-stream", "congestion": "", "rate-bps": bps});
        let open = json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 20_000});
        stream.write_all(&frame_of(&open)).unwrap();
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], tell, "{bps}: {said}");
        others.push(stream);
    }
    // 40 Mbit/s are left, for the streams of each direction together, and both ends keep to them.
    for direction in ["egress", "ingress", "both"] {
        let work = json!({"kind": "tcp-stream", "congestion": "", "streams": 4, "direction": direction});
        let begun = Instant::now();
        let measured =
            server.visit().measure(&workload(work), span(1000), &Stop::default(), &mut |_| {}).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        let Workload::TcpStream(done) = &measured.workload else { unreachable!() };
        assert_eq!(done.rate_bps, Some(4e7));
        assert!(measured.notes.iter().any(|n| n.contains("40000000")), "{:?}", measured.notes);
        for flows in [&measured.near_flows, &measured.far_flows] {
            for way in [Direction::Egress, Direction::Ingress] {
                let bytes: u64 = flows.iter().filter(|f| f.way == way && !f.sends).map(|f| f.bytes).sum();
                // Each stream's first window goes before the pacing: 10 segments (RFC 6928), on loopback of 64 KiB.
                let ahead = 4.0 * 10.0 * 65_536.0 * 8.0;
                let bits = bytes as f64 * 8.0;
                assert!(bits <= 4e7 * seconds + ahead, "{direction} {way}: {bits} bits in {seconds} s");
            }
        }
        let bps = measured.trial.value("goodput_bps");
        assert!(bps > 0.0, "{direction}: {bps}");
    }
}

#[test]
fn a_server_that_dies_is_told_and_not_a_low_rate() {
    let mut server = Running::start(Limits::default());
    for kind in ["tcp-stream", "udp-stream", "tcp-rr"] {
        let mut visit = server.visit();
        let work = workload(match kind {
            "tcp-stream" => json!({"kind": kind, "congestion": ""}),
            "udp-stream" => json!({"kind": kind, "rate-pps": 100.0}),
            _ => json!({"kind": kind}),
        });
        let seen = AtomicBool::new(false);
        let begun = Instant::now();
        let error = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                visit.measure(&work, span(60_000), &Stop::default(), &mut |g| {
                    if g.near.iter().any(|f| f.bytes + f.ok > 0) {
                        seen.store(true, Ordering::Relaxed);
                    }
                })
            });
            while !seen.load(Ordering::Relaxed) {
                assert!(begun.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(5));
            }
            server.end();
            client.join().unwrap().unwrap_err()
        });
        assert!(matches!(error, Error::Gone(_) | Error::Refused(_)), "{kind}: {error}");
        assert!(begun.elapsed() < PATIENCE, "{kind}");
        server = Running::start(Limits::default());
    }
}

#[test]
fn a_stopped_measurement_has_what_was_seen_until_then() {
    let server = Running::start(Limits::default());
    let stop = Stop::default();
    let m = server
        .visit()
        .measure(&workload(json!({"kind": "tcp-rr"})), span(60_000), &stop, &mut |g| {
            if g.near.iter().any(|f| f.ok > 100) {
                stop.raise();
            }
        })
        .unwrap();
    assert!(m.trial.value("answered") > 0.0);
}

/// Everything that may be done to a server without a key, by several at once, until told to stop.
fn flood(address: SocketAddr, over: &AtomicBool) {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut held = Vec::new();
    while !over.load(Ordering::Relaxed) {
        for _ in 0..20 {
            let _ = udp.send_to(b"weirKNK1aaaaaaaabbbbbbbbbbbbbbbb", address);
        }
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(b"weirCTL1\0\0\xff\xff");
            held.push(stream);
        }
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(&[0xaa; 2000]);
            let _ = stream.shutdown(Shutdown::Both);
        }
        if held.len() > 50 {
            held.clear();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn measured_a_flood_leaves_another_client_s_counts_whole() {
    let server = Running::start(Limits {
        sessions_per_client: 64,
        patience: Duration::from_secs(1),
        ..Limits::default()
    });
    let mut visit = server.visit();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flood(server.address, &over));
        }
        let work = json!({"kind": "udp-stream", "rate-pps": 500.0, "payload-bytes": 100, "receive-buffer-bytes": 1_048_576});
        let udp = visit.measure(&workload(work), span(700), &Stop::default(), &mut |_| {});
        let rr =
            visit.measure(&workload(json!({"kind": "tcp-rr"})), span(700), &Stop::default(), &mut |_| {});
        over.store(true, Ordering::Relaxed);
        let (udp, rr) = (udp.unwrap().trial, rr.unwrap().trial);
        assert_eq!(udp.value("lost"), 0.0, "{udp:?}");
        assert!(udp.value("sent") > 0.0, "{udp:?}");
        assert!(rr.value("answered") > 0.0 && rr.value("unanswered") == 0.0, "{rr:?}");
        assert!(!rr.faults.iter().any(|f| f.void), "{:?}", rr.faults);
    });
}
