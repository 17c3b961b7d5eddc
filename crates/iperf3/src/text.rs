//! Lines as a person knows them from iperf3.

use std::fmt::Write;

use super::ledger::{Interval, StreamInterval};
use weir_netlink::Protocol;

/// Values that all lines of a test share.
#[derive(Debug, Clone)]
pub struct Lines {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Both ends send: each line says which way it is.
    pub both: bool,
    /// The client's lines; otherwise the server's.
    pub client: bool,
    /// Begins each line.
    pub title: Option<String>,
}

/// One line of a summary.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// iperf3's number of the stream; `None` for the sum.
    pub id: Option<i64>,
    /// The end whose lines these are sends.
    pub sends: bool,
    /// The figures are those of the sending end.
    pub sender: bool,
    /// Length of what counts, seconds.
    pub seconds: f64,
    /// Payload bytes.
    pub bytes: u64,
    /// TCP, sender.
    pub retransmits: Option<u64>,
    /// UDP: jitter in seconds, lost, of how many.
    pub datagrams: Option<(f64, u64, u64)>,
}

const SEPARATOR: &str = "- - - - - - - - - - - - - - - - - - - - - - - - -";

impl Lines {
    fn line(&self, out: &mut String, text: &str) {
        if let Some(title) = &self.title {
            out.push_str(title);
            out.push_str(":  ");
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }

    fn id_header(&self) -> &'static str {
        if self.both { "[ ID][Role] Interval          " } else { "[ ID] Interval          " }
    }

    fn id(&self, id: Option<i64>, sends: bool) -> String {
        let mut text = id.map_or_else(|| "[SUM]".to_owned(), |id| format!("[{id:>3}]"));
        if self.both {
            let end = if self.client { 'C' } else { 'S' };
            let _ = write!(text, "[{}-{end}]", if sends { "TX" } else { "RX" });
        }
        text
    }

    /// The line above the intervals.
    pub fn interval_header(&self, sends: bool) -> String {
        let rest = match (self.protocol, sends) {
            _ if self.both && self.protocol == Protocol::Tcp => "Retr  Cwnd",
            (Protocol::Tcp, true) => "Retr  Cwnd",
            (Protocol::Tcp, false) => "",
            _ if self.both => "Jitter    Lost/Total Datagrams",
            (Protocol::Udp, true) => "Total Datagrams",
            (Protocol::Udp, false) => "Jitter    Lost/Total Datagrams",
        };
        let mut out = String::new();
        self.line(&mut out, &format!("{} Transfer     Bitrate         {rest}", self.id_header()));
        out
    }

    /// One interval: a line for each stream, and their sums where there are several in one direction.
    pub fn interval(&self, interval: &Interval) -> String {
        let mut out = String::new();
        if interval.streams.len() > 1 && interval.start_s > 0.0 {
            self.line(&mut out, SEPARATOR);
        }
        for sends in [true, false] {
            let streams: Vec<_> = interval.streams.iter().filter(|s| s.sends == sends).collect();
            for stream in &streams {
                self.line(&mut out, &self.interval_line(interval, Some(stream.id), stream));
            }
            if streams.len() > 1 {
                self.line(&mut out, &self.interval_line(interval, None, &sum(&streams)));
            }
        }
        out
    }

    fn interval_line(&self, interval: &Interval, id: Option<i64>, s: &StreamInterval) -> String {
        let seconds = interval.end_s - interval.start_s;
        let mut text =
            format!("{} {}", self.id(id, s.sends), span(interval.start_s, interval.end_s, s.bytes, seconds));
        let _ = match (self.protocol, s.sends) {
            (Protocol::Tcp, true) => {
                let retransmits = s.retransmits.map_or_else(|| "-".to_owned(), |n| n.to_string());
                let cwnd = s.cwnd_bytes.map(|b| bytes_text(b as f64)).unwrap_or_default();
                write!(text, "  {retransmits:>3}   {cwnd}")
            }
            (Protocol::Tcp, false) => Ok(()),
            (Protocol::Udp, true) => write!(text, "  {}", s.packets),
            (Protocol::Udp, false) => write!(text, "  {}", losses(s.jitter_s, s.lost, s.packets)),
        };
        if interval.omitted {
            text += "  (omitted)";
        }
        text
    }

    /// The summary: sender's and receiver's figures of each stream, and their sums where there are several in one direction.
    pub fn summary(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        self.line(&mut out, SEPARATOR);
        let rest = if self.protocol == Protocol::Tcp { "Retr" } else { "Jitter    Lost/Total Datagrams" };
        self.line(&mut out, &format!("{} Transfer     Bitrate         {rest}", self.id_header()));
        for row in rows {
            self.line(&mut out, &self.row(row));
        }
        for sends in [true, false] {
            for sender in [true, false] {
                let own: Vec<_> = rows.iter().filter(|r| r.sends == sends && r.sender == sender).collect();
                if own.len() > 1 {
                    self.line(&mut out, &self.row(&sum_rows(&own)));
                }
            }
        }
        out
    }

    fn row(&self, row: &Row) -> String {
        let mut text =
            format!("{} {}", self.id(row.id, row.sends), span(0.0, row.seconds, row.bytes, row.seconds));
        let _ = match (row.retransmits, row.datagrams) {
            (_, Some((jitter_s, lost, packets))) => {
                write!(text, "  {}", losses(jitter_s, lost as i64, packets))
            }
            (Some(n), None) => write!(text, "  {n:>4}"),
            (None, None) => write!(text, "      "),
        };
        text + if row.sender { "             sender" } else { "             receiver" }
    }
}

