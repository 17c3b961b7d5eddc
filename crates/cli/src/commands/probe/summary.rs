//! The result of a measurement, in words and figures.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_load::http::FAILURES;
use weir_load::{Direction, FlowFigures, Part, Workload};
use weir_probe::client::Measured;
use weir_stats::{Censored, Delays};

use super::Turn;
use super::lines::{bitrate, perhaps, time, transfer};
use crate::args::probe::Mode;

/// Streams that are shown one by one.
const SHOWN: usize = 32;

/// The value that a measurement is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headline {
    /// By which the repeats name it.
    pub(super) name: &'static str,
    /// For people.
    pub(super) words: &'static str,
    /// How it is written.
    text: fn(f64) -> String,
    source: Source,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    /// The metric of that name: what came through, by the time of the whole window.
    Rate,
    /// The median of the histogram of that name, over all operations.
    Median(&'static str),
}

impl Headline {
    pub(super) fn of(mode: Mode) -> Headline {
        let rate = |name, words, text| Headline { name, words, text, source: Source::Rate };
        let median =
            |name, words, histogram| Headline { name, words, text: time, source: Source::Median(histogram) };
        match mode {
            Mode::Tcp | Mode::Udp => rate("goodput_bps", "bit rate", bitrate),
            Mode::Latency => median("rtt_p50_ns", "median round trip", "rtt"),
            Mode::Connect => median("connect_p50_ns", "median time to connect", "connect"),
            Mode::Cps => rate("transactions_per_second", "connections per second", per_second),
            Mode::Http => rate("requests_per_second", "requests per second", per_second),
        }
    }

    /// Its value; infinite where more than half of the operations failed, 0 where nothing came through, and `None` only where nothing
    /// was tried.
    pub(super) fn value(&self, seen: Counted<'_>) -> Option<Censored> {
        match self.source {
            Source::Rate => Some(seen.values.get(self.name).copied().unwrap_or(0.0).into()),
            Source::Median(histogram) => seen.histograms.get(histogram)?.quantile(0.5),
        }
    }

    /// True if anything came through.
    pub(super) fn came_through(&self, seen: Counted<'_>) -> bool {
        match self.source {
            Source::Rate => seen.values.get(self.name).is_some_and(|rate| *rate > 0.0),
            Source::Median(histogram) => {
                seen.histograms.get(histogram).is_some_and(|all| !all.answered().is_empty())
            }
        }
    }

    /// A value as people read it.
    pub(super) fn text(&self, value: Censored) -> String {
        perhaps(value, self.text)
    }
}

/// The figures of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted<'a> {
    pub(super) values: &'a BTreeMap<String, f64>,
    pub(super) histograms: &'a BTreeMap<String, Delays>,
}

fn per_second(value: f64) -> String {
    format!("{value:.1}/s")
}

/// How long a measurement was to be, and how long it was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length {
    /// The time by which its rates are divided.
    pub(super) window: Duration,
    /// Less where it was interrupted.
    pub(super) counted: Duration,
}

impl Length {
    /// Bits, and bits per second of the time that was counted, of a rate over the whole window.
    fn rated(self, bps: f64) -> (f64, f64) {
        let bits = bps * self.window.as_secs_f64();
        let seconds = self.counted.as_secs_f64();
        (bits, if seconds > 0.0 { bits / seconds } else { 0.0 })
    }
}

/// The lines of one measurement.
pub(super) fn of(mode: Mode, measured: &Measured, turn: Turn, length: Length) -> Vec<String> {
    let trial = &measured.trial;
    let mut lines = match measured.workload.stream_direction() {
        Some(direction) => streams(measured, direction, length),
        None => operations(mode, trial),
    };
    // A repeat is one line of a table to come.
    if matches!(turn, Turn::Repeat(_)) {
        lines.truncate(1);
        return lines;
    }
    let far = measured.far.as_ref().map(|far| format!(", {:.2} s there", far.cpu_s)).unwrap_or_default();
    lines.push(format!("CPU of the measuring threads: {:.2} s here{far}", measured.near.cpu_s));
    lines
}

