//! What is tried between weir and iperf3, and what both ends must agree on.

use serde_json::Value;

/// What is known of a test before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Sender and receiver count the same, but for the write or datagrams that are under way when the end comes.
    Alike,
    /// So many bytes are sent at least, in whole writes, and all of them come.
    Bytes(u64),
    /// The receiver ends it at so many bytes; what the sender sent meanwhile is more.
    AtLeast(u64),
    /// Each end cuts the omitted time off by its own clock.
    Omitted,
}

/// One row: options that iperf3 and `weir probe --iperf3` write alike.
pub(crate) struct Case {
    pub(crate) udp: bool,
    pub(crate) options: &'static str,
    pub(crate) known: Known,
}

pub(crate) const fn tcp(options: &'static str) -> Case {
    Case { udp: false, options, known: Known::Alike }
}

pub(crate) const fn udp(options: &'static str) -> Case {
    Case { udp: true, options, known: Known::Alike }
}

const fn known(case: Case, known: Known) -> Case {
    Case { known, ..case }
}

pub(crate) const CASES: &[Case] = &[
    tcp("-t 1 -b 30M -l 10K"),
    tcp("-t 1 -b 30M -l 10K -R"),
    tcp("-t 1 -b 30M -l 10K --bidir"),
    tcp("-t 1 -b 10M -l 10K -P 4"),
    tcp("-t 1 -b 10M -l 10K -P 3 -R"),
    tcp("-t 1 -b 10M -l 10K -P 2 --bidir"),
    tcp("-t 1 -b 30M/4 -l 8K"),
    tcp("-t 1 -b 30M/4 -l 8K -R"),
    known(tcp("-t 1 -O 1 -b 30M -l 10K"), Known::Omitted),
    known(tcp("-t 1 -O 1 -b 30M -l 10K -R"), Known::Omitted),
    known(tcp("-n 3M -l 10K"), Known::Bytes(3 << 20)),
    known(tcp("-n 3M -P 3"), Known::Bytes(3 << 20)),
    known(tcp("-n 3M -l 10K -R"), Known::AtLeast(3 << 20)),
    known(tcp("-k 300 -l 10K"), Known::Bytes(300 * 10240)),
    known(tcp("-k 300 -l 10K -R"), Known::AtLeast(0)),
    tcp("-t 1 -b 30M -l 10K -w 200K"),
    tcp("-t 1 -b 30M -l 10K -w 200K -R"),
    tcp("-t 1 -b 30M -l 10K -M 1000"),
    tcp("-t 1 -b 30M -l 10K -M 1000 -R"),
    tcp("-t 1 -b 30M -l 10K -C reno"),
    tcp("-t 1 -b 30M -l 10K -C reno -R"),
    tcp("-t 1 -b 30M -l 10K -Z"),
    tcp("-t 1 -b 30M -l 10K -Z -R"),
    tcp("-t 1 -b 30M -l 10K -N -S 16"),
    tcp("-t 1 -b 30M -l 10K -T title --get-server-output"),
    tcp("-t 1 -b 30M -l 10K -R --get-server-output"),
    udp("-t 1 -b 5M -l 500"),
    udp("-t 1 -b 5M -l 500 -R"),
    udp("-t 1 -b 5M -l 500 --bidir"),
    udp("-t 1 -b 2M -l 500 -P 4"),
    udp("-t 1 -b 2M -l 500 -P 3 -R"),
    udp("-t 1 -b 2M -l 500 -P 2 --bidir"),
    udp("-t 1 -b 5M/10 -l 500"),
    udp("-t 1 -b 5M/10 -l 500 -R"),
    udp("-t 1 -l 1400"),
    known(udp("-t 1 -O 1 -b 5M -l 500"), Known::Omitted),
    known(udp("-t 1 -O 1 -b 5M -l 500 -R"), Known::Omitted),
    known(udp("-n 500K -l 1000 -b 10M"), Known::AtLeast(500 << 10)),
    known(udp("-n 500K -l 1000 -b 10M -R"), Known::AtLeast(500 << 10)),
    known(udp("-k 600 -l 1000 -b 10M"), Known::AtLeast(600_000)),
    known(udp("-k 600 -l 1000 -b 10M -R"), Known::AtLeast(600_000)),
    udp("-t 1 -b 5M -l 500 --udp-counters-64bit"),
    udp("-t 1 -b 5M -l 500 --udp-counters-64bit -R"),
    udp("-t 1 -b 5M -l 500 -w 400K"),
    udp("-t 1 -b 5M -l 500 -S 32 --get-server-output"),
    udp("-t 1 -b 5M -l 500 -R --get-server-output"),
];

