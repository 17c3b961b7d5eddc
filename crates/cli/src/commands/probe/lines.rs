//! One line per second while it runs, in the columns that a person knows from iperf3, and for round trips from Ethr.

use std::time::Duration;

use weir_load::{Direction, FlowFigures, Workload};
use weir_probe::client::{LiveSnapshot, Span};
use weir_stats::{Censored, Delays};

use crate::args::probe::Mode;
use crate::output::print;

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// Round trips in a window, as Ethr has them.
const WINDOW: usize = 1000;

/// Columns of a terminal that take the widest table; with fewer the columns stand closer.
const WIDE: usize = 116;

/// See the module.
pub(super) struct Lines {
    kind: Kind,
    narrow: bool,
    ways: Vec<Direction>,
    udp: bool,
    warmup: Duration,
    end: Duration,
    shown: bool,
    header: bool,
    /// When the first byte, or operation, was seen.
    begun: Option<Duration>,
    last: Duration,
    before: [Sums; 2],
    /// Times of the window that is being filled, and of the last full one.
    filling: Vec<u64>,
    full: Vec<u64>,
    latest: Option<LiveSnapshot>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stream,
    RoundTrips,
    Operations,
}

/// The sums over all streams of a direction so far.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    bytes: u64,
    retransmits: u64,
    packets: u64,
    lost: u64,
    ok: u64,
    failed: u64,
}

impl Sums {
    fn since(self, before: Sums) -> Sums {
        Sums {
            bytes: self.bytes.saturating_sub(before.bytes),
            retransmits: self.retransmits.saturating_sub(before.retransmits),
            packets: self.packets.saturating_sub(before.packets),
            lost: self.lost.saturating_sub(before.lost),
            ok: self.ok.saturating_sub(before.ok),
            failed: self.failed.saturating_sub(before.failed),
        }
    }
}

impl Lines {
    pub(super) fn new(mode: Mode, workload: &Workload, span: Span, shown: bool) -> Self {
        let kind = match mode {
            Mode::Tcp | Mode::Udp => Kind::Stream,
            Mode::Latency => Kind::RoundTrips,
            Mode::Connect | Mode::Cps | Mode::Http => Kind::Operations,
        };
        let ways = match workload.stream_direction() {
            Some(Direction::Both) => vec![Direction::Egress, Direction::Ingress],
            Some(Direction::Ingress) => vec![Direction::Ingress],
            Some(Direction::Egress) | None => vec![Direction::Egress],
        };
        let columns = weir_sys::terminal::columns(std::io::stdout());
        Lines {
            kind,
            narrow: columns.is_some_and(|n| n < WIDE),
            ways,
            udp: mode == Mode::Udp,
            warmup: span.warmup,
            end: span.warmup + span.duration,
            shown,
            header: false,
            begun: None,
            last: Duration::ZERO,
            before: [Sums::default(); 2],
            filling: Vec::new(),
            full: Vec::new(),
            latest: None,
        }
    }

    /// Takes a new snapshot, and prints a line if one is due.
    pub(super) fn snapshot(&mut self, mut snapshot: LiveSnapshot) {
        self.keep_times(std::mem::take(&mut snapshot.times));
        if self.begun.is_none() {
            let any = snapshot.near.iter().chain(&snapshot.far).any(|f| f.bytes + f.ok + f.failed > 0);
            if !any {
                return;
            }
            self.begun = Some(snapshot.elapsed);
            self.last = snapshot.elapsed;
        }
        // Traffic after the window, while both ends drain, belongs to no line.
        let over = self.begun.is_some_and(|begun| snapshot.elapsed >= begun + self.end);
        let due = snapshot.elapsed >= self.last + EVERY;
        let first_over = over && self.last < self.begun.unwrap_or_default() + self.end;
        if (due && !over) || (first_over && snapshot.elapsed >= self.last + EVERY / 2) {
            self.line(&snapshot);
        }
        self.latest = Some(snapshot);
    }

    /// The measurement is over: what came since the last line has one, if it is more than a moment.
    pub(super) fn finish(&mut self) {
        let Some(snapshot) = self.latest.take() else { return };
        let over = self.begun.is_some_and(|begun| self.last >= begun + self.end);
        if !over && snapshot.elapsed >= self.last + EVERY / 2 {
            self.line(&snapshot);
        }
    }

