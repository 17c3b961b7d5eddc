#![allow(missing_docs, reason = "a test program")]
//! The measured figures of a path are its known ones: rates, losses and copies made by the kernel, in namespaces of the
//! test's own.

mod ends;

use ends::path::Path;
use ends::{setting, trial, workload};
use serde_json::json;
use weir_record::FaultCode;
use weir_testkit::measured;

/// The rate that tbf lets through, in bits per second on the wire as it counts them (with Ethernet's header of 14 bytes).
const RATE_BPS: f64 = 100e6;

/// A machine that is busy with other things keeps a sender or the shaper waiting now and then, which lowers what gets
/// through; nothing raises it above the limit. So: never above, and on the limit in one of these trials. An engine that
/// counts wrongly does so in each.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 4;

/// Tries until one trial's value is within 1 % of the truth; any that is above fails.
fn reaches(what: &str, truth: f64, mut attempt: impl FnMut() -> (f64, String)) {
    measured(NEEDED, ATTEMPTS, |_| {
        let (value, words) = attempt();
        let ratio = value / truth;
        assert!(ratio < 1.01, "{what}: {ratio} of what can get through; {words}");
        println!("{what}: {ratio:.4} of what can get through; {words}");
        ratio > 0.99
    });
}

fn limit(path: &Path, device: &str) {
    // A bucket of 20 ms at most: what it holds from before the window is far below the tolerance.
    path.run(
        &path.gateway,
        &format!("tc qdisc add dev {device} root tbf rate 100mbit burst 32k latency 20ms"),
        "",
    );
}

fn forward_rule(path: &Path, rule: &str) {
    let rules = format!("table ip t {{\nchain c {{\ntype filter hook forward priority 0\n{rule}\n}}\n}}\n");
    path.run(&path.gateway, "nft -f -", &rules);
}

#[test]
fn root_paced_tcp_goodput_through_100_mbit_is_the_payload_s_share() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let path = Path::new();
    limit(&path, "gr");
    limit(&path, "gi");
    // MTU 1500: 20 bytes of IPv4, 20 of TCP and 12 of its timestamps (RFC 7323); a super-packet is counted with the
    // headers of all its segments (qdisc_pkt_len_init of net/core/dev.c).
    let share = (1500.0 - 52.0) / 1514.0;
    let mut retransmits = 0.0;
    for direction in ["egress", "ingress"] {
        let w = workload(json!({"kind": "tcp-stream", "direction": direction}));
        reaches(direction, RATE_BPS * share, || {
            let t = trial(&w, &setting(1000, 2000), &path.site());
            retransmits += t.value("retransmits");
            (t.value("goodput_bps"), format!("{:?} {:?}", t.values, t.faults))
        });
    }
    // CUBIC lets this queue overflow every five seconds (K of RFC 9438 section 4.2 for a window of 170 segments): a
    // single trial of two may pass without a drop, but not all four.
    assert!(retransmits > 0.0, "a full queue of 20 ms drops");
    // Small segments: the MSS option counts the options in (RFC 6691), so 536 leaves 524 bytes of payload.
    let w = workload(json!({"kind": "tcp-stream", "mss": 536, "streams": 2}));
    reaches("MSS 536", RATE_BPS * 524.0 / (524.0 + 52.0 + 14.0), || {
        let t = trial(&w, &setting(1000, 2000), &path.site());
        (t.value("goodput_bps"), format!("{:?}", t.values))
    });
}

#[test]
fn root_measured_udp_through_100_mbit_loses_what_does_not_fit() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let path = Path::new();
    limit(&path, "gr");
    // 12,000 a second of 1042 bytes on the wire are 100.03 Mbit/s; 20,000 are offered.
    let w = workload(json!({"kind": "udp-stream", "rate-pps": 20_000, "payload-bytes": 1000}));
    let fits = RATE_BPS / (8.0 * 1042.0);
    reaches("UDP", fits, || {
        let t = trial(&w, &setting(500, 2000), &path.site());
        // Whatever got through, the rest of what was offered is the loss.
        let loss = 1.0 - t.value("delivered_pps") / t.value("sent_pps");
        assert!((t.value("loss_ratio") - loss).abs() < 0.01, "{:?}", t.values);
        assert_eq!((t.value("receiver_drops"), t.value("duplicated")), (0.0, 0.0));
        (t.value("delivered_pps"), format!("{:?}", t.values))
    });
}