/// What one end's report says of one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Counted {
    pub(crate) sent: f64,
    pub(crate) received: f64,
    /// UDP: lost, and of how many.
    pub(crate) lost: Option<(f64, f64)>,
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Both directions as weir's report has them.
pub(crate) fn of_weir(report: &Value) -> Vec<Counted> {
    let of = |total: &Value| {
        let (sender, receiver) = (&total["sender"], &total["receiver"]);
        let lost = receiver.get("lost").map(|lost| (number(lost), number(&receiver["packets"])));
        Counted { sent: number(&sender["bytes"]), received: number(&receiver["bytes"]), lost }
    };
    ["egress", "ingress"].iter().filter_map(|way| report.get(way)).map(of).collect()
}

/// Both directions as an iperf3 client's `-J` has them.
pub(crate) fn of_iperf3(report: &Value) -> Vec<Counted> {
    let end = &report["end"];
    let of = |suffix: &str| {
        let (sent, received) =
            (end.get(format!("sum_sent{suffix}"))?, end.get(format!("sum_received{suffix}"))?);
        let lost = received.get("lost_packets").map(|lost| (number(lost), number(&received["packets"])));
        Some(Counted { sent: number(&sent["bytes"]), received: number(&received["bytes"]), lost })
    };
    ["", "_bidir_reverse"].into_iter().filter_map(of).collect()
}

/// What a test's two ends must agree on.
#[track_caller]
pub(crate) fn check(case: &Case, counted: &[Counted], writes: f64) {
    let ways = if case.options.contains("--bidir") { 2 } else { 1 };
    assert_eq!(counted.len(), ways, "{}: {counted:?}", case.options);
    for c in counted {
        println!("{} {}: {c:?}", if case.udp { "udp" } else { "tcp" }, case.options);
        assert!(c.received > 0.0 && c.lost.is_none_or(|(lost, _)| lost == 0.0), "{}: {c:?}", case.options);
        let apart = (c.sent - c.received).abs();
        match case.known {
            Known::Alike => {
                assert!(apart <= 0.005 * c.sent + writes, "{}: {c:?}", case.options);
            }
            // Half a second of two: on a machine that is busy with something else, timers are late.
            Known::Omitted => assert!(apart <= 0.25 * c.sent, "{}: {c:?}", case.options),
            Known::Bytes(bytes) => {
                assert_eq!(c.sent, c.received, "{}", case.options);
                // Each stream may have begun one more write.
                let most = bytes as f64 + 4.0 * 131_072.0;
                assert!(c.sent >= bytes as f64 && c.sent <= most, "{}: {c:?}", case.options);
            }
            Known::AtLeast(bytes) => {
                assert!(c.sent >= bytes as f64 && c.received <= c.sent, "{}: {c:?}", case.options);
                assert!(c.received >= 0.98 * bytes as f64, "{}: {c:?}", case.options);
            }
        }
    }
}

/// Bytes that may be under way when the end comes: a write, or ten milliseconds' datagrams, of each stream.
pub(crate) fn under_way(case: &Case) -> f64 {
    let streams = case.options.split("-P ").nth(1).map_or(1.0, |n| n[..1].parse().unwrap());
    let once = if case.udp { 10.0 * 1500.0 } else { 5.0 * 10240.0 };
    streams * once
}
