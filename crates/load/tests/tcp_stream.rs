#![allow(missing_docs, reason = "a test program")]
//! tcp-stream against itself on loopback, and against truth in namespaces of its own.

mod ends;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ends::{Site, assert_stops, parts, setting, trial, workload};
use serde_json::json;
use weir_load::{Part, Stop, Workload};
use weir_record::FaultCode;
use weir_testkit::{PATIENCE, measured};

#[test]
fn moves_verified_data_in_every_direction() {
    for direction in ["egress", "ingress", "both"] {
        for site in [Site::loopback(), Site::loopback_v6()] {
            let w = workload(json!({
                "kind": "tcp-stream", "direction": direction, "streams": 3, "verify": true, "buffer-bytes": 50_001,
            }));
            let t = trial(&w, &setting(50, 1000), &site);
            assert!(t.faults.is_empty(), "{direction}: {:?}", t.faults);
            assert_eq!(t.value("corrupt_bytes"), 0.0);
            assert!(t.value("goodput_bps") > 1e6, "{direction}: {:?}", t.values);
            if direction == "both" {
                let sum = t.value("egress_goodput_bps") + t.value("ingress_goodput_bps");
                assert!((sum / t.value("goodput_bps") - 1.0).abs() < 1e-12);
            }
            assert!(t.value("stream_min_bps") <= t.value("stream_max_bps"));
            assert_eq!(t.value("failed_ratio"), 0.0, "{direction}: {:?}", t.values);
            assert!(t.value("rtt_mean_ns") >= t.value("rtt_min_ns") && t.value("rtt_min_ns") > 0.0);
        }
    }
}

#[test]
fn the_series_adds_up_to_the_goodput() {
    let w = workload(json!({"kind": "tcp-stream", "streams": 2}));
    let t = trial(&w, &setting(50, 500), &Site::loopback());
    let series = t.series.iter().find(|s| s.name == "goodput_bps").unwrap();
    assert_eq!(series.points.len(), 5);
    let mean = series.points.iter().map(|p| p.1).sum::<f64>() / 5.0;
    assert!((mean / t.value("goodput_bps") - 1.0).abs() < 1e-9);
}

#[test]
fn every_way_to_send_works() {
    for options in [
        json!({"kind": "tcp-stream", "zero-copy": true, "verify": true}),
        json!({"kind": "tcp-stream", "window-bytes": 65536, "nodelay": true, "mss": 536, "congestion": "reno"}),
        json!({"kind": "tcp-stream", "congestion": "", "streams": 128}),
    ] {
        let t = trial(&workload(options.clone()), &setting(50, 600), &Site::loopback());
        assert!(t.faults.is_empty(), "{options}: {:?}", t.faults);
        assert!(t.value("goodput_bps") > 1e6, "{options}");
    }
}

#[test]
fn strangers_are_not_counted() {
    let w = workload(json!({"kind": "tcp-stream"}));
    let s = setting(100, 300);
    let responder = w.engine().open(&s, "127.0.0.1:0".parse().unwrap()).unwrap();
    let target = std::net::SocketAddr::from(([127, 0, 0, 1], responder.port()));
    let mut loud = TcpStream::connect(target).unwrap();
    loud.write_all(&[b'x'; 4096]).unwrap();
    let _silent = TcpStream::connect(target).unwrap();
    let other = weir_load::TrialSettings { cookie: s.cookie ^ 1, ..s.clone() };
    let error = w.engine().drive(&other, target).unwrap_err();
    assert!(error.to_string().contains("the responder of another trial answered"), "{error}");
    let initiator = w.engine().drive(&s, target).unwrap();
    let part = responder.finish().unwrap();
    assert_eq!(part.value("egress_receivers"), 1.0);
    let t = w.engine().combine(&[initiator], &[part]);
    assert_eq!((t.faults.len(), t.value("streams"), t.value("failed_streams")), (0, 1.0, 0.0), "{t:?}");
}

#[test]
fn measured_a_silent_stranger_is_not_waited_for() {
    measured(2, 3, |_| {
        let s = setting(100, 300);
        let responder = workload(json!({"kind": "tcp-stream"}))
            .engine()
            .open(&s, "127.0.0.1:0".parse().unwrap())
            .unwrap();
        let target = std::net::SocketAddr::from(([127, 0, 0, 1], responder.port()));
        let _silent = TcpStream::connect(target).unwrap();
        workload(json!({"kind": "tcp-stream"})).engine().drive(&s, target).unwrap();
        let began = Instant::now();
        responder.finish().unwrap();
        // The stranger has 5 s to speak.
        began.elapsed() < Duration::from_secs(2)
    });
}

