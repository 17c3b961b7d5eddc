//! The output of `iperf3 -J`. The parser is tolerant, because fields come and go between versions.

use serde_json::Value;
use weir_record::Series;

use crate::Direction;

/// The figures that are used.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    /// One per direction.
    pub ways: Vec<Way>,
    /// Share of all bytes that fell into the window, not the omitted seconds, 0..=1.
    pub window_share: f64,
    /// TCP streams of which the receiver counted nothing.
    pub silent_streams: u32,
    /// (middle of the interval in s, bit/s) as the client saw them, of the intervals that were not omitted.
    pub intervals: Vec<(f64, f64)>,
}

/// One direction's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Way {
    /// Bytes that the receiver counted, and over how many seconds.
    pub received_bytes: f64,
    pub received_s: f64,
    /// Segments sent again (TCP).
    pub retransmits: f64,
    /// Datagrams sent (UDP).
    pub packets: f64,
    /// Bytes sent, to know the size of a datagram.
    pub sent_bytes: f64,
    /// RFC 3550 jitter (UDP).
    pub jitter_ms: f64,
}

impl Way {
    /// Datagrams that the receiver counted, as far as they can be different ones: it counts every copy.
    pub(super) fn received_datagrams(&self) -> f64 {
        if self.packets > 0.0 {
            (self.received_bytes / (self.sent_bytes / self.packets)).round().min(self.packets)
        } else {
            0.0
        }
    }
}

impl Report {
    /// The intervals as a series: at the client they are what was sent or what was received.
    pub(super) fn series(&self, direction: Direction) -> Vec<Series> {
        let name = match direction {
            Direction::Egress => "sent_bps",
            Direction::Ingress => "goodput_bps",
            // The client knows what it sent and what it received; their sum is neither.
            Direction::Both => return Vec::new(),
        };
        vec![Series { name: name.to_owned(), points: self.intervals.clone() }]
    }
}

/// Read the report. An error is in words, iperf3's own where it gives some.
pub(super) fn parse(text: &str) -> Result<Report, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("the report cannot be read: {e}"))?;
    if let Some(error) = json.get("error").and_then(Value::as_str) {
        return Err(error.to_owned());
    }
    let end = json.get("end").ok_or("the report has no `end`")?;
    let mut ways = vec![way(end, "").ok_or("the report has no `end.sum_received`")?];
    ways.extend(way(end, "_bidir_reverse"));
    let intervals = json.get("intervals").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let silent_streams = silent(end);
    Ok(Report { ways, window_share: window_share(intervals), silent_streams, intervals: points(intervals) })
}

/// A stream over TCP has a receiver's side with its bytes; one over UDP has not.
fn silent(end: &Value) -> u32 {
    let streams = end.get("streams").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let nothing = |s: &&Value| s.get("receiver").and_then(|r| number(r, "bytes")) == Some(0.0);
    streams.iter().filter(nothing).count() as u32
}

fn number(value: &Value, key: &str) -> Option<f64> {
    value.get(key).and_then(Value::as_f64)
}

fn way(end: &Value, suffix: &str) -> Option<Way> {
    let received = end.get(format!("sum_received{suffix}"))?;
    let sent = end.get(format!("sum_sent{suffix}"))?;
    let received_s = number(received, "seconds").filter(|s| *s > 0.0)?;
    // For datagrams it counts every copy.
    let most = number(sent, "packets")
        .filter(|n| *n > 0.0)
        .and_then(|_| number(sent, "bytes"))
        .unwrap_or(f64::INFINITY);
    Some(Way {
        received_bytes: number(received, "bytes")?.min(most),
        received_s,
        retransmits: number(sent, "retransmits").unwrap_or(0.0),
        packets: number(sent, "packets").unwrap_or(0.0),
        sent_bytes: number(sent, "bytes")?,
        jitter_ms: number(received, "jitter_ms").unwrap_or(0.0),
    })
}

