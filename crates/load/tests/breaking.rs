#![allow(missing_docs, reason = "a test program")]
//! A hop that breaks streams: what it refuses, resets, drops or stalls is counted, and is no fault of the tester's.

mod ends;

use ends::path::Path;
use ends::{setting, trial, workload};
use serde_json::{Value, json};
use weir_load::Part;
use weir_record::FaultCode;

/// Every second connection that begins is doomed, with all that belongs to it later. The rule says to what. A port counts as the
/// initiator's only: the responder's may have the same number.
fn every_second(rule: &str) -> String {
    format!(
        "table ip t {{\nset doomed {{ type inet_service; flags dynamic; }}\nset spared {{ type inet_service; flags dynamic; }}\n\
         chain c {{\ntype filter hook forward priority 0\n\
         ip saddr != 198.18.7.2 th dport @doomed {rule}\nip saddr != 198.18.7.2 accept\n\
         th sport @doomed {rule}\nth sport @spared accept\n\
         numgen inc mod 2 == 0 add @doomed {{ th sport }} {rule}\nadd @spared {{ th sport }}\n}}\n}}\n"
    )
}

fn through(rules: &str, options: Value) -> Part {
    warmed_up(100, rules, options)
}

fn warmed_up(warmup_ms: u64, rules: &str, options: Value) -> Part {
    let path = Path::new();
    path.run(&path.gateway, "nft -f -", rules);
    path.run(&path.gateway, "sysctl -qw net.netfilter.nf_conntrack_acct=1", "");
    let t = trial(&workload(options), &setting(warmup_ms, 400), &path.site());
    // A busy machine may send late; nothing else is the tester's.
    assert!(t.faults.iter().all(|f| f.code == FaultCode::LateSends), "{rules}: {:?}", t.faults);
    t
}

fn tcp(rules: &str, streams: u32, direction: &str) -> Part {
    through(rules, json!({"kind": "tcp-stream", "streams": streams, "direction": direction}))
}

fn counts(t: &Part) -> (f64, f64) {
    (t.value("failed_streams"), t.value("streams"))
}

#[test]
fn root_every_second_stream_refused_or_unanswered_counts_as_failed() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for rule in ["reject with tcp reset", "reject", "drop"] {
        for direction in ["egress", "ingress"] {
            let t = tcp(&every_second(&format!("meta l4proto tcp {rule}")), 4, direction);
            let about = format!("{rule} {direction}: {:?}", t.values);
            assert_eq!(counts(&t), (2.0, 4.0), "{about}");
            assert_eq!((t.value("failed_ratio"), t.value("stream_min_bps")), (0.5, 0.0), "{about}");
            assert!(t.value("goodput_bps") > 0.0 && t.path.is_empty(), "{about}");
        }
    }
}

#[test]
fn root_streams_reset_or_stalled_midway_count_as_failed_with_what_they_delivered() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for rule in ["reject with tcp reset", "drop"] {
        for direction in ["egress", "ingress"] {
            let midway = every_second(&format!("ct packets > 40 meta l4proto tcp {rule}"));
            // Doomed from their first packet on, and let through until then.
            let t = tcp(&midway, 4, direction);
            let about = format!("{rule} {direction}: {:?}", t.values);
            assert_eq!(counts(&t), (2.0, 4.0), "{about}");
            assert!(t.value("goodput_bps") > 0.0 && t.path.is_empty(), "{about}");
            assert!(t.value("stream_min_bps") < t.value("stream_max_bps"), "{about}");
        }
    }
}

#[test]
fn root_a_path_that_lets_no_stream_begin_is_a_result_of_nothing() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for rule in ["reject with tcp reset", "reject", "reject with icmp type host-unreachable", "drop"] {
        let rules = format!(
            "table ip t {{\nchain c {{\ntype filter hook forward priority 0\nmeta l4proto tcp {rule}\n}}\n}}\n"
        );
        let t = tcp(&rules, 3, "both");
        assert_eq!(counts(&t), (6.0, 6.0), "{rule}: {:?}", t.values);
        for (name, value) in [("failed_ratio", 1.0), ("goodput_bps", 0.0), ("stream_max_bps", 0.0)] {
            assert_eq!(t.values.get(name), Some(&value), "{rule} {name}");
        }
    }
}