/// Room that is kept for controls is no room for streams.
#[test]
fn no_more_streams_are_served_than_were_asked_for() {
    let w = workload(json!({"kind": "tcp-stream"}));
    let s = setting(0, 20_000);
    let responder = w.engine().open(&s, "127.0.0.1:0".parse().unwrap()).unwrap();
    // The greeting of stream 0, egress (`handshake`).
    let greeting = [&b"weirTCP1"[..], &s.cookie.to_be_bytes(), &[0, 0, 0, 0, 1, 0, 0, 0]].concat();
    let mut greeted: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut connection = TcpStream::connect(("127.0.0.1", responder.port())).unwrap();
            connection.write_all(&greeting).unwrap();
            connection.read_exact(&mut [0]).unwrap();
            connection
        })
        .collect();
    for connection in &greeted {
        connection.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    // Which of them is closed is chance.
    let mut closed = 0;
    let deadline = Instant::now() + PATIENCE;
    while closed == 0 {
        assert!(Instant::now() < deadline, "both are served");
        closed = greeted.iter_mut().filter_map(|c| c.read(&mut [0]).ok()).count();
    }
    assert_eq!(closed, 1);
    drop(greeted);
    responder.finish().unwrap();
}

#[test]
fn a_raised_stop_ends_every_loop() {
    for direction in ["egress", "ingress", "both"] {
        let w = workload(json!({"kind": "tcp-stream", "direction": direction, "streams": 4}));
        assert_stops(&w);
    }
}

#[test]
fn a_stopped_trial_is_void_and_not_a_low_rate() {
    let w = workload(json!({"kind": "tcp-stream"}));
    let s = setting(0, 20_000);
    let responder = w.engine().open(&s, "127.0.0.1:0".parse().unwrap()).unwrap();
    let target = std::net::SocketAddr::from(([127, 0, 0, 1], responder.port()));
    let stopped = weir_load::TrialSettings { stop: Stop::default(), ..s };
    let stop = stopped.stop.clone();
    let raised = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        stop.raise();
    });
    let initiator = w.engine().drive(&stopped, target).unwrap();
    raised.join().unwrap();
    let t = w.engine().combine(&[initiator], &[responder.finish().unwrap()]);
    assert!(t.faults.iter().any(|f| f.void && f.code == FaultCode::Interrupted), "{:?}", t.faults);
    assert_eq!((t.value("streams"), t.value("failed_streams")), (1.0, 1.0));
}

/// The responder is open when the initiator comes: a refusal is the path's.
#[test]
fn refused_streams_are_a_result_of_nothing() {
    for direction in ["egress", "ingress", "both"] {
        let w = workload(json!({"kind": "tcp-stream", "streams": 3, "direction": direction}));
        let s = setting(0, 200);
        let responder = w.engine().open(&s, "127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let near = w.engine().drive(&s, closed).unwrap();
        let t = w.engine().combine(&[near], &[responder.finish().unwrap()]);
        assert_eq!(t.faults, [], "{direction}");
        let streams = if direction == "both" { 6.0 } else { 3.0 };
        assert_eq!((t.value("streams"), t.value("failed_streams")), (streams, streams));
        for (name, value) in [("failed_ratio", 1.0), ("goodput_bps", 0.0), ("stream_min_bps", 0.0)] {
            assert_eq!(t.values.get(name), Some(&value), "{direction} {name}");
        }
    }
}

/// A far end that takes connections and closes them, as a proxy in front of nothing does.
#[test]
fn a_greeting_that_is_not_answered_is_a_result_and_a_wrong_answer_is_a_fault() {
    let w = workload(json!({"kind": "tcp-stream", "streams": 2}));
    let answered = |answer: &'static [u8]| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let far = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut connection, _) = listener.accept().unwrap();
                connection.read_exact(&mut [0; 24]).unwrap();
                connection.write_all(answer).unwrap();
            }
        });
        let result = w.engine().drive(&setting(0, 200), target);
        far.join().unwrap();
        result
    };
    let closed = w.engine().combine(&[answered(b"").unwrap()], &[Part::default()]);
    assert_eq!((closed.value("failed_ratio"), closed.faults.len()), (1.0, 0), "{closed:?}");
    let foreign = answered(b"HTTP/1.1 400 Bad Request").unwrap_err().to_string();
    assert!(foreign.contains("not weir's tcp-stream responder"), "{foreign}");
}

#[test]
fn refuses_what_cannot_be() {
    for (options, key) in [
        (json!({"kind": "tcp-stream", "streams": 0}), "streams"),
        (json!({"kind": "tcp-stream", "streams": 129}), "streams"),
        (json!({"kind": "tcp-stream", "buffer-bytes": 0}), "buffer-bytes"),
        (json!({"kind": "tcp-stream", "mss": 40}), "mss"),
        (json!({"kind": "tcp-stream", "window-bytes": 1}), "window-bytes"),
        (json!({"kind": "tcp-stream", "congestion": "a name with spaces"}), "congestion"),
    ] {
        let w: Workload = serde_json::from_value(options).unwrap();
        let message = w.engine().validate().unwrap_err();
        assert!(message.starts_with(key) && message.contains("valid is"), "{message}");
    }
    assert!(serde_json::from_value::<Workload>(json!({"kind": "tcp-stream", "stream": 1})).is_err());
    let unknown = workload(json!({"kind": "tcp-stream", "congestion": "nonesuch"}));
    let error = parts(&unknown, &setting(0, 100), &Site::loopback()).unwrap_err().to_string();
    assert!(error.contains("nonesuch") && error.contains("available"), "{error}");
}
