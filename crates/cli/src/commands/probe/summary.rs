//! What a measurement came to, in words and figures.

use std::time::Duration;

use weir_load::{Direction, FlowFigures, Part, Workload};
use weir_probe::client::Measured;
use weir_stats::Histogram;

use super::Turn;
use super::lines::{bitrate, time, transfer};
use crate::args::probe::Mode;

/// Streams that are shown one by one.
const SHOWN: usize = 32;

/// The value that a measurement is about: its name among the metrics, and how it is written.
pub(super) fn headline(mode: Mode) -> (&'static str, &'static str, fn(f64) -> String) {
    match mode {
        Mode::Tcp | Mode::Udp => ("goodput_bps", "bit rate", bitrate),
        Mode::Latency => ("rtt_mean_ns", "round trip", time),
        Mode::Connect => ("connect_mean_ns", "time to connect", time),
        Mode::Cps => ("transactions_per_second", "connections per second", per_second),
        Mode::Http => ("requests_per_second", "requests per second", per_second),
    }
}

fn per_second(value: f64) -> String {
    format!("{value:.1}/s")
}

/// How long a measurement was to be, and how long it was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length {
    /// What its rates are divided by.
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
    let mut lines = match &measured.workload {
        Workload::TcpStream(w) => streams(measured, w.direction, length),
        Workload::UdpStream(w) => streams(measured, w.direction, length),
        _ => operations(mode, trial),
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

fn received(measured: &Measured, way: Direction, both: bool, length: Length) -> String {
    let trial = &measured.trial;
    let (receiver, sender) = match way {
        Direction::Ingress => (Some(&measured.near), measured.far.as_ref()),
        _ => (measured.far.as_ref(), Some(&measured.near)),
    };
    let value =
        |part: Option<&Part>, name: &str| part.and_then(|p| p.values.get(&format!("{way}_{name}")).copied());
    let name = if both { format!("{way}: ") } else { String::new() };
    let (bits, bps) = length.rated(value(receiver, "goodput_bps").unwrap_or(0.0));
    let bytes = (bits / 8.0) as u64;
    let here = if way == Direction::Ingress { "here" } else { "by the far end" };
    let mut text = format!("{name}received {here}: {}, {}", transfer(bytes), bitrate(bps));
    if matches!(measured.workload, Workload::UdpStream(_)) {
        let (sent, lost) = if both {
            let share = trial.values.get(&format!("{way}_loss_ratio")).copied().unwrap_or(0.0);
            let sent = value(receiver, "sent").unwrap_or(0.0);
            (sent, (share * sent).round())
        } else {
            (trial.value("sent"), trial.value("lost"))
        };
        let share = if sent > 0.0 { lost * 100.0 / sent } else { 0.0 };
        text += &format!("; lost {lost} of {sent} datagrams ({share:.3} %)");
        for (name, word) in [("reordered", "reordered"), ("duplicated", "duplicated")] {
            text += &format!(", {} {word}", value(receiver, name).unwrap_or(0.0));
        }
        text += &format!("; jitter {}", time(value(receiver, "jitter_ns").unwrap_or(f64::NAN)));
        let offered = value(sender, "offered").unwrap_or(0.0);
        return text + &format!("; sender counted {offered} datagrams");
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
    text
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
    text
}

/// Round trips, connects, requests: how many, and how long they took.
fn operations(mode: Mode, trial: &Part) -> Vec<String> {
    let (histogram, done, unit) = match mode {
        Mode::Latency => ("rtt", trial.value("answered"), "round trips"),
        Mode::Connect => ("connect", trial.value("ok"), "connections"),
        Mode::Cps => ("crr", trial.value("ok"), "connections"),
        _ => ("latency", trial.value("ok"), "requests"),
    };
    let mut text = format!("{done} {unit}");
    match mode {
        Mode::Latency => text += &format!(", {} unanswered", trial.value("unanswered")),
        Mode::Connect => text += &failures(trial, "connect_failed_ratio"),
        _ => text += &failures(trial, "failed_ratio"),
    }
    if let Some(rate) = ["transactions_per_second", "requests_per_second", "achieved_per_second"]
        .iter()
        .find_map(|n| trial.values.get(*n))
    {
        text += &format!(", {rate:.1}/s");
    }
    if let Some(h) = trial.histograms.get(histogram).filter(|h| !h.is_empty()) {
        text += &format!("; {}", distribution(h));
    }
    let mut lines = vec![text];
    if let Some(h) = trial.histograms.get("handshake").filter(|h| !h.is_empty()) {
        lines.push(format!("by the kernel's own clock, SYN to SYN-ACK: {}", distribution(h)));
    }
    for (name, words) in [("connect", "of these, to connect"), ("tls", "of these, TLS")] {
        if let Some(h) = trial.histograms.get(name).filter(|h| !h.is_empty() && histogram != name) {
            lines.push(format!("{words}: {}", distribution(h)));
        }
    }
    lines
}

fn failures(trial: &Part, ratio: &str) -> String {
    let share = trial.value(ratio);
    let mut kinds: Vec<String> = Vec::new();
    for (name, n) in trial.values.iter().filter(|(_, n)| **n > 0.0) {
        let known = [
            "refused",
            "reset",
            "unreachable",
            "timed_out",
            "cut_short",
            "foreign",
            "other",
            "status_4xx",
            "status_5xx",
        ];
        if known.contains(&name.as_str()) {
            kinds.push(format!("{n} {}", name.replace('_', " ")));
        }
    }
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    format!(", {:.3} % failed{kinds}", share * 100.0)
}

/// Mean, least, quantiles as far as there are enough values for them, and greatest.
fn distribution(h: &Histogram) -> String {
    let mut text = format!("avg {}, min {}", time(h.mean()), time(h.min() as f64));
    for (name, q) in
        [("50%", 0.5), ("90%", 0.9), ("95%", 0.95), ("99%", 0.99), ("99.9%", 0.999), ("99.99%", 0.9999)]
    {
        if let Some(v) = h.reportable_quantile(q) {
            text += &format!(", {name} {}", time(v as f64));
        }
    }
    text + &format!(", max {}", time(h.max() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_measurement_has_the_rate_of_the_time_that_it_had() {
        let [window, counted] = [10, 2].map(Duration::from_secs);
        // 10 Mbit in 2 s of 10.
        assert_eq!(Length { window, counted }.rated(1e6), (1e7, 5e6));
        assert_eq!(Length { window, counted: window }.rated(1e6), (1e7, 1e6));
        assert_eq!(Length { window, counted: Duration::ZERO }.rated(0.0), (0.0, 0.0));
    }
}
