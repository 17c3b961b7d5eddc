//! The result of a client's test: both ends' figures of each stream.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::ledger::{Interval, StreamTotal};
use super::parameters::Way;
use super::results::{Cpu, Results, ServerOutput, StreamResult};
use super::streams::Stream;
use super::text::{Lines, Row};
use weir_netlink::Protocol;

/// The sending end's counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Sender {
    /// Payload bytes.
    pub bytes: u64,
    /// Length of what it counted, seconds.
    pub seconds: f64,
    /// Payload bits per second.
    pub bps: f64,
    /// Segments sent again; `None` for UDP, and where the sending end does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// Datagrams (UDP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Datagrams in the omitted time (UDP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted_packets: Option<u64>,
}

/// The receiving end's counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Receiver {
    /// Payload bytes.
    pub bytes: u64,
    /// Length of what it counted, seconds, without the time that the client waited for what was on its way.
    pub seconds: f64,
    /// Payload bits per second.
    pub bps: f64,
    /// UDP.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<Datagrams>,
}

/// The receiving end's figures for the datagrams of a UDP stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Datagrams {
    /// Datagrams up to the greatest number that came, without those of the omitted time.
    pub packets: u64,
    /// Datagrams of these that did not come.
    pub lost: u64,
    /// Lost of all up to the greatest number that came; 1 if nothing came of what was sent.
    pub loss_ratio: f64,
    /// The estimator of RFC 1889, seconds.
    pub jitter_s: f64,
    /// Datagrams in the omitted time.
    pub omitted_packets: u64,
    /// Datagrams in the omitted time that did not come.
    pub omitted_lost: u64,
    /// Came after a greater number; only where this end receives, iperf3 does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// Came again; likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// Lost datagrams that the receiving socket's own full buffer dropped; likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_by_receiver: Option<u64>,
}

/// One stream as both ends saw it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StreamReport {
    /// iperf3's number of it: 1, 3, 4, ...
    pub id: i64,
    /// Egress if the client sends, ingress if the server does.
    pub way: Way,
    /// This end's address.
    pub local: SocketAddr,
    /// The far end's.
    pub peer: SocketAddr,
    /// The sending end's figures.
    pub sender: Sender,
    /// The receiving end's.
    pub receiver: Receiver,
    /// Least, mean and greatest smoothed RTT of once a second, us, as this end's kernel sees it (TCP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<(u32, f64, u32)>,
    /// Greatest congestion window of once a second, bytes (TCP, where this end sends).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cwnd_bytes: Option<u64>,
}

/// All streams of one direction.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Total {
    /// The senders' counts.
    pub sender: Sender,
    /// The receivers' counts.
    pub receiver: Receiver,
}

/// The result of a client's test.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// The server.
    pub target: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Who sent.
    pub way: Way,
    /// Bytes of a write, or of a datagram's payload.
    pub length: u32,
    /// Bit rate asked for of each stream; `None` for as fast as it goes.
    pub target_bps: Option<u64>,
    /// Length of what counted at this end, seconds.
    pub seconds: f64,
    /// Omitted before that, seconds.
    pub omitted_s: u32,
    /// Client to server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Total>,
    /// Server to client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Total>,
    /// Each stream.
    pub streams: Vec<StreamReport>,
    /// Second by second, as this end counted.
    pub intervals: Vec<Interval>,
    /// CPU use of this end's threads.
    pub cpu: Cpu,
    /// CPU use that the server reports for itself.
    pub server_cpu: Cpu,
    /// Congestion control here (TCP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Congestion control at the server (TCP).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_congestion: Option<String>,
    /// The server's own output, if it was asked for and the server gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_output: Option<ServerOutput>,
    /// Further notes for the reader.
    pub notes: Vec<String>,
}

fn bps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

/// A sender's figures; `packets` with those of the omitted time, and none but of UDP.
fn sender_of(bytes: u64, seconds: f64, retransmits: Option<u64>, packets: Option<(u64, u64)>) -> Sender {
    Sender {
        bytes,
        seconds,
        bps: bps(bytes, seconds),
        retransmits: retransmits.filter(|_| packets.is_none()),
        packets: packets.map(|(all, omitted)| all.saturating_sub(omitted)),
        omitted_packets: packets.map(|(_, omitted)| omitted),
    }
}

/// The share of datagrams that were lost: all of them if some were sent and none came.
fn loss_ratio(sent: Option<u64>, lost: u64, of: u64) -> f64 {
    match of {
        0 => f64::from(u8::from(sent.unwrap_or(0) > 0)),
        _ => lost as f64 / of as f64,
    }
}