/// Bulk traffic: the receiver's count is what counts, the sender's is beside it.
fn streams(measured: &Measured, direction: Direction, length: Length) -> Vec<String> {
    let mut lines = Vec::new();
    let ways = match direction {
        Direction::Both => vec![Direction::Egress, Direction::Ingress],
        one => vec![one],
    };
    for way in &ways {
        lines.push(received(measured, *way, ways.len() > 1, length));
    }
    let udp = matches!(measured.workload, Workload::UdpStream(_));
    let stranded = stranded(measured);
    if let (true, Some(first)) = (stranded > 0, lines.first_mut()) {
        let of = measured.near_flows.len();
        *first = format!("{stranded} of {of} streams brought nothing through; {first}");
    }
    let mut flows: Vec<(&FlowFigures, Option<&FlowFigures>)> = Vec::new();
    for near in &measured.near_flows {
        let far = measured.far_flows.iter().find(|f| f.way == near.way && f.number == near.number);
        flows.push((near, far));
    }
    if flows.len() > 1 {
        lines.extend(flows.iter().take(SHOWN).map(|(near, far)| stream(near, *far, udp)));
        if flows.len() > SHOWN {
            lines.push(format!("  and {} more streams: --json has all", flows.len() - SHOWN));
        }
    }
    lines
}

/// Streams of which the receiver, where it told, counted nothing.
fn stranded(measured: &Measured) -> usize {
    let receives = |near: &&FlowFigures| {
        let far = || measured.far_flows.iter().find(|f| f.way == near.way && f.number == near.number);
        let receiver = if near.sends { far() } else { Some(*near) };
        receiver.is_some_and(|receiver| receiver.bytes == 0)
    };
    measured.near_flows.iter().filter(receives).count()
}

fn received(measured: &Measured, way: Direction, both: bool, length: Length) -> String {
    let trial = &measured.trial;
    let (receiver, sender) = match way {
        Direction::Ingress => (Some(&measured.near), measured.far.as_ref()),
        Direction::Egress | Direction::Both => (measured.far.as_ref(), Some(&measured.near)),
    };
    let value =
        |part: Option<&Part>, name: &str| part.and_then(|p| p.values.get(&format!("{way}_{name}")).copied());
    let name = if both { format!("{way}: ") } else { String::new() };
    let (bits, bps) = length.rated(value(receiver, "goodput_bps").unwrap_or(0.0));
    let bytes = (bits / 8.0) as u64;
    let here = if way == Direction::Ingress { "here" } else { "by the far end" };
    let mut text = format!("received {here}: {}, {}", transfer(bytes), bitrate(bps));
    if matches!(measured.workload, Workload::UdpStream(_)) {
        let (sent, lost) = if both {
            let share = trial.values.get(&format!("{way}_loss_ratio")).copied().unwrap_or(0.0);
            let sent = value(receiver, "sent").unwrap_or(0.0);
            (sent, (share * sent).round())
        } else {
            (trial.value("sent"), trial.value("lost"))
        };
        let share = if sent > 0.0 { lost * 100.0 / sent } else { 0.0 };
        let loss = format!("lost {lost} of {sent} datagrams ({share:.3} %)");
        text = if lost > 0.0 { format!("{loss}; {text}") } else { format!("{text}; {loss}") };
        for (name, word) in [("reordered", "reordered"), ("duplicated", "duplicated")] {
            text += &format!(", {} {word}", value(receiver, name).unwrap_or(0.0));
        }
        text += &format!("; jitter {}", time(value(receiver, "jitter_ns").unwrap_or(f64::NAN)));
        let offered = value(sender, "offered").unwrap_or(0.0);
        return format!("{name}{text}; sender counted {offered} datagrams");
    }
    let flows = if way == Direction::Ingress { &measured.far_flows } else { &measured.near_flows };
    let sent: u64 = flows.iter().filter(|f| f.way == way && f.sends).map(|f| f.bytes).sum();
    text += &format!(
        "; sender: {} with warm-up and what was under way, {} retransmits, RTT {} mean, {} least",
        transfer(sent),
        value(sender, "retransmits").unwrap_or(0.0),
        time(value(sender, "rtt_mean_ns").unwrap_or(f64::NAN)),
        time(value(sender, "rtt_min_ns").unwrap_or(f64::NAN)),
    );
    format!("{name}{text}")
}

