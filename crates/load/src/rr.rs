//! `tcp-rr` and `udp-rr`: one small request, one small response, over and over, and how long each pair took.
//!
//! Without `rate-per-second` each connection is a ping-pong (a closed loop): the next request leaves when the last answer came.
//! netperf, neper and Ethr measure in the same way. It shows the path's best latency, and hides stalls, since nothing is sent
//! while the path stands still. With `rate-per-second` requests leave on a schedule (an open loop) and are timed from when they
//! were meant to leave.

mod handed;
mod open;
mod tally;
mod tcp;
mod udp;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_record::{Better, MetricDef, Unit};
use weir_sys::clock::now_ns;

use crate::connector::Failure;
use crate::incoming::{HandoverQueue, TcpIncoming, UdpIncoming};
use crate::latency::kernel::own_descriptors;
use crate::latency::schedule::Schedule;
use crate::latency::windows::arrange;
use crate::latency::{
    STOP_LOOK_NS, Span, add_distribution, add_failed, add_lateness, cpu_metric, cpu_ns_per,
    distribution_metrics, gathered, per_second, pin, require_some,
};
use crate::part::sum;
use crate::properties::{LITTLE_OVERHEAD, PER_STREAM, Properties, Rate, Served};
use crate::{Engine, Error, Part, Responder, TrialSettings};
use open::Limits;
use tally::{FlowCounts, Gone, part_of};

/// Connections at most: a thread each at both ends.
const MOST_CONNECTIONS: u32 = 1000;

/// How long a TCP transaction may stay open after the window's end: three doublings of the least retransmission
/// timeout of 200 ms (TCP_RTO_MIN), 0.2 + 0.4 + 0.8 + 1.6 s.
const TCP_DRAIN: Duration = Duration::from_secs(3);

/// Request and response over TCP, Nagle's algorithm off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpRr {
    /// Bytes of a request, 1..=1048576.
    pub request_bytes: u32,
    /// Bytes of a response, 1..=1048576.
    pub response_bytes: u32,
    /// Connections at the same time, 1..=1000, each with a thread of its own.
    pub connections: u32,
    /// Requests per second over all connections, on a schedule; absent: each connection sends when it was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// Transactions per window of the series, 100..=100000.
    pub window: u32,
}

impl Default for TcpRr {
    fn default() -> Self {
        TcpRr { request_bytes: 1, response_bytes: 1, connections: 1, rate_per_second: None, window: 1000 }
    }
}

/// Request and response over UDP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct UdpRr {
    /// Payload bytes of a request, 16..=65507: the cookie and the number take 16.
    pub request_bytes: u32,
    /// Payload bytes of a response, 16..=65507.
    pub response_bytes: u32,
    /// Sockets at the same time, 1..=1000, each with a thread of its own.
    pub connections: u32,
    /// Requests per second over all sockets, on a schedule; absent: each sends when it was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// Transactions per window of the series, 100..=100000.
    pub window: u32,
    /// Milliseconds after which a transaction counts as lost, 10..=60000.
    pub timeout_ms: u32,
}

impl Default for UdpRr {
    fn default() -> Self {
        let bytes = udp::HEADER as u32;
        UdpRr {
            request_bytes: bytes,
            response_bytes: bytes,
            connections: 1,
            rate_per_second: None,
            window: 1000,
            timeout_ms: 1000,
        }
    }
}

/// An option outside its range: the message that names it.
pub(crate) fn in_range(key: &str, value: u32, range: std::ops::RangeInclusive<u32>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{key} = {value} is out of range: valid is {} to {}", range.start(), range.end()))
}

fn check_common(connections: u32, rate: Option<u32>, window: u32) -> Result<(), String> {
    in_range("connections", connections, 1..=MOST_CONNECTIONS)?;
    in_range("window", window, 100..=100_000)?;
    rate.map_or(Ok(()), |rate| in_range("rate-per-second", rate, 1..=10_000_000))
}

