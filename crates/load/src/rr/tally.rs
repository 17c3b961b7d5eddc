//! What one connection's transactions came to.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_record::{Fault, FaultCode};
use weir_stats::Histogram;

use crate::latency::Span;
use crate::latency::schedule::Kept;
use crate::latency::windows::Windows;
use crate::observer::{Flow, Times};
use crate::window::CpuMeter;
use crate::{Direction, Part, Setting};

/// Why a connection's loop ended before its time, in words.
pub(super) type Gone = String;

/// One connection over the measuring window. Everything here counts transactions that were started in the window
/// (open loop: were meant to start), even if their answer came after it.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) span: Span,
    times: Times,
    flow: Arc<Flow>,
    pub(super) rtt: Histogram,
    pub(super) windows: Windows,
    cpu: CpuMeter,
    pub(super) attempted: u64,
    /// No answer within the time limit.
    pub(super) unanswered: u64,
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

impl Tally {
    pub(super) fn new(span: Span, window: usize, setting: &Setting, nth: usize) -> Self {
        let number = u32::try_from(nth).unwrap_or(u32::MAX);
        Tally {
            span,
            times: Times::new(&setting.observer),
            flow: setting.observer.flow(Direction::Egress, number, true),
            rtt: Histogram::new(),
            windows: Windows::new(window),
            cpu: CpuMeter::default(),
            attempted: 0,
            unanswered: 0,
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

/// The initiator's part: all connections together.
pub(super) fn part_of(tallies: Vec<Tally>) -> Part {
    let mut part = Part::default();
    let mut rtt = Histogram::new();
    let mut kept: Option<Kept> = None;
    let mut values: BTreeMap<&str, u64> = BTreeMap::new();
    let mut window_s = 0f64;
    for (nth, tally) in tallies.into_iter().enumerate() {
        part.cpu_s += tally.cpu.seconds();
        window_s = window_s.max(tally.span.elapsed_s(tally.left_ns));
        for (name, n) in [
            ("attempted", tally.attempted),
            ("answered", tally.rtt.len()),
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
            part.faults.push(Fault::void(FaultCode::ConnectionFailed, "initiator", detail));
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
        part.histograms.insert("lateness".into(), kept.lateness);
    }
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