    fn keep_times(&mut self, times: Vec<u64>) {
        for time in times {
            self.filling.push(time);
            if self.kind == Kind::RoundTrips && self.filling.len() == WINDOW {
                self.full = std::mem::take(&mut self.filling);
            }
        }
    }

    fn line(&mut self, snapshot: &LiveSnapshot) {
        let begun = self.begun.unwrap_or_default();
        let seconds = (snapshot.elapsed - self.last).as_secs_f64();
        let from = self.last.saturating_sub(begun).as_secs_f64();
        let to = snapshot.elapsed.saturating_sub(begun);
        let omitted =
            if to <= self.warmup + EVERY / 2 && !self.warmup.is_zero() { "  (omitted)" } else { "" };
        let to_s = to.as_secs_f64();
        let interval = if self.narrow {
            format!("{from:>5.1}-{to_s:<6.1}")
        } else {
            format!("{from:>7.2}-{to_s:<7.2} sec")
        };
        if !self.header {
            self.header = true;
            self.put(&self.heading());
        }
        match self.kind {
            Kind::Stream => {
                for way in self.ways.clone() {
                    let text = self.stream(snapshot, way, seconds);
                    self.put(&format!("{}{interval}{text}{omitted}", self.tag(way)));
                }
            }
            Kind::RoundTrips => {
                let now = sums(&snapshot.near, Direction::Egress, None);
                let failed = now.since(self.before[0]).failed;
                self.before[0] = now;
                let values = if self.full.is_empty() { &self.filling } else { &self.full };
                let text = format!("{interval} {}{omitted}", window(values, failed, self.narrow));
                self.put(&text);
                if self.full.is_empty() {
                    self.filling.clear();
                }
                self.full.clear();
            }
            Kind::Operations => {
                let now = sums(&snapshot.near, Direction::Egress, None);
                let new = now.since(self.before[0]);
                self.before[0] = now;
                let text = operations(new, &self.filling, seconds, self.narrow);
                self.filling.clear();
                self.put(&format!("{interval} {text}{omitted}"));
            }
        }
        self.last = snapshot.elapsed;
    }

    fn tag(&self, way: Direction) -> &'static str {
        match (self.ways.len(), way) {
            (1, _) => "",
            (_, Direction::Egress) => "[TX] ",
            _ => "[RX] ",
        }
    }

    fn heading(&self) -> String {
        let tag = if self.ways.len() > 1 { "     " } else { "" };
        let wide = if self.narrow { 12 } else { 19 };
        let interval = format!("{:wide$}", "Interval");
        match self.kind {
            Kind::Stream if self.udp => {
                let lost = if self.narrow { "Lost/Total" } else { "Lost/Total Datagrams" };
                format!("{tag}{interval}  {:>13}  {:>15}  {:>10}  {lost}", "Transfer", "Bitrate", "Jitter")
            }
            Kind::Stream => {
                format!("{tag}{interval}  {:>13}  {:>15}  {:>6}  {:>9}", "Transfer", "Bitrate", "Retr", "RTT")
            }
            Kind::RoundTrips => {
                let names = ["Avg", "Min", "50%", "90%", "95%", "99%", "99.9%", "99.99%", "Max"];
                format!("{interval} {}{}", count("n", self.narrow), cells(names, self.narrow))
            }
            Kind::Operations => {
                let names = cells(["Avg", "50%", "99%", "Max"], self.narrow);
                format!("{interval} {:>9} {:>7} {:>11}{names}", "Done", "Failed", "Per second")
            }
        }
    }

    /// The line of one direction: bytes as the sender counts them where it is this end, as the receiver does else.
    fn stream(&mut self, snapshot: &LiveSnapshot, way: Direction, seconds: f64) -> String {
        let slot = usize::from(way == Direction::Ingress);
        let near = sums(&snapshot.near, way, None);
        let far_sends = way == Direction::Ingress;
        // Counts that only one end knows: the sender its retransmits, the receiver the loss.
        let (sender, receiver) =
            if far_sends { (&snapshot.far, &snapshot.near) } else { (&snapshot.near, &snapshot.far) };
        let lost = sums(receiver, way, Some(false));
        let mut now = near;
        now.retransmits = sums(sender, way, Some(true)).retransmits;
        (now.packets, now.lost) = (lost.packets, lost.lost);
        let new = now.since(self.before[slot]);
        self.before[slot] = now;
        let volume =
            format!("  {:>13}  {:>15}", transfer(new.bytes), bitrate(new.bytes as f64 * 8.0 / seconds));
        if self.udp {
            let jitter = mean(receiver.iter().filter(|f| f.way == way).map(|f| f.jitter_ns));
            let total = new.packets + new.lost;
            let share = if total > 0 { new.lost as f64 * 100.0 / total as f64 } else { 0.0 };
            return format!(
                "{volume}  {:>10}  {}/{total} ({share}%)",
                time(jitter),
                new.lost,
                share = Short(share)
            );
        }
        let rtt = mean(sender.iter().filter(|f| f.way == way && f.rtt_ns > 0).map(|f| f.rtt_ns));
        format!("{volume}  {:>6}  {:>9}", new.retransmits, time(rtt))
    }

    fn put(&self, line: &str) {
        if self.shown {
            // weir reports a closed standard output at the end.
            let _ = print(&format!("{line}\n"));
        }
    }
}