fn properties(sizes: (u32, u32), connections: u32, datagrams: bool) -> Properties {
    let (request, response) = sizes;
    let served = Served {
        streams: connections,
        connections: Some(connections),
        controls: 0,
        datagrams,
        memory_bytes: u64::from(connections) * (PER_STREAM + u64::from(request) + u64::from(response)),
        write_bytes: f64::from(connections) * f64::from(request.max(response)),
        between_writes: Duration::ZERO,
        // The responder counts nothing while round trips last. They hold no bit rate, and few connections.
        seen_moving: false,
        rate: Rate::Little,
    };
    Properties { overhead: LITTLE_OVERHEAD, served: Some(served) }
}

fn describe(protocol: &str, sizes: (u32, u32), connections: u32, rate: Option<u32>) -> String {
    let s = if connections == 1 { "" } else { "s" };
    let loop_kind = match rate {
        None => "each request after the last response".to_owned(),
        Some(rate) => format!("{rate} requests/s on a schedule, timed from the intended send"),
    };
    format!(
        "{protocol} request/response, {} B / {} B, {connections} connection{s}, {loop_kind}",
        sizes.0, sizes.1
    )
}

/// Opens all connections at the same time, so that those that a path lets through do not wait for those that it does not. One
/// that does not come to stand is a result, and its words are why.
///
/// # Errors
/// This host has not what it takes, or the far end is not the trial's responder.
fn dial_all(
    connections: u32,
    target: SocketAddr,
    dial: impl Fn() -> std::io::Result<OwnedFd> + Sync,
) -> Result<Vec<Result<OwnedFd, Gone>>, Error> {
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().name("rr dial".into()).spawn_scoped(scope, &dial);
        let threads: Vec<_> = (0..connections).map(start).collect();
        let opened = threads.into_iter().map(|thread| {
            let thread = thread.map_err(Error::io("start a thread"))?;
            match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(fd) => Ok(Ok(fd)),
                Err(e) if is_of_the_path(&e) => Ok(Err(e.to_string())),
                Err(source) => Err(Error::Connect { address: target, source }),
            }
        });
        opened.collect()
    })
}

/// Whether an error says something of the path; else it is of this host's resources, or of a far end that is another one.
fn is_of_the_path(error: &std::io::Error) -> bool {
    let own = |errno| Failure::of(errno).is_none();
    error.kind() != std::io::ErrorKind::InvalidData && !Errno::from_io_error(error).is_some_and(own)
}

fn metrics(unanswered: MetricDef) -> Vec<MetricDef> {
    let (mut all, detail) = distribution_metrics("rtt", "RTT", "transactions, from request to response,");
    all.push(unanswered);
    all.extend(detail);
    all.push(
        MetricDef::value(
            "transactions_per_second",
            "transactions",
            Unit::PerSecond,
            Better::Higher,
            "Answered requests per second over all connections. In a closed loop with one connection this is 1 / mean RTT.",
        )
        .detail(),
    );
    all.push(cpu_metric().detail());
    all
}

fn combine(initiators: &[Part], responders: &[Part], ratio: &str) -> Part {
    let mut trial = gathered(initiators, responders);
    arrange(&mut trial.series);
    add_distribution(&mut trial, initiators, "rtt");
    let answered = sum(initiators, "answered");
    trial.set("transactions_per_second", per_second(initiators, "answered"));
    let failed = sum(initiators, "unanswered") + sum(initiators, "not_asked");
    add_failed(&mut trial, initiators, ratio, failed, "wanted");
    if let Some(ns) = cpu_ns_per(answered, initiators, responders) {
        trial.set("tester_cpu_ns_per_transaction", ns);
    }
    for name in [
        "attempted",
        "answered",
        "unanswered",
        "not_asked",
        "dead_connections",
        "cut",
        "stray_replies",
        "windows",
        "scheduled",
        "unsent",
    ] {
        trial.set(name, sum(initiators, name));
    }
    add_lateness(&mut trial, initiators);
    require_some(&mut trial, initiators, "wanted");
    trial
}