/// A thousand datagrams a second in each of that many flows.
fn flows(streams: u32, direction: &str) -> Value {
    json!({
        "kind": "udp-stream", "streams": streams, "direction": direction, "rate-pps": 1000 * streams,
        "payload-bytes": 100,
    })
}

fn udp(rules: &str, streams: u32, direction: &str) -> Part {
    through(rules, flows(streams, direction))
}

#[test]
fn root_every_second_flow_that_cannot_begin_loses_all_that_was_due() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for rule in ["reject", "drop"] {
        for direction in ["egress", "ingress"] {
            // A flow that a busy machine lets begin late has lost what was due in the window by then, but not what was due in
            // the warm-up: this one is longer than any such delay.
            let t = warmed_up(1000, &every_second(&format!("meta l4proto udp {rule}")), flows(4, direction));
            let about = format!("{rule} {direction}: {:?}", t.values);
            assert_eq!(counts(&t), (2.0, 4.0), "{about}");
            // 1000 a second in each of two flows for 0.4 s; of the others nothing is lost.
            assert_eq!(t.value("lost"), 800.0, "{about}");
            assert!((t.value("loss_ratio") - 0.5).abs() < 0.1, "{about}");
        }
    }
}

#[test]
fn root_a_flow_whose_go_is_lost_begins_after_the_others() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    // The second packet of a flow is its go. Every second one is lost, while the other flows already carry data.
    let rules = "table ip t {\nchain c {\ntype filter hook forward priority 0\n\
                 ip saddr 198.18.7.2 ct original packets 2 numgen inc mod 2 == 0 counter drop\n}\n}\n";
    let t = udp(rules, 4, "ingress");
    assert_eq!(counts(&t), (0.0, 4.0), "{:?}", t.values);
    assert!(t.value("delivered_pps") > 0.0, "{:?}", t.values);
}

#[test]
fn root_a_flow_that_dies_midway_loses_what_its_sender_counts() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    for (direction, counted) in [("egress", "original"), ("ingress", "reply")] {
        // Warm-up and window are 500 datagrams: a part of the warm-up passes, or a quarter of the window. A sender that a busy
        // machine held back sends what passes in the window.
        for (passes, least, most) in [(20, 0.0, 20.0), (200, 1.0, 200.0)] {
            let rules = format!(
                "table ip t {{\nchain c {{\ntype filter hook forward priority 0\n\
                 ct {counted} packets > {passes} meta l4proto udp drop\n}}\n}}\n"
            );
            let t = udp(&rules, 1, direction);
            let about = format!("{direction} {passes}: {:?}", t.values);
            let delivered = t.value("delivered_pps") * 0.4;
            assert!((least..=most).contains(&delivered), "{about}");
            assert!(t.value("sent") >= 399.0, "{about}");
            assert!((t.value("sent") - t.value("lost") - delivered).abs() < 1e-6, "{about}");
            assert_eq!(counts(&t), (f64::from(u8::from(delivered == 0.0)), 1.0), "{about}");
        }
    }
}

#[test]
fn root_datagrams_that_a_router_refuses_are_lost_and_the_others_go_on() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let rules = "table ip t {\nchain c {\ntype filter hook forward priority 0\n\
                 udp length 108 numgen inc mod 10 == 0 reject\n}\n}\n";
    for direction in ["egress", "ingress"] {
        let t = udp(rules, 1, direction);
        let (lost, sent) = (t.value("lost"), t.value("sent"));
        assert!(sent > 300.0 && (lost - sent / 10.0).abs() <= 1.0, "{direction}: {:?}", t.values);
        assert_eq!(counts(&t), (0.0, 1.0));
    }
}
