#![allow(missing_docs, reason = "a test program")]
//! tcp-stream against itself on loopback, and against truth in namespaces of its own.

mod ends;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ends::{Site, assert_stops, parts, setting, trial, workload};
use serde_json::json;
use weir_load::{Stop, Workload};

#[test]
fn moves_verified_data_in_every_direction() {
    for direction in ["egress", "ingress", "both"] {
        for site in [Site::loopback(), Site::loopback_v6()] {
            let w = workload(json!({
                "kind": "tcp-stream", "direction": direction, "streams": 3, "verify": true, "buffer-bytes": 50_001,
            }));
            let t = trial(&w, &setting(50, 300), &site);
            assert!(t.faults.is_empty(), "{direction}: {:?}", t.faults);
            assert_eq!(t.value("corrupt_bytes"), 0.0);
            assert!(t.value("goodput_bps") > 1e6, "{direction}: {:?}", t.values);
            if direction == "both" {
                let sum = t.value("egress_goodput_bps") + t.value("ingress_goodput_bps");
                assert!((sum / t.value("goodput_bps") - 1.0).abs() < 1e-12);
            }
            assert!(t.value("stream_min_bps") <= t.value("stream_max_bps"));
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
        let t = trial(&workload(options.clone()), &setting(50, 200), &Site::loopback());
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
    let other = weir_load::Setting { cookie: s.cookie ^ 1, ..s.clone() };
    let error = w.engine().drive(&other, target).unwrap_err();
    assert!(error.to_string().contains("cannot connect"), "{error}");
    let initiator = w.engine().drive(&s, target).unwrap();
    let began = Instant::now();
    let part = responder.finish().unwrap();
    // The silent stranger is not waited for (5 s).
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(part.value("egress_streams"), 1.0);
    assert!(w.engine().combine(&[initiator], &[part]).faults.is_empty());
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
    let deadline = Instant::now() + Duration::from_secs(3);
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
        // Without noise 50 ms at each end; a loop that does not look would take a minute.
        assert_stops(&w, Duration::from_secs(2));
    }
}

#[test]
fn a_sender_that_vanishes_is_a_fault_and_not_a_low_rate() {
    let w = workload(json!({"kind": "tcp-stream"}));
    let s = setting(0, 20_000);
    let responder = w.engine().open(&s, "127.0.0.1:0".parse().unwrap()).unwrap();
    let target = std::net::SocketAddr::from(([127, 0, 0, 1], responder.port()));
    let vanishing = weir_load::Setting { stop: Stop::default(), ..s };
    let stop = vanishing.stop.clone();
    let raised = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        stop.raise();
    });
    let initiator = w.engine().drive(&vanishing, target).unwrap();
    raised.join().unwrap();
    let t = w.engine().combine(&[initiator], &[responder.finish().unwrap()]);
    assert!(t.faults.iter().any(|f| f.void && f.host == "responder"), "{:?}", t.faults);
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