#[test]
fn root_one_in_a_hundred_lost_by_nft_is_one_percent() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let path = Path::new();
    // Drops only the test's datagrams: greetings have other lengths.
    forward_rule(&path, "udp length 108 numgen inc mod 100 == 0 drop");
    for batch in ["single", "segment"] {
        let w =
            workload(json!({"kind": "udp-stream", "rate-pps": 20_000, "payload-bytes": 100, "batch": batch}));
        // Twice as long as the bound needs: a busy machine sends less.
        let t = trial(&w, &setting(200, 2000), &path.site());
        let (lost, sent) = (t.value("lost"), t.value("sent"));
        assert!(sent > 15_000.0 && (lost - sent / 100.0).abs() <= 1.0, "{batch}: {lost} of {sent}");
        let (low, high) = weir_stats::loss::interval(lost as u64, sent as u64).unwrap();
        assert!(low < 0.01 && 0.01 < high, "{low} {high}");
        assert_eq!((t.value("reordered"), t.value("duplicated")), (0.0, 0.0));
    }
}

#[test]
fn root_copies_made_by_the_kernel_are_duplicates_and_not_gain() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let path = Path::new();
    // Every datagram whose number ends in five zero bits is copied past the routing: bits of the 64-bit number at byte 8 of
    // the payload, so its last word is at 20 + 8 + 12 = 40 from the IP header.
    path.run(&path.gateway, "tc qdisc add dev gi clsact", "");
    let filter = "tc filter add dev gi ingress protocol ip prio 1 u32 match ip protocol 17 0xff \
                  match u16 108 0xffff at 24 match u32 0 0x1f at 40 action mirred egress mirror dev gr";
    path.run(&path.gateway, filter, "");
    forward_rule(&path, "udp length 108 @th,160,32 & 0x1f == 1 drop");
    let w = workload(json!({"kind": "udp-stream", "rate-pps": 10_000, "payload-bytes": 100}));
    let t = trial(&w, &setting(200, 2000), &path.site());
    let sent = t.value("sent");
    assert!(sent > 8_000.0);
    for (name, value) in [("duplicated", t.value("duplicated")), ("lost", t.value("lost"))] {
        assert!((value - sent / 32.0).abs() <= 1.0, "{name} {value} of {sent}: {:?}", t.values);
    }
    assert_eq!(t.value("reordered"), 0.0);
}

#[test]
fn root_measured_a_full_queue_of_the_sender_is_a_fault_and_not_loss() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let path = Path::new();
    let tbf = "tc qdisc add dev ig root tbf rate 50mbit burst 16k latency 5ms";
    path.run(&path.initiator, tbf, "");
    let w = workload(json!({"kind": "udp-stream", "payload-bytes": 1000}));
    reaches("UDP", 50e6 * 1000.0 / 1042.0, || {
        let t = trial(&w, &setting(200, 1000), &path.site());
        let full = |f: &weir_record::Fault| f.code == FaultCode::SendBufferFull && f.host == "initiator";
        assert!(t.faults.iter().any(full), "{:?}", t.faults);
        assert_eq!(t.value("lost"), 0.0, "{:?}", t.values);
        (t.value("goodput_bps"), format!("{:?}", t.values))
    });
}

#[test]
fn root_segments_cross_the_link_one_by_one_and_gso_does_not() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let path = Path::new();
    forward_rule(&path, "ip saddr 198.18.7.2 meta l4proto udp counter");
    for (batch, on, least, most) in [("segment", "off", 0.99, 1.01), ("gso", "on", 1.0 / 64.0, 0.2)] {
        for (namespace, device) in
            [(&path.initiator, "ig"), (&path.gateway, "gi"), (&path.gateway, "gr"), (&path.responder, "rg")]
        {
            path.run(namespace, &format!("ethtool -K {device} tx-udp-segmentation {on}"), "");
        }
        let before = forwarded(&path);
        // No warm-up and a short window: what the counter sees is 300 ms of margin and the window.
        let w = workload(json!({
            "kind": "udp-stream", "rate-pps": 64_000, "payload-bytes": 100, "batch": batch,
        }));
        let t = trial(&w, &setting(0, 700), &path.site());
        let skbs = forwarded(&path) - before;
        // 1 s in all.
        let share = skbs / (t.value("sent_pps") * 1.0);
        assert!((least..=most).contains(&share), "{batch}: {skbs} of {}", t.value("sent_pps"));
    }
}

/// Packets that the rule of the forward chain counted.
fn forwarded(path: &Path) -> f64 {
    let text = path.run(&path.gateway, "nft list ruleset", "");
    let mut words = text.split_whitespace().skip_while(|w| *w != "packets");
    words.nth(1).unwrap().parse().unwrap()
}
