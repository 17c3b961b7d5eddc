//! A recording of `weir flows --save`: one document of the kind `flows` per line. This reads the part of it that a report shows;
//! `weir schema flows` describes all of it.

use std::io::BufRead;

use serde::Deserialize;

/// The first key of each line, and its value.
const MARK: &str = "weir.flows/1";

/// A recording.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowsRecording {
    /// One per line, a second apart.
    pub ticks: Vec<FlowsTick>,
    /// The last line, whole.
    pub last: FlowsLine,
    /// The file ended within a line, which is left out: its writer was killed.
    pub is_cut: bool,
}

/// The part of each line that is kept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FlowsTick {
    schema: String,
    /// RFC 3339, UTC.
    pub time: String,
    /// Time since the beginning of the watch, seconds.
    pub seconds: f64,
    /// Sums over all networks since the beginning.
    pub all: FlowsSum,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FlowsLine {
    /// Version of weir that wrote it.
    pub weir: String,
    /// RFC 3339, UTC.
    pub time: String,
    /// Network namespace, for people.
    pub namespace: String,
    /// Interfaces that were watched.
    pub interfaces: Vec<String>,
    /// Time since the beginning of the watch, seconds.
    pub seconds: f64,
    /// Share of all flows that was tracked, 0 to 1.
    pub sample_share: f64,
    /// Flows in the table.
    pub flows_now: u64,
    /// Flows that were over.
    pub flows_over: u64,
    /// Sums over all networks.
    pub all: FlowsSum,
    /// The networks with the most bytes.
    pub networks: Vec<FlowsSum>,
    /// The flows with the most bytes.
    pub flows: Vec<RecordedFlow>,
    /// UDP flows in the table; none in older recordings.
    #[serde(default)]
    pub udp_flows_now: u64,
    /// UDP flows that were over.
    #[serde(default)]
    pub udp_flows_over: u64,
    /// The UDP flows with the most bytes.
    #[serde(default)]
    pub udp_flows: Vec<RecordedUdpFlow>,
    /// ICMP errors by sender and kind.
    #[serde(default)]
    pub icmp_errors: Vec<RecordedIcmp>,
    /// Flows by process; none in older recordings.
    #[serde(default)]
    pub processes: Vec<RecordedProcess>,
}

/// The flows of a process, of all that are unknown, or of all that have no end on the machine that watched.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedProcess {
    /// The process; none for flows without an end there.
    pub end: Option<RecordedEnd>,
    /// Container that has the address of its end.
    pub container: Option<String>,
    /// TCP flows.
    pub flows: u64,
    /// UDP flows.
    pub udp_flows: u64,
    /// Bytes that it sent.
    pub sent_bytes: u64,
    /// Bytes that it received.
    pub received_bytes: u64,
}

/// An end of flows on the machine that watched.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedEnd {
    /// Its process; none if it is unknown.
    pub pid: Option<u32>,
    /// Name of the process.
    pub process: Option<String>,
}

/// ICMP errors of one kind by one sender.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedIcmp {
    /// Address of the sender.
    pub from: String,
    /// A word for their meaning.
    pub meaning: String,
    /// Their number.
    pub packets: u64,
    /// The smallest MTU that they name, bytes.
    pub smallest_mtu: Option<u32>,
}

/// Sums over the flows of a network, or of all.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FlowsSum {
    /// Address and prefix length; none for all.
    pub network: Option<String>,
    /// Flows.
    pub flows: u64,
    /// SYNs without an answer.
    pub unanswered_syns: u64,
    /// The side of the clients.
    pub client_side: FlowsSide,
    /// The side of the servers.
    pub server_side: FlowsSide,
    /// UDP; nothing in older recordings.
    #[serde(default)]
    pub udp: RecordedUdp,
}

/// UDP of a network, or of all.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct RecordedUdp {
    /// Flows.
    pub flows: u64,
    /// Flows without an answer.
    pub unanswered_flows: u64,
    /// Flows in which one side was silent.
    pub silent_flows: u64,
    /// Bytes of QUIC.
    pub quic_bytes: u64,
    /// The side of the clients.
    pub client_side: RecordedUdpSide,
    /// The side of the servers.
    pub server_side: RecordedUdpSide,
    /// DNS.
    pub dns: RecordedDns,
}

/// Packets of UDP that one side sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct RecordedUdpSide {
    /// Bytes.
    pub bytes: u64,
    /// The longest time over which it sent without an answer, seconds.
    pub longest_silence_seconds: f64,
}

