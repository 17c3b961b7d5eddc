//! The cases between weir and iperf3, and what both ends must agree on.

use serde_json::Value;

/// How far the counts of both ends may be apart, of what was sent.
const APART: f64 = 0.005;

/// The same where each end cuts the omitted time off by its own timer (iperf3 starts it when that end starts): what went between the
/// two moments is in one count and not in the other. Both timers begin within a round trip, and how late each is, is the machine's doing.
const APART_OMITTED: f64 = 0.02;

/// The known facts of a test before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Sender and receiver count the same, but for what is under way when the end comes: iperf3's receiver leaves bytes in its socket that
    /// it has not read when it hears of the end. They are some milliseconds' worth in a test of any length, and so less of a longer
    /// one: see [`Case::stretched`].
    Alike,
    /// So many bytes are sent at least, in whole writes, and all of them come.
    Bytes(u64),
    /// The receiver ends it at so many bytes; what the sender sent until it heard of that is more.
    AtLeast(u64),
    /// Each end cuts the omitted time off by its own clock.
    Omitted,
}

/// One row: options that iperf3 and `weir probe --iperf3` write alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) udp: bool,
    pub(crate) options: &'static str,
    pub(crate) known: Known,
}

impl Case {
    /// The same for so many times as long, or as many bytes or blocks.
    pub(crate) fn stretched(&self, times: u32) -> Case {
        let mut options: Vec<String> = self.options.split_whitespace().map(str::to_owned).collect();
        let ends = ["-t", "-n", "-k"];
        for at in 1..options.len() {
            if ends.contains(&options[at - 1].as_str()) {
                let digits = options[at].chars().take_while(char::is_ascii_digit).count();
                let (number, unit) = options[at].split_at(digits);
                options[at] = format!("{}{unit}", number.parse::<u32>().unwrap() * times);
            }
        }
        let known = match self.known {
            Known::Bytes(n) => Known::Bytes(n * u64::from(times)),
            Known::AtLeast(n) => Known::AtLeast(n * u64::from(times)),
            other => other,
        };
        // A few dozens of bytes for each test that is tried again.
        Case { udp: self.udp, options: options.join(" ").leak(), known }
    }
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

/// Paced streams of TCP have `-N`, or short segments: else Nagle's algorithm (RFC 896) holds up to a segment of loopback, 64 KiB, back at the
/// end, which its sender has counted.
///
/// Rates of UDP are such that a stock receiver's usual buffer (net.core.rmem_default) holds a third of a second's datagrams: on a busy
/// machine it does not get to run for a while.
pub(crate) const CASES: &[Case] = &[
    tcp("-t 1 -b 30M -l 10K -N"),
    tcp("-t 1 -b 30M -l 10K -R -N"),
    tcp("-t 1 -b 30M -l 10K --bidir -N"),
    tcp("-t 1 -b 10M -l 10K -P 4 -N"),
    tcp("-t 1 -b 10M -l 10K -P 3 -R -N"),
    tcp("-t 1 -b 10M -l 10K -P 2 --bidir -N"),
    tcp("-t 1 -b 30M/4 -l 8K -N"),
    tcp("-t 1 -b 30M/4 -l 8K -R -N"),
    known(tcp("-t 1 -O 1 -b 30M -l 10K -N"), Known::Omitted),
    known(tcp("-t 1 -O 1 -b 30M -l 10K -R -N"), Known::Omitted),
    known(tcp("-n 3M -l 10K"), Known::Bytes(3 << 20)),
    known(tcp("-n 3M -P 3"), Known::Bytes(3 << 20)),
    known(tcp("-n 3M -l 10K -b 30M -R"), Known::AtLeast(3 << 20)),
    known(tcp("-k 300 -l 10K"), Known::Bytes(300 * 10240)),
    // Not as fast as it goes: iperf3 counts each read as a block, also one that finds only a part of a block in the socket.
    known(tcp("-k 300 -l 10K -b 30M -R"), Known::AtLeast(300 * 10240)),
    tcp("-t 1 -b 30M -l 10K -w 200K -N"),
    tcp("-t 1 -b 30M -l 10K -w 200K -R -N"),
    tcp("-t 1 -b 30M -l 10K -M 1000"),
    tcp("-t 1 -b 30M -l 10K -M 1000 -R"),
    tcp("-t 1 -b 30M -l 10K -C reno -N"),
    tcp("-t 1 -b 30M -l 10K -C reno -R -N"),
    tcp("-t 1 -b 30M -l 10K -Z -N"),
    tcp("-t 1 -b 30M -l 10K -Z -R -N"),
    tcp("-t 1 -b 30M -l 10K -N -S 16"),
    tcp("-t 1 -b 30M -l 10K -T title --get-server-output -N"),
    tcp("-t 1 -b 30M -l 10K -R --get-server-output -N"),
    udp("-t 1 -b 2M -l 500"),
    udp("-t 1 -b 2M -l 500 -R"),
    udp("-t 1 -b 2M -l 500 --bidir"),
    udp("-t 1 -b 1M -l 500 -P 4"),
    udp("-t 1 -b 1M -l 500 -P 3 -R"),
    udp("-t 1 -b 1M -l 500 -P 2 --bidir"),
    // At a rate at which no burst is due just when the test ends, after one second or two: at 2M a sender that hears of the end a moment
    // late has sent one more.
    udp("-t 1 -b 1937K/10 -l 500"),
    udp("-t 1 -b 1937K/10 -l 500 -R"),
    udp("-t 1 -l 1400"),
    known(udp("-t 1 -O 1 -b 2M -l 500"), Known::Omitted),
    known(udp("-t 1 -O 1 -b 2M -l 500 -R"), Known::Omitted),
    known(udp("-n 500K -l 1000 -b 5M"), Known::AtLeast(500 << 10)),
    known(udp("-n 500K -l 1000 -b 5M -R"), Known::AtLeast(500 << 10)),
    known(udp("-k 600 -l 1000 -b 5M"), Known::AtLeast(600_000)),
    known(udp("-k 600 -l 1000 -b 5M -R"), Known::AtLeast(600_000)),
    udp("-t 1 -b 2M -l 500 --udp-counters-64bit"),
    udp("-t 1 -b 2M -l 500 --udp-counters-64bit -R"),
    udp("-t 1 -b 2M -l 500 -w 400K"),
    udp("-t 1 -b 2M -l 500 -S 32 --get-server-output"),
    udp("-t 1 -b 2M -l 500 -R --get-server-output"),
];

/// The figures of one end's report for one direction.
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

/// The figures that a test's two ends must agree on, but for so many bytes.
#[track_caller]
pub(crate) fn check(case: &Case, counted: &[Counted], but_for: f64) {
    let ways = if case.options.contains("--bidir") { 2 } else { 1 };
    assert_eq!(counted.len(), ways, "{}: {counted:?}", case.options);
    for c in counted {
        println!("{} {}: {c:?}", if case.udp { "udp" } else { "tcp" }, case.options);
        assert!(c.received > 0.0 && c.lost.is_none_or(|(lost, _)| lost == 0.0), "{}: {c:?}", case.options);
        let apart = (c.sent - c.received).abs();
        let most = if case.known == Known::Omitted { APART_OMITTED } else { APART };
        assert!(apart <= most * c.sent + but_for, "{}: {c:?}", case.options);
        match case.known {
            Known::Alike | Known::Omitted => {}
            Known::Bytes(bytes) => {
                assert_eq!(c.sent, c.received, "{}", case.options);
                // Each stream may have begun one more write.
                let most = bytes as f64 + 4.0 * 131_072.0;
                assert!(c.sent >= bytes as f64 && c.sent <= most, "{}: {c:?}", case.options);
            }
            Known::AtLeast(bytes) => {
                let least = if case.options.contains("-R") { 1.0 } else { 1.0 - APART };
                assert!(c.sent >= bytes as f64 && c.received <= c.sent, "{}: {c:?}", case.options);
                assert!(c.received >= least * bytes as f64, "{}: {c:?}", case.options);
            }
        }
    }
}

/// Bytes of a test of UDP that may be under way when the end comes, where it cannot be stretched: ten milliseconds' datagrams of
/// each stream.
pub(crate) fn under_way(case: &Case) -> f64 {
    let streams = case.options.split("-P ").nth(1).map_or(1.0, |n| n[..1].parse().unwrap());
    streams * 10.0 * 1500.0
}