fn sums(flows: &[FlowFigures], way: Direction, sends: Option<bool>) -> Sums {
    let mut all = Sums::default();
    for f in flows.iter().filter(|f| f.way == way && sends.is_none_or(|s| f.sends == s)) {
        all.bytes += f.bytes;
        all.retransmits += f.retransmits;
        all.packets += f.packets;
        all.lost += f.lost;
        all.ok += f.ok;
        all.failed += f.failed;
    }
    all
}

fn mean(values: impl Iterator<Item = u64>) -> f64 {
    let (n, sum) = values.fold((0u64, 0u64), |(n, sum), v| (n + 1, sum + v));
    if n == 0 { f64::NAN } else { sum as f64 / n as f64 }
}

/// Formats a window's round trips, in Ethr's order: Avg Min 50% 90% 95% 99% 99.9% 99.99% Max. The quantiles include the round
/// trips that failed since the last line; the number of failures comes last.
fn window(values: &[u64], failed: u64, narrow: bool) -> String {
    let lost = if failed > 0 { format!("  {failed} failed") } else { String::new() };
    if values.is_empty() {
        return format!("{}  no answer{lost}", count(0, narrow));
    }
    let all = delays(values, failed);
    let ended = all.answered();
    let quantiles = [0.5, 0.9, 0.95, 0.99, 0.999, 0.9999].map(|q| quantile(&all, q));
    let first = [ended.mean(), ended.min() as f64].map(time);
    let times = first.into_iter().chain(quantiles).chain([time(ended.max() as f64)]);
    format!("{}{}{lost}", count(values.len(), narrow), cells(times, narrow))
}

fn delays(values: &[u64], failed: u64) -> Delays {
    let mut all = Delays::new();
    values.iter().for_each(|&v| all.record(v));
    all.fail(failed);
    all
}

fn quantile(all: &Delays, q: f64) -> String {
    all.quantile(q).map_or("-".to_owned(), |value| perhaps(value, time))
}

/// A value that perhaps was not seen.
pub(super) fn perhaps(value: Censored, text: fn(f64) -> String) -> String {
    match (value.value.is_finite(), value.known) {
        (false, _) => "failed".to_owned(),
        (true, false) => format!("> {}", text(value.value)),
        (true, true) => text(value.value),
    }
}

/// How many a window has.
fn count(n: impl std::fmt::Display, narrow: bool) -> String {
    let width = if narrow { 4 } else { 6 };
    format!("{n:>width$}")
}

/// Times, or their names, side by side.
fn cells(texts: impl IntoIterator<Item = impl std::fmt::Display>, narrow: bool) -> String {
    let width = if narrow { 6 } else { 9 };
    texts.into_iter().map(|text| format!(" {text:>width$}")).collect()
}

fn operations(new: Sums, times: &[u64], seconds: f64, narrow: bool) -> String {
    let all = delays(times, new.failed);
    let ended = all.answered();
    let (avg, max) = if ended.is_empty() { (f64::NAN, f64::NAN) } else { (ended.mean(), ended.max() as f64) };
    let times = cells([time(avg), quantile(&all, 0.5), quantile(&all, 0.99), time(max)], narrow);
    format!("{:>9} {:>7} {:>11.1}{times}", new.ok, new.failed, new.ok as f64 / seconds)
}

/// Bytes in powers of 1024, as iperf3 has them: `1.10 GBytes`.
pub(super) fn transfer(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["Bytes", "KBytes", "MBytes", "GBytes", "TBytes"])
}