/// A receiver's datagrams out of pairs of all and the omitted ones.
fn datagrams_of(sent: Option<u64>, packets: (u64, u64), lost: (u64, u64), jitter_s: f64) -> Datagrams {
    let counted = |(all, omitted): (u64, u64)| all.saturating_sub(omitted);
    Datagrams {
        packets: counted(packets),
        lost: counted(lost),
        loss_ratio: loss_ratio(sent, counted(lost), counted(packets)),
        jitter_s,
        omitted_packets: packets.1,
        omitted_lost: lost.1,
        ..Datagrams::default()
    }
}

/// A stream out of what the two ends say of it. `waited`: how long the end was not told after the last byte was sent.
pub(super) fn stream_report(
    protocol: Protocol,
    stream: &Stream,
    own: &StreamTotal,
    far: &StreamResult,
    waited: Duration,
) -> StreamReport {
    // A server that receives goes on counting seconds while the client waits for data in flight.
    let waited = if own.sends { waited.as_secs_f64() } else { 0.0 };
    let far_seconds =
        far.seconds.filter(|s| *s > 0.0).map_or(own.seconds, |s| (s - waited).max(own.seconds.min(s)));
    let udp = protocol == Protocol::Udp;
    let (counts, omitted) = (own.counts, own.omitted);
    let own_packets = udp.then_some((counts.packets, omitted.packets));
    let far_packets = udp.then_some((far.packets, far.omitted_packets));
    let (sender, bytes, seconds, datagrams) = if own.sends {
        let sender = sender_of(own.bytes, own.seconds, own.retransmits, own_packets);
        let lost = (far.errors, far.omitted_errors);
        let datagrams = far_packets.map(|p| datagrams_of(sender.packets, p, lost, far.jitter_s));
        (sender, far.bytes, far_seconds, datagrams)
    } else {
        let sender = sender_of(far.bytes, far_seconds, far.retransmits, far_packets);
        let datagrams = own_packets.map(|p| Datagrams {
            out_of_order: Some(counts.out_of_order - omitted.out_of_order),
            duplicates: Some(counts.duplicates - omitted.duplicates),
            dropped_by_receiver: Some(counts.dropped_here - omitted.dropped_here),
            ..datagrams_of(sender.packets, p, (counts.lost, omitted.lost), counts.jitter_s)
        });
        (sender, own.bytes, own.seconds, datagrams)
    };
    StreamReport {
        id: own.id,
        way: if own.sends { Way::Egress } else { Way::Ingress },
        local: stream.local,
        peer: stream.peer,
        sender,
        receiver: Receiver { bytes, seconds, bps: bps(bytes, seconds), datagrams },
        rtt_us: own.rtt_us,
        max_cwnd_bytes: own.max_cwnd_bytes,
    }
}

/// The streams of one direction together; `None` if there are none.
pub(super) fn total(streams: &[StreamReport], way: Way) -> Option<Total> {
    let mut own = streams.iter().filter(|s| s.way == way);
    let first = own.next()?;
    let mut all = Total { sender: first.sender.clone(), receiver: first.receiver.clone() };
    let mut n = 1.0;
    for s in own {
        n += 1.0;
        let (a, b) = (&mut all.sender, &s.sender);
        a.bytes += b.bytes;
        a.seconds = a.seconds.max(b.seconds);
        a.retransmits = a.retransmits.zip(b.retransmits).map(|(x, y)| x + y);
        a.packets = a.packets.zip(b.packets).map(|(x, y)| x + y);
        a.omitted_packets = a.omitted_packets.zip(b.omitted_packets).map(|(x, y)| x + y);
        let (a, b) = (&mut all.receiver, &s.receiver);
        a.bytes += b.bytes;
        a.seconds = a.seconds.max(b.seconds);
        if let (Some(a), Some(b)) = (&mut a.datagrams, &b.datagrams) {
            add_datagrams(a, b);
        }
    }
    all.sender.bps = bps(all.sender.bytes, all.sender.seconds);
    all.receiver.bps = bps(all.receiver.bytes, all.receiver.seconds);
    if let Some(d) = &mut all.receiver.datagrams {
        d.jitter_s /= n;
        d.loss_ratio = loss_ratio(all.sender.packets, d.lost, d.packets);
    }
    Some(all)
}

fn add_datagrams(a: &mut Datagrams, b: &Datagrams) {
    a.packets += b.packets;
    a.lost += b.lost;
    a.jitter_s += b.jitter_s;
    a.omitted_packets += b.omitted_packets;
    a.omitted_lost += b.omitted_lost;
    let add = |x: Option<u64>, y: Option<u64>| x.zip(y).map(|(x, y)| x + y);
    a.out_of_order = add(a.out_of_order, b.out_of_order);
    a.duplicates = add(a.duplicates, b.duplicates);
    a.dropped_by_receiver = add(a.dropped_by_receiver, b.dropped_by_receiver);
}

