//! The counts of a test's streams over time: second by second, without what is omitted, and in the end.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use weir_load::sockets::TcpInfo;
use weir_sys::sched::CpuUse;

use super::progress::Counts;
use super::results::{Cpu, StreamResult};
use super::streams::Stream;

/// One stream in one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct StreamInterval {
    /// iperf3's number of the stream.
    pub id: i64,
    /// This end sends on it.
    pub sends: bool,
    /// Payload bytes sent or received.
    pub bytes: u64,
    /// Segments sent again (TCP, where this end sends).
    pub retransmits: Option<u64>,
    /// Congestion window at the interval's end, bytes (TCP, where this end sends).
    pub cwnd_bytes: Option<u64>,
    /// Smoothed RTT at the interval's end, us (TCP).
    pub rtt_us: Option<u32>,
    /// Datagrams sent, or by how much the greatest number that came has grown (UDP).
    pub packets: u64,
    /// Datagrams of these that did not come so far. Late ones may bring it below zero (UDP, where this end receives).
    pub lost: i64,
    /// Came after a greater number (UDP, where this end receives).
    pub out_of_order: u64,
    /// The estimator of RFC 1889 at the interval's end, seconds (UDP, where this end receives).
    pub jitter_s: f64,
}

/// One interval of all streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Interval {
    /// From, seconds after the test's begin or, after the omitted time, after its end.
    pub start_s: f64,
    /// Until.
    pub end_s: f64,
    /// Within the omitted time.
    pub omitted: bool,
    /// Each stream.
    pub streams: Vec<StreamInterval>,
}

/// One end's final figures of one of its streams. Bytes exclude the omitted time, packets and losses include it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StreamTotal {
    pub(super) id: i64,
    pub(super) sends: bool,
    pub(super) bytes: u64,
    pub(super) counts: Counts,
    pub(super) omitted: Counts,
    /// TCP where this end sends.
    pub(super) retransmits: Option<u64>,
    pub(super) max_cwnd_bytes: Option<u64>,
    /// Least, mean of the samples, greatest, us (TCP).
    pub(super) rtt_us: Option<(u32, f64, u32)>,
    /// Length of what counts, seconds.
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    id: i64,
    sends: bool,
    /// At the end of the omitted time.
    omitted: Counts,
    /// At the end of the last interval.
    last: Counts,
    retransmits: Option<Retransmits>,
    max_cwnd_bytes: u64,
    rtt_min_us: Option<u32>,
    rtt_max_us: u32,
    rtt_sum_us: f64,
    rtt_samples: u32,
    /// Length of what counts, once it is over.
    length: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Retransmits {
    from: u32,
    last: u32,
    now: u32,
}

/// The book of one test at one end.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Empty once the book is closed.
    streams: Vec<Stream>,
    entries: Vec<Entry>,
    /// Begin of what counts: of the test, or the end of the omitted time.
    from: Instant,
    last: Instant,
    omitting: bool,
    intervals: Vec<Interval>,
    /// Intervals that may be kept, times streams.
    keep: usize,
    left_out: u64,
    length: Option<Duration>,
}

impl Ledger {
    /// Begins the test. The ledger keeps at most `keep` intervals, times streams.
    pub(super) fn begin(streams: Vec<Stream>, omits: bool, keep: usize, now: Instant) -> Ledger {
        let entry = |s: &Stream| {
            let retransmits = s.info().filter(|_| s.sends).map(|i| Retransmits {
                from: i.total_retrans,
                last: i.total_retrans,
                now: i.total_retrans,
            });
            Entry { id: s.id, sends: s.sends, retransmits, ..Entry::default() }
        };
        let entries = streams.iter().map(entry).collect();
        Ledger {
            streams,
            entries,
            from: now,
            last: now,
            omitting: omits,
            intervals: Vec::new(),
            keep,
            left_out: 0,
            length: None,
        }
    }

    /// Intervals so far; of a very long test the first ones.
    pub(super) fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Bytes of one direction since what counts began, as of the last interval.
    pub(super) fn counted_bytes(&self, sent: bool) -> u64 {
        let own = self.entries.iter().filter(|e| e.sends == sent);
        own.map(|e| e.last.bytes - e.omitted.bytes).sum()
    }

    /// Bytes of one direction that have passed by now, from the beginning.
    pub(super) fn moved_bytes(&self, sent: bool) -> u64 {
        let own = self.streams.iter().filter(|s| s.sends == sent);
        own.map(|s| s.counters.counts().bytes).sum()
    }

    /// An interval is over.
    pub(super) fn tick(&mut self, now: Instant) -> Interval {
        let interval = self.turn(now);
        self.keep(&interval);
        interval
    }