/// Bits per second in powers of 1000, as iperf3 has them: `9.42 Gbits/sec`.
pub(super) fn bitrate(bps: f64) -> String {
    scaled(bps, 1000.0, &["bits/sec", "Kbits/sec", "Mbits/sec", "Gbits/sec", "Tbits/sec"])
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= base * 0.9995 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let decimals = decimals(value, unit);
    format!("{value:.decimals$} {}", units[unit])
}

/// Decimals that make three digits; none in the smallest unit.
fn decimals(value: f64, unit: usize) -> usize {
    if value >= 99.95 || unit == 0 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    }
}

/// A time of ns in a unit in which it has three digits: `41.2us`, as Ethr writes it; `-` if there is none.
pub(super) fn time(ns: f64) -> String {
    if !ns.is_finite() {
        return "-".to_owned();
    }
    let (mut value, mut unit) = (ns, 0);
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = decimals(value, unit);
    format!("{value:.decimals$}{}", UNITS[unit])
}

/// A percentage in two digits that count, as iperf3 writes it.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let decimals = if self.0 == 0.0 || self.0 >= 10.0 {
            0
        } else {
            (1 - self.0.log10().floor() as i32).clamp(0, 6) as usize
        };
        write!(f, "{:.decimals$}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_the_unit_that_fits() {
        for (bytes, text) in
            [(0, "0 Bytes"), (1023, "1023 Bytes"), (1024, "1.00 KBytes"), (1_181_116_006, "1.10 GBytes")]
        {
            assert_eq!(transfer(bytes), text);
        }
        for (bps, text) in [
            (9.42e9, "9.42 Gbits/sec"),
            (94.25e6, "94.2 Mbits/sec"),
            (942e3, "942 Kbits/sec"),
            (999_999.0, "1.00 Mbits/sec"),
        ] {
            assert_eq!(bitrate(bps), text);
        }
        for (ns, text) in
            [(999.0, "999ns"), (41_234.0, "41.2us"), (999_900.0, "1.00ms"), (2.5e9, "2.50s"), (f64::NAN, "-")]
        {
            assert_eq!(time(ns), text);
        }
        for (share, text) in [(0.0, "0"), (0.0123, "0.012"), (4.3, "4.3"), (12.3, "12"), (100.0, "100")] {
            assert_eq!(Short(share).to_string(), text);
        }
    }

    #[test]
    fn a_window_has_ethr_s_columns() {
        let values: Vec<u64> = (1..=1000).map(|i| i * 2000).collect();
        let columns = |narrow| -> Vec<String> {
            window(&values, 0, narrow).split_whitespace().map(str::to_owned).collect()
        };
        // Quantiles of a histogram that is exact to 0.1 % (nearest rank of 2, 4, ... 2000 us).
        assert_eq!(
            columns(false),
            [
                "1000", "1.00ms", "2.00us", "1.00ms", "1.80ms", "1.90ms", "1.98ms", "2.00ms", "2.00ms",
                "2.00ms"
            ]
        );
        assert_eq!(columns(true), columns(false));
        // A tenth more failed: nine tenths of all lie further up, and beyond these are the failed ones.
        let text = window(&values, 111, false);
        let columns: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(columns[4..7], ["2.00ms", "failed", "failed"], "{text}");
        assert!(text.ends_with("  111 failed"), "{text}");
        assert_eq!(window(&[], 3, true).trim(), "0  no answer  3 failed");
    }

    #[test]
    fn tables_fit_into_the_columns_of_a_terminal() {
        for (mode, kind) in [(Mode::Latency, "tcp-rr"), (Mode::Cps, "tcp-crr"), (Mode::Udp, "udp-stream")] {
            let work: Workload = serde_json::from_value(serde_json::json!({ "kind": kind })).unwrap();
            let span = Span { warmup: Duration::ZERO, duration: EVERY };
            for (narrow, most) in [(false, WIDE), (true, 80)] {
                let heading = Lines { narrow, ..Lines::new(mode, &work, span, false) }.heading();
                assert!(heading.len() <= most, "{} columns: {heading}", heading.len());
            }
        }
        // The longest times, and the fullest window, at the columns where the heading has them.
        let line = format!("{:12} {}", "", window(&[999_400_000_000; 1000], 0, true));
        assert_eq!(line.len(), 80, "{line}");
    }
}