fn sums(interval: &Value) -> impl Iterator<Item = &Value> {
    ["sum", "sum_bidir_reverse"].into_iter().filter_map(|key| interval.get(key))
}

fn window_share(intervals: &[Value]) -> f64 {
    let (mut all, mut inside) = (0.0, 0.0);
    for sum in intervals.iter().flat_map(sums) {
        let bytes = number(sum, "bytes").unwrap_or(0.0);
        all += bytes;
        inside += if sum.get("omitted").and_then(Value::as_bool).unwrap_or(false) { 0.0 } else { bytes };
    }
    if all > 0.0 { inside / all } else { 1.0 }
}

fn points(intervals: &[Value]) -> Vec<(f64, f64)> {
    let point = |interval: &Value| {
        let sum = interval.get("sum")?;
        let omitted = sum.get("omitted").and_then(Value::as_bool).unwrap_or(false);
        let middle = f64::midpoint(number(sum, "start")?, number(sum, "end")?);
        (!omitted).then_some((middle, number(sum, "bits_per_second")?))
    };
    intervals.iter().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened from iperf3 3.12's own output: `-t 2 -O 1 -u -b 0 -l 64`, most of it lost.
    const UDP: &str = r#"{"start": {}, "intervals": [
        {"streams": [], "sum": {"start": 0, "end": 1.0, "bytes": 19543680, "bits_per_second": 156348191.2, "packets": 305370, "omitted": true}},
        {"streams": [], "sum": {"start": 0, "end": 1.0, "bytes": 20954240, "bits_per_second": 167627385.6, "packets": 327410, "omitted": false}},
        {"streams": [], "sum": {"start": 1.0, "end": 2.0, "bytes": 20215040, "bits_per_second": 161673428.8, "packets": 315860, "omitted": false}}],
        "end": {"streams": [],
        "sum": {"seconds": 1.999948, "bytes": 41169280, "jitter_ms": 0.0008, "lost_packets": 512758, "packets": 643270, "sender": true},
        "sum_sent": {"seconds": 2.000299, "bytes": 41169280, "packets": 643270, "lost_packets": 0, "jitter_ms": 0},
        "sum_received": {"seconds": 1.999948, "bytes": 19034944, "jitter_ms": 0.0008, "lost_packets": 512758, "packets": 643249}}}"#;

    #[test]
    fn udp_is_counted_by_bytes() {
        let report = parse(UDP).unwrap();
        // 19034944 / 64
        assert_eq!(report.ways[0].received_datagrams(), 297_421.0);
        assert_eq!(report.ways[0].packets, 643_270.0);
        assert!((report.window_share - 41_169_280.0 / 60_712_960.0).abs() < 1e-12);
        assert_eq!(report.intervals, [(0.5, 167_627_385.6), (1.5, 161_673_428.8)]);
    }

    #[test]
    fn copies_are_no_more_than_was_sent() {
        let report = parse(&UDP.replace("19034944", "49034944")).unwrap();
        assert_eq!(report.ways[0].received_datagrams(), 643_270.0);
        assert_eq!(report.ways[0].received_bytes, 41_169_280.0);
    }

    #[test]
    fn streams_that_got_nothing_through_are_counted() {
        let text = r#"{"end": {"streams": [{"receiver": {"bytes": 5}}, {"receiver": {"bytes": 0}}, {"udp": {"bytes": 0}}],
            "sum_sent": {"bytes": 9}, "sum_received": {"bytes": 5, "seconds": 1}}}"#;
        assert_eq!(parse(text).unwrap().silent_streams, 1);
    }

    #[test]
    fn its_own_words_are_kept() {
        let text = r#"{"start": {}, "intervals": [], "end": {}, "error": "unable to connect to server: Connection refused"}"#;
        assert_eq!(parse(text).unwrap_err(), "unable to connect to server: Connection refused");
        assert!(parse("iperf3: usage").unwrap_err().contains("cannot be read"));
        assert!(parse(r#"{"end": {}}"#).unwrap_err().contains("sum_received"));
    }
}