    fn keep(&mut self, interval: &Interval) {
        if (self.intervals.len() + 1) * self.entries.len() <= self.keep {
            self.intervals.push(interval.clone());
        } else {
            self.left_out += 1;
        }
    }

    /// Intervals that were not kept, after those that were.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn turn(&mut self, now: Instant) -> Interval {
        let since = |t: Instant| t.saturating_duration_since(self.from).as_secs_f64();
        let (start_s, end_s) = (since(self.last), since(now));
        let pairs = self.streams.iter().zip(&mut self.entries);
        let streams = pairs.map(|(stream, entry)| entry.interval(stream)).collect();
        self.last = now;
        Interval { start_s, end_s, omitted: self.omitting, streams }
    }

    /// The omitted time is over: what counts begins. Returns the interval that ends with it.
    pub(super) fn omit(&mut self, now: Instant) -> Interval {
        let interval = self.tick(now);
        self.omitting = false;
        self.from = now;
        for entry in &mut self.entries {
            entry.omitted = entry.last;
            if let Some(r) = &mut entry.retransmits {
                r.from = r.now;
            }
        }
        interval
    }

    /// The senders have ended; the receivers may go on.
    pub(super) fn sent(&mut self, now: Instant) {
        for entry in self.entries.iter_mut().filter(|e| e.sends) {
            entry.length.get_or_insert(now.saturating_duration_since(self.from));
        }
    }

    /// The test is over: the last interval, if it is worth one. Counts do not change any more.
    pub(super) fn close(&mut self, now: Instant) -> Option<Interval> {
        if self.length.is_some() {
            return None;
        }
        let short = now.saturating_duration_since(self.last) < Duration::from_millis(100);
        let before = self.counted_all();
        let interval = self.turn(now);
        let length = now.saturating_duration_since(self.from);
        self.length = Some(length);
        for entry in &mut self.entries {
            entry.length.get_or_insert(length);
        }
        self.streams.clear();
        // As iperf3: a short rest in which nothing came is no interval.
        let only = self.intervals.is_empty() && self.left_out == 0;
        if short && !only && self.counted_all() == before {
            return None;
        }
        self.keep(&interval);
        Some(interval)
    }

    fn counted_all(&self) -> u64 {
        self.entries.iter().map(|e| e.last.bytes).sum()
    }

    /// Length of what counts to the very end, seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.length.unwrap_or_default().as_secs_f64()
    }

    /// Each stream in the end, after [`Ledger::close`].
    pub(super) fn totals(&self) -> Vec<StreamTotal> {
        let total = |e: &Entry| StreamTotal {
            id: e.id,
            sends: e.sends,
            bytes: e.last.bytes - e.omitted.bytes,
            counts: e.last,
            omitted: e.omitted,
            retransmits: e.retransmits.map(|r| r.now.wrapping_sub(r.from).into()),
            max_cwnd_bytes: (e.max_cwnd_bytes > 0).then_some(e.max_cwnd_bytes),
            rtt_us: e
                .rtt_min_us
                .map(|min| (min, e.rtt_sum_us / f64::from(e.rtt_samples.max(1)), e.rtt_max_us)),
            seconds: e.length.unwrap_or_default().as_secs_f64(),
        };
        self.entries.iter().map(total).collect()
    }

    /// The totals as they go over the wire.
    pub(super) fn results(&self) -> Vec<StreamResult> {
        let result = |t: StreamTotal| StreamResult {
            id: t.id,
            bytes: t.bytes,
            retransmits: t.retransmits,
            jitter_s: t.counts.jitter_s,
            errors: t.counts.lost,
            omitted_errors: t.omitted.lost,
            packets: t.counts.packets,
            omitted_packets: t.omitted.packets,
            seconds: Some(t.seconds),
        };
        self.totals().into_iter().map(result).collect()
    }
}

impl Entry {
    fn interval(&mut self, stream: &Stream) -> StreamInterval {
        let counts = stream.counters.counts();
        let mut interval = StreamInterval {
            id: stream.id,
            sends: stream.sends,
            bytes: counts.bytes - self.last.bytes,
            packets: counts.packets - self.last.packets,
            lost: counts.lost as i64 - self.last.lost as i64,
            out_of_order: counts.out_of_order - self.last.out_of_order,
            jitter_s: counts.jitter_s,
            ..StreamInterval::default()
        };
        self.last = counts;
        if let Some(info) = stream.info() {
            self.sample(&info, &mut interval);
        }
        interval
    }