/// Queries and answers of DNS.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct RecordedDns {
    /// Queries.
    pub queries: u64,
    /// Queries without an answer.
    pub unanswered: u64,
    /// Answers with SERVFAIL.
    pub servfail: u64,
    /// Answers with NXDOMAIN.
    pub nxdomain: u64,
    /// Answers with REFUSED.
    pub refused: u64,
    /// Answers with another failure.
    pub other_failures: u64,
    /// Times from a query to its answer.
    pub times: RecordedTimes,
}

/// Times of DNS.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct RecordedTimes {
    /// The median, ns.
    pub median_ns: Option<u64>,
    /// The 95th percentile, ns.
    pub p95_ns: Option<u64>,
    /// Their number by length; see [`end_of_bucket`].
    pub buckets: Vec<u64>,
}

/// A UDP flow.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedUdpFlow {
    /// Address and port of the client; of DNS port 0.
    pub client: String,
    /// Address and port of the server.
    pub server: String,
    /// A word for its content.
    pub kind: String,
    /// A word for its state.
    pub state: String,
    /// Time since its first packet, seconds.
    pub age_seconds: f64,
    /// The side of the client.
    pub client_side: RecordedUdpSide,
    /// The side of the server.
    pub server_side: RecordedUdpSide,
    /// Queries and answers, if it is DNS.
    pub dns: Option<RecordedDns>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedFlow {
    /// Address and port of the client.
    pub client: String,
    /// Address and port of the server.
    pub server: String,
    /// A word for its state.
    pub state: String,
    /// The side of the client.
    pub client_side: FlowsSide,
    /// The side of the server.
    pub server_side: FlowsSide,
}

/// One side, and the way between it and the host that watched.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FlowsSide {
    /// Bytes that it sent.
    pub bytes: u64,
    /// Round trips between here and it.
    pub round_trips: RecordedTrips,
    /// Lost on the way from it.
    pub lost_from: RecordedLoss,
    /// Lost on the way to it.
    pub lost_to: RecordedLoss,
    /// Segments that overtook each other.
    pub reordered: u64,
    /// Segments sent again needlessly.
    pub needless: u64,
    /// Resets that it sent.
    pub resets: u64,
    /// How often it closed its receive window.
    pub zero_windows: u64,
    /// For what it waited as a sender; nothing in older recordings.
    #[serde(default)]
    pub limits: RecordedLimits,
}

/// Time that a side waited as a sender, by what it waited for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct RecordedLimits {
    /// A word for the one that half of the time and more goes to.
    pub by: Option<String>,
    /// Its program supplied no more, seconds.
    pub application_seconds: f64,
    /// The receive window of the other side was full, seconds.
    pub receiver_seconds: f64,
    /// After a loss, or over a queue, seconds.
    pub network_seconds: f64,
    /// Its send buffer, or another limit of its own, seconds.
    pub sender_seconds: f64,
    /// Neither is known, seconds.
    pub unclear_seconds: f64,
}

impl RecordedLimits {
    /// Words for the times of [`RecordedLimits::times`].
    pub const WORDS: [&'static str; 5] = ["application", "receiver", "network", "sender", "unclear"];

    /// The times, seconds, in the order of [`RecordedLimits::WORDS`].
    pub fn times(&self) -> [f64; 5] {
        [
            self.application_seconds,
            self.receiver_seconds,
            self.network_seconds,
            self.sender_seconds,
            self.unclear_seconds,
        ]
    }

    /// The limit that half of the time and more goes to, and its share, 0.5 to 1.
    pub fn most(&self) -> Option<(&'static str, f64)> {
        let by = self.by.as_deref()?;
        let at = RecordedLimits::WORDS.iter().position(|word| *word == by)?;
        let share = self.times()[at] / self.times().iter().sum::<f64>();
        share.is_finite().then_some((RecordedLimits::WORDS[at], share))
    }
}

/// Round trips.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedTrips {
    /// The smallest one, ns.
    pub smallest_ns: Option<u64>,
    /// Their number by length; see [`end_of_bucket`].
    pub buckets: Vec<u64>,
}

/// Some of a number of segments.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct RecordedLoss {
    /// How many.
    pub segments: u64,
    /// The total.
    pub of: u64,
    /// The share, 0 to 1.
    pub share: Option<f64>,
    /// The 95 % interval of the share.
    pub low: Option<f64>,
    /// See `low`.
    pub high: Option<f64>,
}

/// The end of a bucket of [`RecordedTrips::buckets`], ns: bucket 0 ends at 16 µs, each further pair at 1.5 and 2 times that. The last one
/// takes all that is longer.
pub fn end_of_bucket(bucket: usize) -> f64 {
    let whole = 16_000.0 * 2_f64.powi((bucket / 2) as i32);
    if bucket.is_multiple_of(2) { whole } else { whole * 1.5 }
}