fn losses(jitter_s: f64, lost: i64, packets: u64) -> String {
    let percent = if packets > 0 { 100.0 * lost as f64 / packets as f64 } else { 0.0 };
    // Two digits that mean something, as C's %.2g.
    let percent = match percent.abs() {
        0.0 => "0".to_owned(),
        p if p >= 9.95 => format!("{percent:.0}"),
        p if p >= 0.995 => format!("{percent:.1}"),
        p if p >= 0.0995 => format!("{percent:.2}"),
        _ => format!("{percent:.3}"),
    };
    format!("{:5.3} ms  {lost}/{packets} ({percent}%)", jitter_s * 1000.0)
}

fn span(start_s: f64, end_s: f64, bytes: u64, seconds: f64) -> String {
    let bps = if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
    format!(
        "{start_s:6.2}-{end_s:<6.2} sec  {:>11}  {:>14}",
        bytes_text(bytes as f64),
        scaled(bps, 1000.0, &["bits/sec", "Kbits/sec", "Mbits/sec", "Gbits/sec", "Tbits/sec"])
    )
}

fn bytes_text(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["Bytes", "KBytes", "MBytes", "GBytes", "TBytes"])
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:4.digits$} {}", units[unit])
}

/// Several streams of one direction as one; RTT and jitter are their means.
pub(super) fn sum(streams: &[&StreamInterval]) -> StreamInterval {
    let mut all = StreamInterval { sends: streams.iter().any(|s| s.sends), ..StreamInterval::default() };
    for s in streams {
        all.bytes += s.bytes;
        all.packets += s.packets;
        all.lost += s.lost;
        all.out_of_order += s.out_of_order;
        all.jitter_s += s.jitter_s / streams.len() as f64;
        all.retransmits = match (all.retransmits, s.retransmits) {
            (a, None) => a,
            (a, Some(n)) => Some(a.unwrap_or(0) + n),
        };
    }
    all
}

pub(super) fn sum_rows(rows: &[&Row]) -> Row {
    let first = rows[0];
    let datagrams = rows.iter().filter_map(|r| r.datagrams).reduce(|a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
    Row {
        id: None,
        sends: first.sends,
        sender: first.sender,
        seconds: rows.iter().map(|r| r.seconds).fold(0.0, f64::max),
        bytes: rows.iter().map(|r| r.bytes).sum(),
        retransmits: rows.iter().filter_map(|r| r.retransmits).reduce(|a, b| a + b),
        datagrams: datagrams.map(|(jitter, lost, of)| (jitter / rows.len() as f64, lost, of)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(protocol: Protocol, both: bool) -> Lines {
        Lines { protocol, both, client: true, title: None }
    }

    #[test]
    fn lines_are_those_of_iperf3() {
        // As iperf3 3.12 printed them, but for the number of the stream.
        let s = StreamInterval {
            id: 5,
            sends: true,
            bytes: 1 << 20,
            retransmits: Some(0),
            cwnd_bytes: Some(320 << 10),
            ..StreamInterval::default()
        };
        let interval = Interval { start_s: 0.0, end_s: 1.0, omitted: false, streams: vec![s] };
        let text = lines(Protocol::Tcp, false).interval(&interval);
        assert_eq!(text, "[  5]   0.00-1.00   sec  1.00 MBytes  8.39 Mbits/sec    0    320 KBytes\n");
        let s = StreamInterval {
            id: 5,
            bytes: 131_072,
            packets: 4,
            lost: 1,
            jitter_s: 0.000_019,
            ..StreamInterval::default()
        };
        let interval = Interval { start_s: 0.0, end_s: 1.0, omitted: true, streams: vec![s] };
        let text = lines(Protocol::Udp, false).interval(&interval);
        assert_eq!(
            text,
            "[  5]   0.00-1.00   sec   128 KBytes  1.05 Mbits/sec  0.019 ms  1/4 (25%)  (omitted)\n"
        );
    }

    #[test]
    fn sums_stand_below_streams_and_ways_are_told_apart() {
        let s = |id, sends| StreamInterval { id, sends, bytes: 125_000, ..StreamInterval::default() };
        let streams = vec![s(1, true), s(3, true), s(4, false), s(5, false)];
        let interval = Interval { start_s: 0.0, end_s: 1.0, omitted: false, streams };
        let text = lines(Protocol::Tcp, true).interval(&interval);
        let begins: Vec<&str> = text.lines().map(|l| &l[..11.min(l.len())]).collect();
        let expected =
            ["[  1][TX-C]", "[  3][TX-C]", "[SUM][TX-C]", "[  4][RX-C]", "[  5][RX-C]", "[SUM][RX-C]"];
        assert_eq!(begins[..6], expected);
        assert!(text.contains("2.00 Mbits/sec"), "{text}");
    }

    #[test]
    fn a_summary_has_both_ends_and_a_title() {
        let row = |sender, bytes| Row {
            id: Some(1),
            sends: true,
            sender,
            seconds: 10.0,
            bytes,
            retransmits: sender.then_some(3),
            datagrams: None,
        };
        let lines = Lines { title: Some("name".into()), ..lines(Protocol::Tcp, false) };
        let text = lines.summary(&[row(true, 1_250_000_000), row(false, 1_249_000_000)]);
        assert!(text.lines().all(|l| l.starts_with("name:  ")), "{text}");
        assert!(text.contains("1.16 GBytes  1.00 Gbits/sec     3             sender"), "{text}");
        assert!(text.contains("999 Mbits/sec"), "{text}");
    }
}
