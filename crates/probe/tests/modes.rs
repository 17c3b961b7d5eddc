//! Every workload over the one port, over IPv4 and IPv6, one after the other and at the same time.

mod ends;

use ends::{Running, span, workload};
use serde_json::json;
use weir_load::{Direction, Stop};
use weir_probe::Limits;
use weir_probe::client::Measured;

fn measure(server: &Running, value: serde_json::Value) -> Measured {
    server.visit().measure(&workload(value), span(500), &Stop::default(), &mut |_| {}).unwrap()
}

/// Both ends must agree on this, whatever was measured.
fn agrees(m: &Measured) {
    for near in &m.near_flows {
        let Some(far) = m.far_flows.iter().find(|f| (f.way, f.number) == (near.way, near.number)) else {
            continue;
        };
        assert_ne!(near.sends, far.sends, "one end sends");
        let (sent, received) = if near.sends { (near, far) } else { (far, near) };
        assert!(received.bytes <= sent.bytes, "nothing comes that was not sent: {sent:?} {received:?}");
    }
}

#[test]
fn bulk_traffic_in_every_direction() {
    for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let mut server = Running::on(address, Limits::default(), None);
        if address == "[::]:0" {
            // Reached over IPv4, too.
            server.address = format!("127.0.0.1:{}", server.address.port()).parse().unwrap();
        }
        for direction in ["egress", "ingress", "both"] {
            let m = measure(
                &server,
                json!({"kind": "tcp-stream", "streams": 2, "direction": direction, "congestion": ""}),
            );
            assert!(m.trial.value("goodput_bps") > 1e6, "{address} {direction}: {:?}", m.trial);
            let ways = if direction == "both" { 2 } else { 1 };
            assert_eq!((m.near_flows.len(), m.far_flows.len()), (2 * ways, 2 * ways), "{direction}");
            agrees(&m);

            let m = measure(
                &server,
                json!({"kind": "udp-stream", "streams": 2, "direction": direction, "rate-pps": 2000.0, "payload-bytes": 200, "receive-buffer-bytes": 1_048_576}),
            );
            assert_eq!(m.trial.value("loss_ratio"), 0.0, "{address} {direction}: {:?}", m.trial);
            assert!(m.trial.value("sent") > 0.0);
            assert_eq!((m.near_flows.len(), m.far_flows.len()), (2 * ways, 2 * ways), "{direction}");
            agrees(&m);
        }
        drop(server);
    }
}

#[test]
fn round_trips_and_connections() {
    let server = Running::start(Limits::default());
    for kind in ["tcp-rr", "udp-rr"] {
        let m = measure(&server, json!({"kind": kind, "connections": 3}));
        assert!(m.trial.value("answered") > 0.0, "{kind}: {:?}", m.trial.values);
        // The warm-up's are answered, too, and not counted at either end.
        let (asked, served) = (m.near.value("attempted"), m.far.as_ref().unwrap().value("requests"));
        assert!((asked - served).abs() <= 3.0, "{kind}: {asked} asked, {served} served");
        assert_eq!(m.near_flows.iter().map(|f| f.ok).sum::<u64>() as f64, m.trial.value("answered"));
    }
    let m = measure(&server, json!({"kind": "tcp-crr", "connections": 4}));
    let served = m.far.as_ref().unwrap().value("served");
    assert!(m.trial.value("ok") > 0.0 && m.trial.value("failed_ratio") == 0.0, "{:?}", m.trial.values);
    assert!(served >= m.trial.value("ok"), "{served}");
    // The log has a line for each.
    assert!(server.note("done").workload.is_some());
}

#[test]
fn large_answers_over_udp_go_to_the_proven_address_only() {
    let server = Running::start(Limits::default());
    let m = measure(&server, json!({"kind": "udp-rr", "request-bytes": 64, "response-bytes": 8000}));
    assert!(m.trial.value("answered") > 0.0 && m.trial.value("loss_ratio") == 0.0, "{:?}", m.trial.values);
}

#[test]
fn several_measurements_over_one_visit_and_several_visits_at_once() {
    let server = Running::start(Limits::default());
    std::thread::scope(|scope| {
        for nth in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut visit = server.visit();
                for _ in 0..3 {
                    let kind = if nth % 2 == 0 { "tcp-rr" } else { "udp-rr" };
                    let work = workload(json!({"kind": kind}));
                    let m = visit.measure(&work, span(200), &Stop::default(), &mut |_| {}).unwrap();
                    assert!(m.trial.value("answered") > 0.0, "{:?}", m.trial);
                }
            });
        }
    });
}

#[test]
fn what_happens_is_seen_while_it_happens() {
    let server = Running::start(Limits::default());
    let (mut times, mut far, mut bytes) = (0, 0, Vec::new());
    let work = workload(json!({"kind": "tcp-rr"}));
    server
        .visit()
        .measure(&work, span(500), &Stop::default(), &mut |snapshot| times += snapshot.times.len())
        .map(|m| assert_eq!(times as f64, m.trial.value("answered"), "each round trip once"))
        .unwrap();
    let work = workload(json!({"kind": "tcp-stream", "congestion": ""}));
    server
        .visit()
        .measure(&work, span(1500), &Stop::default(), &mut |snapshot| {
            far += usize::from(!snapshot.far.is_empty());
            bytes.extend(snapshot.near.first().map(|f| f.bytes));
            assert!(snapshot.near.iter().all(|f| f.way == Direction::Egress));
        })
        .unwrap();
    assert!(far > 0, "the far end tells every second");
    assert!(bytes.is_sorted() && bytes.last() > bytes.first(), "{bytes:?}");
}