/// One of several streams, from its begin to its end.
fn stream(near: &FlowFigures, far: Option<&FlowFigures>, udp: bool) -> String {
    let (sender, receiver) = if near.sends { (Some(near), far) } else { (far, Some(near)) };
    let arrow = if near.way == Direction::Egress { "->" } else { "<-" };
    let bytes = |f: Option<&FlowFigures>| f.map_or("unknown".to_owned(), |f| transfer(f.bytes));
    let mut text =
        format!("  [{:3}] {arrow} sent {:>12}, received {:>12}", near.number, bytes(sender), bytes(receiver));
    match (udp, sender, receiver) {
        (false, Some(sender), _) => {
            text += &format!(", {} retransmits, RTT {}", sender.retransmits, time(sender.rtt_ns as f64));
        }
        (true, _, Some(receiver)) => {
            text += &format!(", {} lost, {} reordered", receiver.lost, receiver.reordered);
        }
        _ => {}
    }
    match receiver {
        Some(receiver) if receiver.bytes == 0 => text + ", nothing came through",
        _ => text,
    }
}

/// Round trips, connects, requests: what failed, how many were done, and how long all of them took.
fn operations(mode: Mode, trial: &Part) -> Vec<String> {
    let (histogram, done, unit) = match mode {
        Mode::Latency => ("rtt", trial.value("answered"), "round trips"),
        Mode::Connect => ("connect", trial.value("ok"), "connections"),
        Mode::Cps => ("crr", trial.value("ok"), "connections"),
        Mode::Tcp | Mode::Udp | Mode::Http => ("latency", trial.value("ok"), "requests"),
    };
    let all = trial.histograms.get(histogram).filter(|h| !h.is_empty());
    let mut text = all.and_then(|all| failures(all, trial)).unwrap_or_default();
    text += &format!("{done} {unit}");
    if let Some(rate) = ["transactions_per_second", "requests_per_second", "achieved_per_second"]
        .iter()
        .find_map(|n| trial.values.get(*n))
    {
        text += &format!(", {rate:.1}/s");
    }
    if let Some(all) = all {
        text += &format!("; {}", distribution(all));
    }
    let mut lines = vec![text];
    if let Some(h) = trial.histograms.get("handshake").filter(|h| !h.is_empty()) {
        lines.push(format!(
            "by the kernel's own clock, SYN to SYN-ACK, of those that were answered: {}",
            distribution(h)
        ));
    }
    for (name, words) in [("connect", "of these, to connect"), ("tls", "of these, TLS")] {
        if let Some(h) = trial.histograms.get(name).filter(|h| !h.is_empty() && histogram != name) {
            lines.push(format!("{words}: {}", distribution(h)));
        }
    }
    // The cause is a server's choice, or a hop that cuts connections: the client cannot tell.
    let resent = trial.value("resent");
    if resent > 0.0 {
        lines.push(format!(
            "{resent} requests were sent again: their connection ended before the answer began"
        ));
    }
    lines
}

/// Counters of failures, without those of HTTP.
const KINDS: [&str; 5] = ["refused", "unreachable", "foreign", "unfinished", "cut"];

/// `10.3 % failed (3 of 29: 2 refused, 1 timed out); `; nothing if all ended well.
fn failures(all: &Delays, trial: &Part) -> Option<String> {
    let (bad, of) = (all.unanswered(), all.len());
    if bad == 0 {
        return None;
    }
    let kinds: Vec<String> = KINDS
        .iter()
        .chain(&FAILURES)
        .map(|name| (name, trial.value(name)))
        .filter(|(_, n)| *n > 0.0)
        .map(|(name, n)| format!("{n} {}", name.replace('_', " ")))
        .collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    Some(format!("{:.3} % failed ({bad} of {of}{kinds}); ", bad as f64 * 100.0 / of as f64))
}

