//! The results of one connection's transactions.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_record::{Fault, FaultCode};
use weir_stats::Delays;

use crate::latency::Span;
use crate::latency::schedule::Kept;
use crate::latency::windows::Windows;
use crate::observer::{Flow, Times};
use crate::window::CpuMeter;
use crate::{Direction, Part, TrialSettings};

/// Why a connection's loop ended before its time, in words.
pub(super) type Gone = String;

/// One connection over the measuring window. Everything here counts transactions that were started in the window
/// (open loop: were meant to start), even if their answer came after it.
#[derive(Debug)]
pub(super) struct FlowCounts {
    pub(super) span: Span,
    times: Times,
    flow: Arc<Flow>,
    pub(super) rtt: Delays,
    pub(super) windows: Windows,
    cpu: CpuMeter,
    pub(super) attempted: u64,
    /// No answer within the time limit, or a refusal.
    pub(super) unanswered: u64,
    /// Since when the connection let nothing through any more, ns; from then on it asked for nothing, too.
    pub(super) dead_ns: Option<u64>,
    /// Still open when the trial was stopped early.
    pub(super) cut: u64,
    /// Answers after the limit, and second answers.
    pub(super) stray: u64,
    /// Requests that the own kernel refused to take (ENOBUFS, full send buffer).
    pub(super) refused_by_kernel: u64,
    /// Datagrams that did arrive and were dropped for lack of room in the socket.
    pub(super) receiver_drops: u64,
    pub(super) kept: Option<Kept>,
    pub(super) gone: Option<Gone>,
    /// When the loop was left, ns.
    pub(super) left_ns: u64,
}

impl FlowCounts {
    pub(super) fn new(span: Span, window: usize, setting: &TrialSettings, nth: usize) -> Self {
        let number = u32::try_from(nth).unwrap_or(u32::MAX);
        FlowCounts {
            span,
            times: Times::new(&setting.observer),
            flow: setting.observer.flow(Direction::Egress, number, true),
            rtt: Delays::new(),
            windows: Windows::new(window),
            cpu: CpuMeter::default(),
            attempted: 0,
            unanswered: 0,
            dead_ns: None,
            cut: 0,
            stray: 0,
            refused_by_kernel: 0,
            receiver_drops: 0,
            kept: None,
            gone: None,
            left_ns: 0,
        }
    }

    /// To be called with every reading of the clock.
    #[inline]
    pub(super) fn look(&mut self, now_ns: u64) {
        self.cpu.look(self.span.phase(now_ns));
        self.flow.failed.set(self.unanswered);
    }

    /// A transaction that counts was answered.
    #[inline]
    pub(super) fn answered(&mut self, start_ns: u64, rtt_ns: u64) {
        self.rtt.record(rtt_ns);
        self.windows.push(start_ns, rtt_ns);
        self.times.push(start_ns, rtt_ns);
        self.flow.ok.add(1);
    }
}

impl FlowCounts {
    /// A transaction that began before the window was answered behind it: all that the window saw was waiting for this answer.
    pub(super) fn outlasted(&mut self, rtt_ns: u64) {
        self.attempted += 1;
        self.rtt.record(rtt_ns);
        self.flow.ok.add(1);
    }

    /// A transaction that counts had no answer, `age_ns` after it was meant to start.
    pub(super) fn unanswered(&mut self, age_ns: u64) {
        self.unanswered += 1;
        self.rtt.record_open(age_ns);
    }

    /// A transaction that counts was refused: no answer will come.
    pub(super) fn refused(&mut self) {
        self.unanswered += 1;
        self.rtt.fail(1);
    }

    /// A transaction that counts was still waited for when the trial was stopped.
    pub(super) fn cut(&mut self, age_ns: u64) {
        self.cut += 1;
        self.rtt.record_open(age_ns);
    }

    /// The connection never stood.
    pub(super) fn never_stood(mut self, why: Gone) -> Self {
        self.dead_ns = Some(self.span.begin_ns);
        self.left_ns = self.span.end_ns;
        self.gone = Some(why);
        self
    }

    /// The time in the window for which it was asked, and for which it was dead, s.
    fn alive_and_dead_s(&self) -> (f64, f64) {
        // No request was answered, so the connection was dead from the start.
        let silent = self.unanswered > 0 && self.rtt.answered().is_empty();
        let from = if silent { Some(self.span.begin_ns) } else { self.dead_ns };
        let window_s = self.span.elapsed_s(self.left_ns.max(from.map_or(0, |_| self.span.end_ns)));
        let alive_s = from.map_or(window_s, |from| self.span.elapsed_s(from));
        (alive_s, window_s - alive_s)
    }
}