    fn sample(&mut self, info: &TcpInfo, interval: &mut StreamInterval) {
        let rtt_us = if interval.sends { info.rtt_us } else { info.rcv_rtt_us };
        if rtt_us > 0 {
            interval.rtt_us = Some(rtt_us);
            self.rtt_min_us = Some(self.rtt_min_us.map_or(rtt_us, |m| m.min(rtt_us)));
            self.rtt_max_us = self.rtt_max_us.max(rtt_us);
            self.rtt_sum_us += f64::from(rtt_us);
            self.rtt_samples += 1;
        }
        if let Some(r) = &mut self.retransmits {
            r.now = info.total_retrans;
            interval.retransmits = Some(r.now.wrapping_sub(r.last).into());
            r.last = r.now;
            let cwnd = u64::from(info.snd_cwnd) * u64::from(info.snd_mss);
            interval.cwnd_bytes = Some(cwnd);
            self.max_cwnd_bytes = self.max_cwnd_bytes.max(cwnd);
        }
    }
}

/// CPU time as iperf3 tells it: of the time that passed, on one core.
pub(super) fn cpu_percent(used: CpuUse, passed: Duration) -> Cpu {
    let percent = |d: Duration| 100.0 * d.as_secs_f64() / passed.as_secs_f64().max(1e-6);
    Cpu {
        total_percent: percent(used.total()),
        user_percent: percent(used.user),
        system_percent: percent(used.system),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;
    use crate::streams::Socket;
    use std::net::UdpSocket;

    fn stream() -> Stream {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:9").unwrap();
        Stream::new(0, false, Socket::Udp(socket), &Parameters::default()).unwrap()
    }

    fn counts(bytes: u64, packets: u64, lost: u64) -> Counts {
        Counts { bytes, packets, lost, ..Counts::default() }
    }

    #[test]
    fn intervals_add_up_and_leave_the_omitted_time_out() {
        let stream = stream();
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut ledger = Ledger::begin(vec![stream.clone()], true, 10, begun);
        stream.counters.set(counts(1000, 12, 2));
        let omitted = ledger.omit(at(1000));
        assert!(omitted.omitted && omitted.streams[0].bytes == 1000 && omitted.end_s == 1.0);
        stream.counters.set(counts(1700, 20, 3));
        assert_eq!(ledger.tick(at(2000)).streams[0].lost, 1);
        // A late one takes a loss back.
        stream.counters.set(counts(1800, 20, 2));
        // Nothing is sent here: this changes nothing.
        ledger.sent(at(2100));
        let last = ledger.close(at(2500)).unwrap();
        assert_eq!((last.start_s, last.end_s, last.streams[0].lost), (1.0, 1.5, -1));
        assert_eq!(ledger.seconds(), 1.5);
        let result = ledger.results()[0];
        assert_eq!((result.bytes, result.packets, result.errors), (800, 20, 2));
        assert_eq!((result.omitted_packets, result.omitted_errors), (12, 2));
        assert!(ledger.close(at(9000)).is_none() && ledger.seconds() == 1.5);
    }

    #[test]
    fn a_short_rest_without_bytes_is_no_interval() {
        let stream = stream();
        let begun = Instant::now();
        let mut ledger = Ledger::begin(vec![stream.clone()], false, 10, begun);
        stream.counters.set(counts(5, 1, 0));
        ledger.tick(begun + Duration::from_secs(1));
        assert!(ledger.close(begun + Duration::from_millis(1050)).is_none());
        assert_eq!(ledger.intervals().len(), 1);
        assert_eq!(ledger.seconds(), 1.05);
    }

    #[test]
    fn what_is_kept_of_a_long_test_is_bounded() {
        let stream = stream();
        let begun = Instant::now();
        let mut ledger = Ledger::begin(vec![stream.clone(), stream.clone()], false, 7, begun);
        for n in 1..=5 {
            stream.counters.set(counts(n, n, 0));
            assert_eq!(ledger.tick(begun + Duration::from_secs(n)).streams[1].bytes, 1);
        }
        assert_eq!((ledger.intervals().len(), ledger.left_out()), (3, 2));
        assert!(ledger.close(begun + Duration::from_secs(6)).is_some());
        assert_eq!((ledger.intervals().len(), ledger.left_out(), ledger.totals()[0].bytes), (3, 3, 5));
    }

    #[test]
    fn cpu_time_is_told_in_percent_of_one_core() {
        let used = CpuUse { user: Duration::from_millis(500), system: Duration::from_millis(1500) };
        let cpu = cpu_percent(used, Duration::from_secs(1));
        assert_eq!((cpu.total_percent, cpu.user_percent, cpu.system_percent), (200.0, 50.0, 150.0));
    }
}