/// Quantiles of all operations, as far as there are enough of them; the mean and the like only of those that ended.
fn distribution(all: &Delays) -> String {
    let quantiles =
        [("50%", 0.5), ("90%", 0.9), ("95%", 0.95), ("99%", 0.99), ("99.9%", 0.999), ("99.99%", 0.9999)];
    let quantile = |(name, q)| Some(format!("{name} {}", perhaps(all.reportable_quantile(q)?, time)));
    let mut parts: Vec<String> = quantiles.into_iter().filter_map(quantile).collect();
    let ended = all.answered();
    if !ended.is_empty() {
        let whom = match all.unanswered() {
            0 => String::new(),
            _ => format!("of the {} that ended: ", ended.len()),
        };
        let [mean, sd, least, most] =
            [ended.mean(), ended.sd(), ended.min() as f64, ended.max() as f64].map(time);
        parts.push(format!("{whom}avg {mean}, sd {sd}, min {least}, max {most}"));
    }
    if parts.is_empty() { "none ended".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ended: u64, failed: u64, open: u64) -> Part {
        let mut all = Delays::new();
        (0..ended).for_each(|_| all.record(40_000));
        (0..open).for_each(|_| all.record_open(3_000_000_000));
        all.fail(failed);
        let mut part = Part::default();
        part.set("ok", ended as f64);
        part.set("refused", failed as f64);
        part.set("timed_out", open as f64);
        part.histograms.insert("connect".into(), all);
        part
    }

    #[test]
    fn what_failed_stands_first_and_in_the_percentiles() {
        assert_eq!(
            operations(Mode::Connect, &part(80, 10, 10)),
            [
                "20.000 % failed (20 of 100: 10 refused, 10 timed out); 80 connections; 50% 40.0us, 90% > 3.00s, \
              of the 80 that ended: avg 40.0us, sd 0ns, min 40.0us, max 40.0us"
            ]
        );
        assert_eq!(
            operations(Mode::Connect, &part(40, 60, 0)),
            ["60.000 % failed (60 of 100: 60 refused); 40 connections; 50% failed, 90% failed, \
              of the 40 that ended: avg 40.0us, sd 0ns, min 40.0us, max 40.0us"]
        );
        assert_eq!(
            operations(Mode::Connect, &part(100, 0, 0)),
            ["100 connections; 50% 40.0us, 90% 40.0us, avg 40.0us, sd 0ns, min 40.0us, max 40.0us"]
        );
        assert_eq!(
            operations(Mode::Connect, &part(0, 3, 0)),
            ["100.000 % failed (3 of 3: 3 refused); 0 connections; none ended"]
        );
    }

    #[test]
    fn requests_that_were_sent_again_have_a_line() {
        let mut trial = part(10, 0, 0);
        assert_eq!(operations(Mode::Connect, &trial).len(), 1);
        trial.set("resent", 3.0);
        let last = operations(Mode::Connect, &trial).pop().unwrap();
        assert_eq!(last, "3 requests were sent again: their connection ended before the answer began");
    }

    #[test]
    fn the_headline_is_of_all_operations() {
        let value = |part: &Part| {
            let seen = Counted { values: &part.values, histograms: &part.histograms };
            let headline = Headline::of(Mode::Connect);
            let text = headline.value(seen).map(|value| headline.text(value));
            (text.unwrap_or_default(), headline.came_through(seen))
        };
        assert_eq!(value(&part(80, 20, 0)), ("40.0us".into(), true));
        assert_eq!(value(&part(40, 60, 0)), ("failed".into(), true));
        assert_eq!(value(&part(0, 1, 2)), ("> 3.00s".into(), false));
        assert_eq!(value(&part(0, 0, 0)), (String::new(), false));
        let dead = Part::default();
        let seen = Counted { values: &dead.values, histograms: &dead.histograms };
        let rate = Headline::of(Mode::Tcp);
        assert_eq!((rate.value(seen), rate.came_through(seen)), (Some(0.0.into()), false));
    }

    #[test]
    fn an_interrupted_measurement_has_the_rate_of_the_time_that_it_had() {
        let [window, counted] = [10, 2].map(Duration::from_secs);
        // 10 Mbit in 2 s of 10.
        assert_eq!(Length { window, counted }.rated(1e6), (1e7, 5e6));
        assert_eq!(Length { window, counted: window }.rated(1e6), (1e7, 1e6));
        assert_eq!(Length { window, counted: Duration::ZERO }.rated(0.0), (0.0, 0.0));
    }
}
