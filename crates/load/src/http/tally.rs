//! Outcomes of the requests.

use rustix::io::Errno;
use weir_record::{Fault, FaultCode};
use weir_stats::Delays;

use crate::Part;
use crate::latency::schedule::Kept;
use crate::part::sum;

/// Ways in which a request fails at the server or on the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// RST in answer to the SYN (ECONNREFUSED).
    Refused,
    /// RST while connecting, later than that.
    ConnectReset,
    /// Not connected within the time limit.
    ConnectTimedOut,
    /// An ICMP error: no route, host unreachable, prohibited.
    Unreachable,
    /// TLS was not agreed upon.
    Tls,
    /// RST after connecting, before the response was whole.
    Reset,
    /// No whole response within the time limit.
    TimedOut,
    /// Closed before the response was whole.
    CutShort,
    /// The received bytes are no HTTP/1 response.
    BadResponse,
    /// A whole response of status 4xx.
    Status4xx,
    /// A whole response of status 5xx.
    Status5xx,
    /// A whole response of a status that the scenario does not expect.
    UnexpectedStatus,
    /// A whole response whose body is longer or shorter than the file that was asked for.
    WrongLength,
    /// Anything else.
    Other,
}

/// Names of the counts of failures.
pub const FAILURES: [&str; 14] = [
    "connect_refused",
    "connect_reset",
    "connect_timed_out",
    "connect_unreachable",
    "tls_failed",
    "reset",
    "timed_out",
    "cut_short",
    "bad_response",
    "status_4xx",
    "status_5xx",
    "unexpected_status",
    "wrong_length",
    "other_failures",
];

/// Names of the other counts that are summed over initiators.
pub(super) const COUNTS: [&str; 16] = [
    "attempted",
    "answered",
    "ok",
    "status_2xx",
    "status_3xx",
    "connections_opened",
    "closed_idle",
    "resent",
    "unclosed",
    "unfinished",
    "not_begun",
    "no_ports",
    "no_descriptors",
    "body_bytes",
    "all_ok",
    "unasked",
];

impl Failure {
    /// Classifies an error of a socket; `None` if it is about this host's own resources and says nothing about the path.
    pub(super) fn of(error: Errno, connected: bool) -> Option<Failure> {
        use crate::connector::Failure as Ended;
        Some(match Ended::of(error)? {
            Ended::Refused => Failure::Refused,
            Ended::Reset if connected => Failure::Reset,
            Ended::Reset => Failure::ConnectReset,
            Ended::TimedOut if connected => Failure::TimedOut,
            Ended::TimedOut => Failure::ConnectTimedOut,
            Ended::Unreachable => Failure::Unreachable,
            _ => Failure::Other,
        })
    }
}

/// Counts of one thread, of what is measured unless it says otherwise.
#[derive(Debug, Default)]
pub(super) struct HttpCounts {
    /// Good responses that ended within the window, however long before it their requests began (with a schedule or a set
    /// number: all that are measured).
    pub(super) ok: u64,
    pub(super) status_2xx: u64,
    pub(super) status_3xx: u64,
    pub(super) failures: [u64; FAILURES.len()],
    /// Over the whole time, warm-up included.
    pub(super) connections_opened: u64,
    /// Kept connections that ended before a request on them was answered.
    pub(super) closed_idle: u64,
    /// Requests that were on their way on those, and were sent again on a new connection.
    pub(super) resent: u64,
    /// Answered, but never closed by the server as it had said.
    pub(super) unclosed: u64,
    /// On their way when they were not waited for any longer.
    pub(super) unfinished: u64,
    /// Requests of the set number that were left over at the end.
    pub(super) unasked: u64,
    /// Never begun for lack of own resources, with the two likely ones.
    pub(super) not_begun: u64,
    pub(super) no_ports: u64,
    pub(super) no_descriptors: u64,
    pub(super) last_own_error: Option<Errno>,
    pub(super) body_bytes: u64,
    /// Good responses over the whole time, warm-up included: what the server's CPU time was spent on.
    pub(super) all_ok: u64,
    /// From when the request was meant to begin to the last byte of its response.
    pub(super) latency: Delays,
    /// From the request's sending to the last byte of its response.
    pub(super) response: Delays,
    /// From connect(2) to the SYN-ACK.
    pub(super) connect: Delays,
    /// From the SYN-ACK to the end of the TLS handshake.
    pub(super) tls: Delays,
    pub(super) kept: Kept,
    /// CPU time of the thread in the measuring window, s.
    pub(super) cpu_s: f64,
    /// When the last measured request was done, ns.
    pub(super) last_ns: u64,
    /// Description of the first failure, for people.
    pub(super) example: Option<String>,
}

/// How long a request that has no end had been on its way, ns, by what is timed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waited {
    /// Since it was meant to begin.
    pub(super) whole: u64,
    /// Since connect(2), if its connection does not stand.
    pub(super) connecting: Option<u64>,
    /// Since its connection stands, if TLS is not agreed on.
    pub(super) agreeing: Option<u64>,
    /// Since the request was sent, if it was.
    pub(super) asked: Option<u64>,
}