/// Transactions that the dead connections of a closed loop would have made, at the pace of those that were answered: each
/// connection then weighs the same, and a hop that kills half of them fails half of the transactions. At least one for each.
fn not_asked(tallies: &[FlowCounts]) -> Vec<u64> {
    let times: Vec<(f64, f64)> = tallies.iter().map(FlowCounts::alive_and_dead_s).collect();
    let alive_s: f64 = times.iter().map(|(alive, _)| alive).sum();
    let answered: u64 = tallies.iter().map(|tally| tally.rtt.answered().len()).sum();
    let pace = if alive_s > 0.0 { answered as f64 / alive_s } else { 0.0 };
    let missing = |(tally, (_, dead_s)): (&FlowCounts, &(f64, f64))| {
        let wanted = (pace * dead_s).round() as u64;
        // The requests that it sent meanwhile are already counted.
        let least = u64::from(tally.dead_ns.is_some() && tally.attempted == 0);
        wanted.saturating_sub(tally.unanswered).max(least)
    };
    tallies.iter().zip(&times).map(missing).collect()
}

/// The initiator's part: all connections together.
pub(super) fn part_of(tallies: Vec<FlowCounts>) -> Part {
    let mut part = Part::default();
    let mut rtt = Delays::new();
    // On a schedule it is known what was due.
    if tallies.iter().all(|tally| tally.kept.is_none()) {
        let missing: u64 = not_asked(&tallies).into_iter().sum();
        rtt.fail(missing);
        part.set("not_asked", missing as f64);
    }
    let dead = tallies.iter().filter(|tally| tally.gone.is_some()).count();
    part.set("dead_connections", dead as f64);
    let mut kept: Option<Kept> = None;
    let mut values: BTreeMap<&str, u64> = BTreeMap::new();
    let mut window_s = 0f64;
    for (nth, tally) in tallies.into_iter().enumerate() {
        part.cpu_s += tally.cpu.seconds();
        window_s = window_s.max(tally.span.elapsed_s(tally.left_ns));
        for (name, n) in [
            ("attempted", tally.attempted),
            ("answered", tally.rtt.answered().len()),
            ("unanswered", tally.unanswered),
            ("cut", tally.cut),
            ("stray_replies", tally.stray),
            ("send_refused", tally.refused_by_kernel),
            ("receiver_drops", tally.receiver_drops),
            ("windows", tally.windows.count() as u64),
        ] {
            *values.entry(name).or_default() += n;
        }
        rtt.merge(&tally.rtt);
        if let Some(own) = &tally.kept {
            kept.get_or_insert_default().merge(own);
        }
        if let Some(reason) = &tally.gone {
            let detail = format!("connection {nth}: {reason}");
            part.faults.push(Fault::noted(FaultCode::ConnectionFailed, "initiator", detail));
        }
        let origin_ns = tally.span.window_ns;
        tally.windows.add_to(&mut part.series, origin_ns);
    }
    for (name, n) in values {
        part.set(name, n as f64);
    }
    part.set("window_s", window_s);
    if let Some(kept) = kept {
        part.set("scheduled", kept.scheduled as f64);
        part.set("unsent", kept.unsent as f64);
        part.faults.extend(kept.faults(&rtt));
        part.histograms.insert("lateness".into(), kept.lateness.into());
    }
    part.set("wanted", part.value("attempted") + part.value("not_asked"));
    part.faults.extend(own_drops(&part));
    part.histograms.insert("rtt".into(), rtt);
    part
}

/// Datagrams that this host lost itself. One lost in a thousand already decides p99.9, and the loss ratio altogether.
fn own_drops(part: &Part) -> Vec<Fault> {
    let limit = part.value("attempted") / 1000.0;
    let fault = |code, name: &str, what: &str| {
        let n = part.value(name);
        let detail = format!("{n} {what}");
        (n > 0.0).then(|| Fault { void: n > limit, ..Fault::noted(code, "initiator", detail) })
    };
    [
        fault(FaultCode::SendBufferFull, "send_refused", "requests were refused by the own kernel"),
        fault(
            FaultCode::ReceiverDrops,
            "receiver_drops",
            "replies arrived and found the socket's buffer full",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}