impl FlowsRecording {
    /// Whether a file that begins like this is a recording.
    pub fn begins_like_one(text: &[u8]) -> bool {
        text.starts_with(b"{\"schema\":\"weir.flows/")
    }

    /// Reads a recording. Keeps sums of each line, and all of the last one.
    ///
    /// # Errors
    /// A line that is none of a recording, by its number; no whole line; a file that cannot be read.
    pub fn read(mut file: impl BufRead) -> Result<Self, String> {
        let (mut ticks, mut last, mut is_cut) = (Vec::new(), String::new(), false);
        let mut line = String::new();
        loop {
            line.clear();
            let length = file.read_line(&mut line).map_err(|e| format!("line {}: {e}", ticks.len() + 1))?;
            if length == 0 {
                break;
            }
            if !line.ends_with('\n') {
                is_cut = true;
                break;
            }
            let number = ticks.len() + 1;
            let tick: FlowsTick = serde_json::from_str(&line).map_err(|e| format!("line {number}: {e}"))?;
            if tick.schema != MARK {
                return Err(format!("line {number}: {:?} is not {MARK}", tick.schema));
            }
            ticks.push(tick);
            std::mem::swap(&mut line, &mut last);
        }
        if ticks.is_empty() {
            return Err("it has no whole line".to_owned());
        }
        let last = serde_json::from_str(&last).map_err(|e| format!("line {}: {e}", ticks.len()))?;
        Ok(FlowsRecording { ticks, last, is_cut })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(seconds: f64) -> String {
        let side = r#"{"bytes":1,"round_trips":{"smallest_ns":null,"buckets":[0,2]},"lost_from":{"segments":0,"of":0,"share":null,
            "low":null,"high":null},"lost_to":{"segments":1,"of":2,"share":0.5,"low":0.1,"high":0.9},"reordered":0,"needless":0,
            "resets":0,"zero_windows":0,"some_later_field":[1]}"#;
        let text = format!(
            r#"{{"schema":"weir.flows/1","weir":"0","time":"t","namespace":"n","interfaces":["a"],"seconds":{seconds},
            "sample_share":1.0,"flows_now":1,"flows_over":2,"networks":[],"flows":[],"another":1,
            "all":{{"network":null,"flows":3,"unanswered_syns":0,"client_side":{side},"server_side":{side}}}}}"#
        );
        text.replace('\n', "") + "\n"
    }

    #[test]
    fn lines_become_ticks_and_a_cut_one_is_left_out() {
        let whole = line(1.0) + &line(2.0);
        assert!(FlowsRecording::begins_like_one(whole.as_bytes()));
        let read = FlowsRecording::read(whole.as_bytes()).unwrap();
        assert_eq!((read.ticks.len(), read.last.seconds, read.is_cut), (2, 2.0, false));
        let cut = FlowsRecording::read(&whole.as_bytes()[..whole.len() - 5]).unwrap();
        assert_eq!((cut.ticks.len(), cut.last.seconds, cut.is_cut), (1, 1.0, true));
    }

    #[test]
    fn the_limit_is_the_word_that_is_written_with_its_share() {
        let limits = RecordedLimits {
            by: Some("network".to_owned()),
            receiver_seconds: 1.0,
            network_seconds: 3.0,
            ..RecordedLimits::default()
        };
        assert_eq!(limits.most(), Some(("network", 0.75)));
        assert_eq!(RecordedLimits { by: Some("a later word".to_owned()), ..limits.clone() }.most(), None);
        assert_eq!(RecordedLimits { by: None, ..limits }.most(), None);
        // A recording from before.
        let read = FlowsRecording::read(line(1.0).as_bytes()).unwrap();
        assert_eq!(read.last.all.client_side.limits, RecordedLimits::default());
    }

    #[test]
    fn what_is_no_recording_is_refused_by_line() {
        let read = |text: &str| FlowsRecording::read(text.as_bytes()).unwrap_err();
        assert_eq!(read(""), "it has no whole line");
        assert_eq!(read("{"), "it has no whole line");
        assert!(read(&(line(1.0) + "{}\n")).starts_with("line 2: "));
        assert!(read(&line(1.0).replace("flows/1", "flows/2")).contains("flows/2"));
        assert!(!FlowsRecording::begins_like_one(b"{\"schema\":2"));
    }

    #[test]
    fn buckets_end_at_powers_of_two_and_in_between() {
        assert_eq!([0, 1, 2, 3].map(end_of_bucket), [16_000.0, 24_000.0, 32_000.0, 48_000.0]);
    }
}