/// Each of our streams with what the other end says of it; those of theirs that we do not know are an error, as in iperf3.
pub(super) fn pair<'a>(totals: &[StreamTotal], far: &'a Results) -> Result<Vec<&'a StreamResult>, String> {
    if let Some(unknown) = far.streams.iter().find(|s| totals.iter().all(|t| t.id != s.id)) {
        return Err(format!("results of a stream {} that does not exist", unknown.id));
    }
    let own = |t: &StreamTotal| {
        let result = far.streams.iter().find(|s| s.id == t.id);
        result.ok_or_else(|| format!("no results of stream {}", t.id))
    };
    totals.iter().map(own).collect()
}

impl Report {
    /// How its lines begin.
    pub fn lines(&self, title: Option<String>) -> Lines {
        Lines { protocol: self.protocol, both: self.way == Way::Both, client: true, title }
    }

    /// The summary's lines: sender and receiver of each stream.
    pub fn rows(&self) -> Vec<Row> {
        self.streams.iter().flat_map(StreamReport::rows).collect()
    }
}

impl StreamReport {
    fn rows(&self) -> [Row; 2] {
        let sends = self.way == Way::Egress;
        let (s, r) = (&self.sender, &self.receiver);
        let sender = Row {
            id: Some(self.id),
            sends,
            sender: true,
            seconds: s.seconds,
            bytes: s.bytes,
            retransmits: s.retransmits,
            datagrams: s.packets.map(|packets| (0.0, 0, packets)),
        };
        let receiver = Row {
            sender: false,
            seconds: r.seconds,
            bytes: r.bytes,
            retransmits: None,
            datagrams: r.datagrams.as_ref().map(|d| (d.jitter_s, d.lost, d.packets)),
            ..sender.clone()
        };
        [sender, receiver]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;
    use crate::progress::Counts;
    use crate::streams::Socket;
    use std::net::UdpSocket;

    fn udp(sends: bool) -> Stream {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:9").unwrap();
        Stream::new(0, sends, Socket::Udp(socket), &Parameters::default()).unwrap()
    }

    fn total_of(packets: u64, omitted: u64) -> StreamTotal {
        let counts = |packets| Counts { packets, ..Counts::default() };
        StreamTotal {
            id: 1,
            sends: true,
            bytes: (packets - omitted) * 100,
            counts: counts(packets),
            omitted: counts(omitted),
            seconds: 1.0,
            ..StreamTotal::default()
        }
    }

    fn report(own: &StreamTotal, far: &StreamResult) -> StreamReport {
        stream_report(Protocol::Udp, &udp(own.sends), own, far, Duration::from_millis(40))
    }

    #[test]
    fn packets_and_losses_leave_the_omitted_ones_out() {
        let far = StreamResult {
            id: 1,
            packets: 148,
            errors: 10,
            omitted_packets: 50,
            omitted_errors: 4,
            bytes: 9200,
            seconds: Some(1.04),
            ..StreamResult::default()
        };
        let report = report(&total_of(150, 50), &far);
        assert_eq!((report.sender.packets, report.sender.omitted_packets), (Some(100), Some(50)));
        let datagrams = report.receiver.datagrams.as_ref().unwrap();
        assert_eq!((datagrams.packets, datagrams.lost, datagrams.omitted_lost), (98, 6, 4));
        assert_eq!(datagrams.loss_ratio, 6.0 / 98.0);
        // The server counted for the 40 ms, too, that were only waited.
        assert!((report.receiver.seconds - 1.0).abs() < 1e-9, "{}", report.receiver.seconds);
        assert!((report.receiver.bps - 73_600.0).abs() < 1e-3);
    }

    #[test]
    fn nothing_of_what_was_sent_is_all_lost_and_nothing_of_nothing_is_not() {
        let nothing = StreamResult { id: 1, ..StreamResult::default() };
        let ratio = |own| report(&own, &nothing).receiver.datagrams.unwrap().loss_ratio;
        assert_eq!([ratio(total_of(100, 0)), ratio(total_of(0, 0))], [1.0, 0.0]);
        let streams = [report(&total_of(100, 0), &nothing), report(&total_of(50, 0), &nothing)];
        let all = total(&streams, Way::Egress).unwrap();
        assert_eq!((all.sender.packets, all.receiver.datagrams.unwrap().loss_ratio), (Some(150), 1.0));
        assert_eq!(total(&streams, Way::Ingress), None);
    }

    #[test]
    fn streams_that_nobody_knows_or_nobody_tells_of_are_errors() {
        let results = |ids: &[i64]| Results {
            streams: ids.iter().map(|&id| StreamResult { id, ..StreamResult::default() }).collect(),
            ..Results::default()
        };
        let own = [total_of(1, 0)];
        assert!(pair(&own, &results(&[1])).is_ok());
        assert!(pair(&own, &results(&[1, 3])).unwrap_err().contains("stream 3"));
        assert!(pair(&own, &results(&[])).unwrap_err().contains("no results of stream 1"));
    }
}