/// One connection's share of the rate.
fn share(rate: u32, connections: u32, span: &Span, setting: &TrialSettings, nth: usize) -> Schedule {
    Schedule::new(span, f64::from(rate), nth as u64, u64::from(connections), setting.cookie)
}

/// Run one thread per socket, and see to it that all of them end: soon after a stop, and when the drain is over.
fn run_all(
    setting: &TrialSettings,
    span: &Span,
    drain: Duration,
    sockets: &[Result<OwnedFd, Gone>],
    work: impl Fn(usize, Result<BorrowedFd<'_>, &Gone>) -> Result<FlowCounts, Error> + Sync,
) -> Result<Part, Error> {
    let last_ns = span.end_ns + crate::latency::nanos(drain);
    let tallies = std::thread::scope(|scope| {
        let (done, results) = channel();
        for (nth, socket) in sockets.iter().enumerate() {
            let fd = match socket {
                Ok(fd) => fd,
                Err(why) => {
                    let _ = done.send(work(nth, Err(why)));
                    continue;
                }
            };
            let (done, work) = (done.clone(), &work);
            std::thread::Builder::new()
                .name(format!("rr {nth}"))
                .spawn_scoped(scope, move || {
                    own_descriptors(Some(fd.as_fd()));
                    let result = pin(setting, nth).and_then(|()| work(nth, Ok(fd.as_fd())));
                    // The receiver below lives until all threads have reported.
                    let _ = done.send(result);
                })
                .map_err(Error::io("start a thread"))?;
        }
        drop(done);
        let mut tallies = Vec::new();
        let mut woken = false;
        loop {
            match results.recv_timeout(Duration::from_nanos(STOP_LOOK_NS)) {
                Ok(result) => tallies.push(result?),
                Err(RecvTimeoutError::Disconnected) => break Ok(tallies),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !woken && (setting.stop.raised() || now_ns() > last_ns) {
                woken = true;
                for fd in sockets.iter().flatten() {
                    // Wakes the thread that waits on it; no thread waits on a socket that is no longer connected.
                    let _ = shutdown(fd, Shutdown::Both);
                }
            }
        }
    })?;
    Ok(part_of(tallies))
}

impl Engine for TcpRr {
    fn kind(&self) -> &'static str {
        "tcp-rr"
    }

    fn describe(&self) -> String {
        describe("TCP", (self.request_bytes, self.response_bytes), self.connections, self.rate_per_second)
    }

    fn properties(&self) -> Properties {
        properties((self.request_bytes, self.response_bytes), self.connections, false)
    }

    fn validate(&self) -> Result<(), String> {
        in_range("request-bytes", self.request_bytes, 1..=1 << 20)?;
        in_range("response-bytes", self.response_bytes, 1..=1 << 20)?;
        check_common(self.connections, self.rate_per_second, self.window)
    }

    fn metrics(&self) -> Vec<MetricDef> {
        let help = "Transactions without an answer within 3 s, and those that a connection which died, or never stood, would \
                    have made.";
        metrics(MetricDef::failure("unanswered_ratio", "unanswered", ("failed", "wanted"), help))
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        let sizes = tcp::sizes(self.request_bytes, self.response_bytes);
        Ok(Box::new(tcp::TcpResponder::open(setting, bind, sizes)?))
    }

    fn serve(&self, setting: &TrialSettings, queue: HandoverQueue) -> Result<Box<dyn Responder>, Error> {
        let sizes = tcp::sizes(self.request_bytes, self.response_bytes);
        Ok(Box::new(tcp::TcpResponder::serve(setting, TcpIncoming::Handed(queue), sizes)?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        let sizes = tcp::sizes(self.request_bytes, self.response_bytes);
        let sockets = dial_all(self.connections, target, || tcp::dial(target, setting))?;
        let span = Span::starting_now(setting);
        let limits = || Limits { timeout_ns: crate::latency::nanos(TCP_DRAIN), stop: &setting.stop };
        run_all(setting, &span, TCP_DRAIN, &sockets, |nth, fd| {
            let tally = FlowCounts::new(span, self.window as usize, setting, nth);
            let schedule =
                self.rate_per_second.map(|rate| share(rate, self.connections, &span, setting, nth));
            match (fd, schedule) {
                (Ok(fd), None) => tcp::closed_loop(fd, sizes, &setting.stop, tally),
                (Ok(fd), Some(schedule)) => tcp::open_loop(fd, sizes, &schedule, limits(), tally),
                (Err(why), None) => Ok(tally.never_stood(why.clone())),
                (Err(why), Some(schedule)) => Ok(open::never_stood(&schedule, tally, why.clone())),
            }
        })
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        combine(initiators, responders, "unanswered_ratio")
    }
}

impl Engine for UdpRr {
    fn kind(&self) -> &'static str {
        "udp-rr"
    }

    fn describe(&self) -> String {
        describe("UDP", (self.request_bytes, self.response_bytes), self.connections, self.rate_per_second)
    }

    fn properties(&self) -> Properties {
        properties((self.request_bytes, self.response_bytes), self.connections, true)
    }

    fn validate(&self) -> Result<(), String> {
        // The greatest payload of UDP over IPv4: 65535 - 20 - 8.
        let valid = udp::HEADER as u32..=65_507;
        in_range("request-bytes", self.request_bytes, valid.clone())?;
        in_range("response-bytes", self.response_bytes, valid)?;
        in_range("timeout-ms", self.timeout_ms, 10..=60_000)?;
        check_common(self.connections, self.rate_per_second, self.window)
    }

    fn metrics(&self) -> Vec<MetricDef> {
        let help = "Transactions of which the request or the response was lost (RFC 2680: no answer within timeout-ms).";
        let loss = MetricDef::failure("loss_ratio", "loss", ("failed", "wanted"), help);
        metrics(MetricDef { headline: true, ..loss })
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        let sizes = tcp::sizes(self.request_bytes, self.response_bytes);
        Ok(Box::new(udp::UdpResponder::open(setting, bind, sizes)?))
    }

    fn serve(&self, setting: &TrialSettings, queue: HandoverQueue) -> Result<Box<dyn Responder>, Error> {
        let sizes = tcp::sizes(self.request_bytes, self.response_bytes);
        Ok(Box::new(handed::HandedResponder::serve(setting, UdpIncoming::new(queue), sizes)?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        let sizes = tcp::sizes(self.request_bytes, self.response_bytes);
        let timeout = Duration::from_millis(self.timeout_ms.into());
        let sockets = dial_all(self.connections, target, || udp::dial(target, setting, sizes))?;
        let span = Span::starting_now(setting);
        let limits = || Limits { timeout_ns: crate::latency::nanos(timeout), stop: &setting.stop };
        run_all(setting, &span, timeout + TCP_DRAIN, &sockets, |nth, fd| {
            let tally = FlowCounts::new(span, self.window as usize, setting, nth);
            let schedule =
                self.rate_per_second.map(|rate| share(rate, self.connections, &span, setting, nth));
            let cookie = setting.cookie;
            match (fd, schedule) {
                (Ok(fd), None) => udp::closed_loop(fd, sizes, cookie, timeout, &setting.stop, tally),
                (Ok(fd), Some(schedule)) => udp::open_loop(fd, sizes, cookie, &schedule, limits(), tally),
                (Err(why), None) => Ok(tally.never_stood(why.clone())),
                (Err(why), Some(schedule)) => Ok(open::never_stood(&schedule, tally, why.clone())),
            }
        })
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        combine(initiators, responders, "loss_ratio")
    }
}
