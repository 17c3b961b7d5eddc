//! The share that one client takes, however many sessions it has: never all of it, and not for longer than it uses it.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_load::Stop;
use weir_probe::client::Visit;
use weir_probe::{Limits, frame};

use super::ends::{PATIENCE, Running, span, workload};
use super::raw::{connect, frame_of, hello, welcomed};

/// A server that clients of two addresses reach, and how each does; `None` where this machine has no IPv6.
fn for_two(limits: Limits) -> Option<(Running, [SocketAddr; 2])> {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("SKIP: no IPv6");
        return None;
    }
    let server = Running::on("[::]:0", limits, None);
    let port = server.address.port();
    let reached = ["127.0.0.1", "::1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    Some((server, reached))
}

/// A session of its own that asks for that; the conversation, and the server's answer.
fn ask(server: SocketAddr, work: &Value) -> (TcpStream, Value) {
    let mut stream = connect(server);
    let open = json!({"ask": "open", "workload": work, "warmup_ms": 0, "duration_ms": 600_000});
    stream.write_all(&[&hello()[..], &frame_of(&open)].concat()).unwrap();
    for word in ["challenge", "welcome"] {
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], word, "{said}");
    }
    let said = frame::read(&stream, 1 << 20).unwrap();
    (stream, said)
}

#[test]
fn many_sessions_of_one_client_have_no_more_than_one_client_and_leave_room_for_another() {
    let limits = || Limits { streams: 8, rate_bps: Some(1e7), ..Limits::default() };
    // 64 MiB of window, doubled by the kernel in both directions, are 256 MiB: all there is, and more than half of it.
    let memory = json!({"kind": "tcp-stream", "congestion": "", "window-bytes": 16 << 20});
    let all = json!({"kind": "tcp-stream", "congestion": "", "window-bytes": 64 << 20});
    let streams = json!({"kind": "tcp-rr", "connections": 5});
    let rate = json!({"kind": "tcp-stream", "congestion": "", "rate-bps": 6e6});
    let cases =
        [(&memory, &memory, "buffers"), (&streams, &streams, "8 to one address"), (&rate, &rate, "bit rate")];
    for (first, second, words) in cases {
        let Some((_server, [one, other])) = for_two(limits()) else { return };
        let (held, said) = ask(one, first);
        assert_eq!(said["tell"], "opened", "{first}: {said}");
        let (_, said) = ask(one, second);
        assert!(said["reason"].as_str().is_some_and(|why| why.contains(words)), "{second}: {said}");
        assert_eq!(ask(other, second).1["tell"], "opened", "{second}");
        drop(held);
        // It comes back with the conversation.
        let until = Instant::now() + PATIENCE;
        while ask(one, second).1["tell"] != "opened" {
            assert!(Instant::now() < until, "{second}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let server = Running::start(limits());
    let (_, said) = ask(server.address, &all);
    assert!(said["reason"].as_str().is_some_and(|why| why.contains("134217728")), "{said}");
}

#[test]
fn a_measurement_in_which_nothing_moves_gives_back_what_it_took() {
    let limits =
        Limits { total_rate_bps: Some(1e7), standstill: Duration::from_millis(1500), ..Limits::default() };
    let server = Running::start(limits);
    let work = json!({"kind": "tcp-stream", "congestion": ""});
    let (held, said) = ask(server.address, &work);
    assert_eq!(said["tell"], "opened", "{said}");
    let (_, said) = ask(server.address, &work);
    assert_eq!(said["tell"], "refused", "the first has all of the rate: {said}");
    // The server says so to it, and what it had is another's.
    let note = server.note("nothing has moved for 2 s");
    assert!(note.workload.is_some() && note.seconds < PATIENCE.as_secs_f64(), "{note:?}");
    let told = loop {
        let said: Value = frame::read(&held, 1 << 20).unwrap();
        if said["tell"] != "live" {
            break said;
        }
    };
    assert!(told["reason"].as_str().is_some_and(|why| why.contains("nothing has moved")), "{told}");
    assert_eq!(ask(server.address, &work).1["tell"], "opened");
}

#[test]
fn paced_what_moves_goes_on_however_slowly() {
    let server = Running::start(Limits { standstill: Duration::from_millis(1500), ..Limits::default() });
    let _other = welcomed(&server);
    // A datagram in 2 s, and one round trip a second.
    for work in [
        json!({"kind": "udp-stream", "rate-bps": 400.0, "payload-bytes": 100, "receive-buffer-bytes": 1 << 20}),
        json!({"kind": "tcp-rr", "rate-per-second": 1}),
        json!({"kind": "tcp-crr", "rate-per-second": 1}),
    ] {
        let mut visit = Visit::begin(server.address, None, &Stop::default()).unwrap();
        let measured = visit.measure(&workload(work.clone()), span(3500), &Stop::default(), &mut |_| {});
        assert!(measured.is_ok(), "{work}: {:?}", measured.err());
    }
}
