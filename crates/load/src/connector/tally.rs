//! Outcomes of the connections that were begun in the measuring window.

use rustix::io::Errno;
use weir_record::{Fault, FaultCode};
use weir_stats::{Delays, Histogram};

use crate::Part;
use crate::latency::schedule::Kept;
use crate::part::sum;

/// Ways in which a connection fails on the path or at the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// RST in answer to the SYN (ECONNREFUSED).
    Refused,
    /// RST later.
    Reset,
    /// Not done within the time limit.
    TimedOut,
    /// An ICMP error: no route, host unreachable, prohibited.
    Unreachable,
    /// Closed before the response was whole.
    CutShort,
    /// The response was not this trial's.
    Foreign,
    /// Anything else.
    Other,
}

/// Names of the counts, in the order of [`Failure`].
pub(crate) const FAILURES: [&str; 7] =
    ["refused", "reset", "timed_out", "unreachable", "cut_short", "foreign", "other_failures"];

impl Failure {
    /// Classifies an error of a socket; `None` if it is about this host's own resources and says nothing about the path.
    pub(crate) fn of(error: Errno) -> Option<Failure> {
        Some(match error {
            // No free port, no descriptor, no memory.
            Errno::ADDRNOTAVAIL
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::AGAIN => return None,
            Errno::CONNREFUSED => Failure::Refused,
            Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Failure::Reset,
            Errno::TIMEDOUT => Failure::TimedOut,
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::ACCESS | Errno::HOSTDOWN => Failure::Unreachable,
            _ => Failure::Other,
        })
    }
}

/// Counts of one initiator. `attempted` = `ok` + all failures + `cut`.
#[derive(Debug, Default)]
pub(super) struct ConnectCounts {
    pub(super) attempted: u64,
    pub(super) ok: u64,
    pub(super) failures: [u64; FAILURES.len()],
    /// Still open when the trial was stopped early.
    pub(super) cut: u64,
    /// Never begun for lack of own resources.
    pub(super) not_begun: u64,
    pub(super) last_own_error: Option<Errno>,
    /// SYNs sent again.
    pub(super) syn_retransmits: u64,
    /// Answered, but never closed by the responder.
    pub(super) unclosed: u64,
    pub(super) connect: Delays,
    pub(super) handshake: Histogram,
    pub(super) whole: Delays,
    pub(super) kept: Kept,
}

/// How far a connection had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// The SYN was not answered by a SYN-ACK.
    Nothing,
    /// The connection stood, and its time to connect is recorded.
    Connected,
}

impl ConnectCounts {
    /// A connection failed. `waited_ns` since it was meant to begin: one that ran into its time limit takes longer than that,
    /// any other never ends.
    pub(super) fn fail(&mut self, how: Failure, reached: Reached, waited_ns: u64) {
        self.failures[how as usize] += 1;
        let connecting = (reached == Reached::Nothing).then_some(&mut self.connect);
        for delays in connecting.into_iter().chain([&mut self.whole]) {
            match how {
                Failure::TimedOut => delays.record_open(waited_ns),
                _ => delays.fail(1),
            }
        }
    }

    /// A connection was still under way when the trial was stopped early.
    pub(super) fn cut(&mut self, reached: Reached, waited_ns: u64) {
        self.cut += 1;
        if reached == Reached::Nothing {
            self.connect.record_open(waited_ns);
        }
        self.whole.record_open(waited_ns);
    }

    pub(super) fn own_error(&mut self, error: Errno) {
        self.not_begun += 1;
        self.last_own_error = Some(error);
    }

    /// The initiator's part. `stem` names the histogram of what the workload is about.
    pub(super) fn into_part(self, window_s: f64, cpu_s: f64, scheduled: bool, exchanged: bool) -> Part {
        let mut part = Part { cpu_s, ..Part::default() };
        for (name, n) in [
            ("attempted", self.attempted),
            ("ok", self.ok),
            ("cut", self.cut),
            ("not_begun", self.not_begun),
            ("syn_retransmits", self.syn_retransmits),
            ("unclosed", self.unclosed),
        ] {
            part.set(name, n as f64);
        }
        for (name, n) in FAILURES.into_iter().zip(self.failures) {
            part.set(name, n as f64);
        }
        part.set("window_s", window_s);
        if let Some(error) = self.last_own_error {
            let detail = format!("{} connections could not be begun on this host: {error}", self.not_begun);
            part.faults.push(Fault::void(FaultCode::TesterResources, "initiator", detail));
        }
        if scheduled {
            part.set("scheduled", self.kept.scheduled as f64);
            part.set("unsent", self.kept.unsent as f64);
            part.faults.extend(self.kept.faults(if exchanged { &self.whole } else { &self.connect }));
            part.histograms.insert("lateness".into(), self.kept.lateness.into());
        }
        part.histograms.insert("connect".into(), self.connect);
        if exchanged {
            part.histograms.insert("crr".into(), self.whole);
        } else {
            part.histograms.insert("handshake".into(), self.handshake.into());
        }
        part
    }
}

/// Failed connections over all given parts.
pub(crate) fn failed(initiators: &[Part]) -> f64 {
    FAILURES.iter().map(|name| sum(initiators, name)).sum()
}