impl HttpCounts {
    /// A request failed. One that ran into its time limit takes longer than that, any other never ends.
    pub(super) fn fail(&mut self, how: Failure, waited: Waited) {
        self.failures[how as usize] += 1;
        let timed_out = matches!(how, Failure::TimedOut | Failure::ConnectTimedOut);
        for (delays, since) in self.timed(waited) {
            if timed_out { delays.record_open(since) } else { delays.fail(1) }
        }
    }

    /// A request was still on its way when it was not waited for any longer.
    pub(super) fn leave(&mut self, waited: Waited) {
        self.unfinished += 1;
        self.timed(waited).for_each(|(delays, since)| delays.record_open(since));
    }

    fn timed(&mut self, waited: Waited) -> impl Iterator<Item = (&mut Delays, u64)> {
        let parts = [
            (&mut self.connect, waited.connecting),
            (&mut self.tls, waited.agreeing),
            (&mut self.response, waited.asked),
        ];
        let parts = parts.into_iter().filter_map(|(delays, since)| Some((delays, since?)));
        std::iter::once((&mut self.latency, waited.whole)).chain(parts)
    }

    /// This host had nothing to begin a request with.
    pub(super) fn own_error(&mut self, error: Errno) {
        self.not_begun += 1;
        match error {
            Errno::ADDRNOTAVAIL => self.no_ports += 1,
            Errno::MFILE | Errno::NFILE => self.no_descriptors += 1,
            _ => {}
        }
        self.last_own_error = Some(error);
    }

    pub(super) fn merge(&mut self, other: HttpCounts) {
        self.ok += other.ok;
        self.status_2xx += other.status_2xx;
        self.status_3xx += other.status_3xx;
        for (a, b) in self.failures.iter_mut().zip(other.failures) {
            *a += b;
        }
        self.connections_opened += other.connections_opened;
        self.closed_idle += other.closed_idle;
        self.resent += other.resent;
        self.unclosed += other.unclosed;
        self.unfinished += other.unfinished;
        self.unasked += other.unasked;
        self.not_begun += other.not_begun;
        self.no_ports += other.no_ports;
        self.no_descriptors += other.no_descriptors;
        self.last_own_error = self.last_own_error.or(other.last_own_error);
        self.body_bytes += other.body_bytes;
        self.all_ok += other.all_ok;
        self.latency.merge(&other.latency);
        self.response.merge(&other.response);
        self.connect.merge(&other.connect);
        self.tls.merge(&other.tls);
        self.kept.merge(&other.kept);
        self.cpu_s += other.cpu_s;
        self.last_ns = self.last_ns.max(other.last_ns);
        self.example = self.example.take().or(other.example);
    }

    /// The initiator's part.
    pub(super) fn into_part(self, window_s: f64, scheduled: bool) -> Part {
        let mut part = Part { cpu_s: self.cpu_s, ..Part::default() };
        let answered = self.latency.answered().len();
        let counts = [
            self.latency.len(),
            answered,
            self.ok,
            self.status_2xx,
            self.status_3xx,
            self.connections_opened,
            self.closed_idle,
            self.resent,
            self.unclosed,
            self.unfinished,
            self.not_begun,
            self.no_ports,
            self.no_descriptors,
            self.body_bytes,
            self.all_ok,
            self.unasked,
        ];
        for (name, n) in COUNTS.into_iter().zip(counts).chain(FAILURES.into_iter().zip(self.failures)) {
            part.set(name, n as f64);
        }
        part.set("window_s", window_s);
        part.set("cpu_s", self.cpu_s);
        if let Some(error) = self.last_own_error {
            part.faults.push(Fault::void(
                FaultCode::TesterResources,
                "initiator",
                format!("{} connections could not be begun on this host: {}", self.not_begun, remedy(error)),
            ));
        }
        if self.unasked > 0 {
            let detail = format!(
                "{} of the set number of requests had not begun when the time was over: a longer duration is needed",
                self.unasked
            );
            part.faults.push(Fault::noted(FaultCode::Timeout, "initiator", detail));
        }
        if let Some(example) = self.example {
            part.faults.push(Fault::noted(FaultCode::ConnectionFailed, "initiator", example));
        }
        if scheduled {
            part.set("scheduled", self.kept.scheduled as f64);
            part.set("unsent", self.kept.unsent as f64);
            part.faults.extend(self.kept.faults(&self.latency));
            part.histograms.insert("lateness".into(), self.kept.lateness.into());
        }
        for (name, histogram) in
            [("latency", self.latency), ("response", self.response), ("connect", self.connect)]
        {
            part.histograms.insert(name.into(), histogram);
        }
        if !self.tls.is_empty() {
            part.histograms.insert("tls".into(), self.tls);
        }
        part
    }
}

/// The error with what helps against it.
fn remedy(error: Errno) -> String {
    match error {
        Errno::ADDRNOTAVAIL => {
            "all local ports towards this server are in use (net.ipv4.ip_local_port_range): use fewer \
                                connections, keep-alive, or a wider range"
                .into()
        }
        Errno::MFILE => {
            "no file descriptors are left (ulimit -Hn): use fewer connections or raise the hard limit".into()
        }
        other => other.to_string(),
    }
}

/// Failed requests over all given parts.
pub(super) fn failed(initiators: &[Part]) -> f64 {
    FAILURES.iter().map(|name| sum(initiators, name)).sum()
}
