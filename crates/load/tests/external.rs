#![allow(missing_docs, reason = "a test program")]
//! iperf3 as a workload. Skipped where it is not installed.

mod ends;

use ends::{Site, assert_stops, parts, setting, trial, workload};
use serde_json::json;
use weir_testkit::{holds, measured};

fn missing() -> bool {
    let missing = weir_sys::process::which("iperf3").is_none();
    if missing {
        println!("SKIP: iperf3 is not installed (apt-get install iperf3)");
    }
    missing
}

#[test]
fn iperf3_tcp_in_every_direction() {
    if missing() {
        return;
    }
    for direction in ["egress", "ingress", "both"] {
        let w = workload(json!({"kind": "external", "direction": direction, "streams": 2}));
        let t = trial(&w, &setting(0, 1000), &Site::loopback());
        assert!(t.faults.is_empty(), "{:?}", t.faults);
        assert!(t.value("goodput_bps") > 1e6 && t.value("tester_cpu_s_per_gbit") > 0.0, "{:?}", t.values);
    }
}

/// iperf3 paces its datagrams by a timer, and catches up after a pause.
#[test]
fn measured_iperf3_udp_at_a_rate() {
    if !missing() {
        measured(1, 1, |_| holds(udp_at_a_rate));
    }
}

fn udp_at_a_rate() {
    for (direction, site) in [("egress", Site::loopback()), ("ingress", Site::loopback_v6())] {
        let w = workload(json!({
            "kind": "external", "protocol": "udp", "direction": direction, "streams": 2,
            "rate-bps": 2e6, "payload-bytes": 100,
        }));
        let t = trial(&w, &setting(500, 1000), &site);
        assert!((t.value("goodput_bps") / 2e6 - 1.0).abs() < 0.05, "{direction}: {:?}", t.values);
        assert!((t.value("delivered_pps") / 2500.0 - 1.0).abs() < 0.05);
        assert!(t.value("loss_ratio") < 0.02, "{:?}", t.values);
    }
}

#[test]
fn what_it_says_is_passed_on() {
    if missing() {
        return;
    }
    let w = workload(json!({"kind": "external", "args": ["--no-such-flag"]}));
    let error = parts(&w, &setting(0, 1000), &Site::loopback()).unwrap_err().to_string();
    assert!(error.starts_with("iperf3: ") && error.contains("no-such-flag"), "{error}");
}

#[test]
fn a_refused_connection_is_a_result_of_nothing() {
    if missing() {
        return;
    }
    for protocol in ["tcp", "udp"] {
        let w = workload(json!({
            "kind": "external", "protocol": protocol, "streams": 2, "rate-bps": 8e5, "payload-bytes": 1000,
        }));
        let near = w.engine().drive(&setting(0, 1000), "127.0.0.1:1".parse().unwrap()).unwrap();
        let t = w.engine().combine(&[near], &[weir_load::Part::default()]);
        assert!(t.faults.iter().all(|f| !f.void) && t.faults[0].detail.contains("refused"), "{:?}", t.faults);
        assert_eq!((t.value("failed_ratio"), t.value("streams")), (1.0, 2.0), "{:?}", t.values);
        assert_eq!(t.values.get("goodput_bps"), Some(&0.0));
        if protocol == "udp" {
            assert_eq!((t.value("sent"), t.value("loss_ratio")), (100.0, 1.0), "{:?}", t.values);
        }
    }
}

#[test]
fn http_clients_that_are_refused_are_a_result_of_nothing() {
    for program in ["ab", "wrk"] {
        if weir_sys::process::which(program).is_none() {
            println!("SKIP: {program} is not installed");
            continue;
        }
        let w = workload(json!({"kind": "external", "program": program}));
        let near = w.engine().drive(&setting(0, 1000), "127.0.0.1:1".parse().unwrap()).unwrap();
        let t = w.engine().combine(&[near], &[weir_load::Part::default()]);
        assert!(t.faults.iter().all(|f| !f.void), "{program}: {:?}", t.faults);
        assert_eq!((t.value("failed_ratio"), t.value("ok")), (1.0, 0.0), "{program}: {:?}", t.values);
        assert_eq!(t.values.get("requests_per_second"), Some(&0.0), "{program}");
    }
}

#[test]
fn a_raised_stop_ends_it() {
    if missing() {
        return;
    }
    let w = workload(json!({"kind": "external"}));
    assert_stops(&w);
}
