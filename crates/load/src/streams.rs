//! Common parts of the bulk workloads: the threads of their streams, the results of these, and the first steps from there to the
//! trial.

mod opening;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};
use weir_text::order;

use crate::latency::pin;
use crate::observer::Flow;
use crate::pace::Ending;
use crate::window::Window;
use crate::{Direction, Error, Part, Responder, Stop, TrialSettings};

pub(crate) use opening::{OPENING, Start, Starts};

/// How many streams, in words for people.
pub(crate) fn count_words(streams: u32) -> String {
    if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") }
}

/// The option `streams` in its range.
pub(crate) fn check_count(streams: u32) -> Result<(), String> {
    if !(1..=128).contains(&streams) {
        return Err(format!("streams = {streams}: valid is 1..=128"));
    }
    Ok(())
}

/// The name of a congestion control; empty for the system's default.
pub(crate) fn check_congestion(name: &str) -> Result<(), String> {
    // TCP_CA_NAME_MAX is 16 with the closing zero.
    if name.len() > 15 || name.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(format!("congestion = \"{name}\": valid is a name such as cubic, reno or bbr"));
    }
    Ok(())
}

/// The result of a stream's thread.
pub(crate) enum StreamOutcome<S, R> {
    Sent(S),
    Received(R),
    /// The path, or what it leads to, did not let the stream begin.
    Failed,
}

/// True of the errors that a path can cause. The others are about this host: no descriptors, ports or memory, a socket option.
pub(crate) fn by_path(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable,
        NetworkUnreachable, NotConnected, TimedOut, UnexpectedEof, WouldBlock,
    };
    // Further errors that the kernel makes of ICMP messages: icmp_err_convert and icmpv6_err_convert.
    let icmp = [libc::EACCES, libc::EHOSTDOWN, libc::ENONET, libc::ENOPROTOOPT, libc::EPROTO];
    matches!(
        error.kind(),
        BrokenPipe
            | ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | NotConnected
            | TimedOut
            | UnexpectedEof
            | WouldBlock
    ) || error.raw_os_error().is_some_and(|code| icmp.contains(&code))
}

/// The result of a responder's thread; `None` if no stream came of it.
type Served<S, R> = Result<Option<StreamOutcome<S, R>>, Error>;

/// The results of all threads of an end.
pub(crate) type Outcomes<S, R> = Vec<Result<StreamOutcome<S, R>, Error>>;

/// Makes an end's part out of what its threads returned.
pub(crate) type Summary<S, R> = fn(&StreamEnd, Outcomes<S, R>) -> Result<Part, Error>;

/// Which of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Initiator,
    Responder,
}

impl Side {
    /// The host as faults name it.
    pub(crate) fn host(self) -> &'static str {
        match self {
            Side::Initiator => "initiator",
            Side::Responder => "responder",
        }
    }

    /// The direction of what it sends, and of what it receives.
    pub(crate) fn directions(self) -> (Direction, Direction) {
        match self {
            Side::Initiator => (Direction::Egress, Direction::Ingress),
            Side::Responder => (Direction::Ingress, Direction::Egress),
        }
    }
}

/// One end, as its threads share it. It begins to send at another time than to receive, so it has two windows.
#[derive(Clone)]
pub(crate) struct StreamEnd {
    pub side: Side,
    pub setting: TrialSettings,
    pub sending: Arc<Window>,
    pub receiving: Arc<Window>,
    pub ending: Ending,
}

impl StreamEnd {
    /// An end whose windows have not begun.
    pub(crate) fn new(side: Side, setting: &TrialSettings) -> Self {
        StreamEnd {
            side,
            setting: setting.clone(),
            sending: Arc::new(Window::new(setting)),
            receiving: Arc::new(Window::new(setting)),
            ending: Ending { stop: setting.stop.clone(), done: Stop::default() },
        }
    }

    /// Returns the fault that voids a trial if it was stopped while some of its streams were still at work.
    pub(crate) fn stopped(&self, cut_short: impl Iterator<Item = bool>) -> Option<Fault> {
        let ends: Vec<bool> = cut_short.collect();
        let cut = ends.iter().filter(|cut| **cut).count();
        (self.setting.stop.raised() && cut > 0).then(|| {
            let detail = format!("{cut} of {} streams were stopped before their window was over", ends.len());
            Fault::void(FaultCode::Interrupted, self.side.host(), detail)
        })
    }

    /// The counters of one of its streams.
    pub(crate) fn flow(&self, number: u32, sends: bool) -> Arc<Flow> {
        let (sent, received) = self.side.directions();
        self.setting.observer.flow(if sends { sent } else { received }, number, sends)
    }

    /// Run each stream in a thread of its own until the last is over. If one cannot be started, the others are ended.
    pub(crate) fn run_all<T, S, R>(
        &self,
        protocol: &str,
        streams: Vec<T>,
        run: impl Fn(T) -> Result<StreamOutcome<S, R>, Error> + Sync,
    ) -> Outcomes<S, R>
    where
        T: Send,
        S: Send,
        R: Send,
    {
        let run = &run;
        std::thread::scope(|scope| {
            let start = |(nth, stream): (usize, T)| {
                Builder::new().name(format!("{protocol}-{nth}")).spawn_scoped(scope, move || {
                    pin(&self.setting, nth)?;
                    run(stream)
                })
            };
            // All are started before the first is waited for.
            let threads: Vec<_> = streams.into_iter().enumerate().map(start).collect();
            if threads.iter().any(Result::is_err) {
                self.ending.done.raise();
            }
            threads.into_iter().map(|t| joined(t.map_err(Error::io("start a thread"))?.join())).collect()
        })
    }
}

/// The result of a thread; a panic goes on in the caller's.
fn joined<T>(result: std::thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The streams' threads at the responder, started as their initiators come.
pub(crate) struct Threads<S, R> {
    protocol: &'static str,
    running: Vec<JoinHandle<Served<S, R>>>,
    failed: Vec<Error>,
}

impl<S: Send + 'static, R: Send + 'static> Threads<S, R> {
    /// None yet. `protocol` begins their names.
    pub(crate) fn new(protocol: &'static str) -> Self {
        Threads { protocol, running: Vec::new(), failed: Vec::new() }
    }

    /// Starts the next one and passes its number to it.
    pub(crate) fn start(&mut self, serve: impl FnOnce(usize) -> Served<S, R> + Send + 'static) {
        let nth = self.running.len();
        match Builder::new().name(format!("{}-{nth}", self.protocol)).spawn(move || serve(nth)) {
            Ok(thread) => self.running.push(thread),
            Err(source) => self.fail(Error::Io { what: "start a thread", source }),
        }
    }

    /// Note what went wrong outside of the threads.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.push(error);
    }

    /// Wait for all of them.
    pub(crate) fn join(self) -> Outcomes<S, R> {
        let over = self.running.into_iter().filter_map(|t| joined(t.join()).transpose());
        self.failed.into_iter().map(Err).chain(over).collect()
    }
}

/// The responder's end while it is open: one thread that accepts, and the streams' own.
pub(crate) struct StreamResponder<S, R> {
    port: u16,
    end: StreamEnd,
    summary: Summary<S, R>,
    acceptor: Option<JoinHandle<Outcomes<S, R>>>,
}

impl<S: Send + 'static, R: Send + 'static> StreamResponder<S, R> {
    /// Accept in a thread until the end is raised; `accept_all` returns what the streams came to.
    pub(crate) fn start(
        protocol: &str,
        port: u16,
        end: StreamEnd,
        summary: Summary<S, R>,
        accept_all: impl FnOnce() -> Outcomes<S, R> + Send + 'static,
    ) -> Result<Self, Error> {
        let acceptor = Builder::new()
            .name(format!("{protocol}-accept"))
            .spawn(accept_all)
            .map_err(Error::io("start a thread"))?;
        Ok(StreamResponder { port, end, summary, acceptor: Some(acceptor) })
    }
}

impl<S, R> StreamResponder<S, R> {
    fn close(&mut self) -> Outcomes<S, R> {
        self.end.ending.done.raise();
        self.acceptor.take().map(|t| joined(t.join())).unwrap_or_default()
    }
}

impl<S, R> Responder for StreamResponder<S, R> {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let outcomes = self.close();
        (self.summary)(&self.end, outcomes)
    }
}

impl<S, R> Drop for StreamResponder<S, R> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Outcomes by kind.
pub(crate) struct Sorted<S, R> {
    pub sent: Vec<S>,
    pub received: Vec<R>,
    errors: Vec<Error>,
}

impl<S, R> Sorted<S, R> {
    /// Fails with the first error if this host could not run a single stream. Streams that the path fails are no errors.
    pub(crate) fn new(outcomes: Outcomes<S, R>) -> Result<Self, Error> {
        let (mut sent, mut received, mut errors, mut failed) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for outcome in outcomes {
            match outcome {
                Ok(StreamOutcome::Sent(s)) => sent.push(s),
                Ok(StreamOutcome::Received(r)) => received.push(r),
                Ok(StreamOutcome::Failed) => failed += 1,
                Err(e) => errors.push(e),
            }
        }
        if sent.is_empty() && received.is_empty() && failed == 0 && !errors.is_empty() {
            return Err(errors.swap_remove(0));
        }
        Ok(Sorted { sent, received, errors })
    }

    /// A fault for each stream that this host could not run.
    pub(crate) fn faults(&self, side: Side) -> impl Iterator<Item = Fault> {
        self.errors.iter().map(move |e| Fault::void(code(e), side.host(), e.to_string()))
    }
}

/// The fault that an error of this host is.
fn code(error: &Error) -> FaultCode {
    match error {
        Error::Connect { source, .. } | Error::Io { source, .. } => match source.kind() {
            io::ErrorKind::Interrupted => FaultCode::Interrupted,
            // The words of another program, or of another trial's responder.
            io::ErrorKind::Other => FaultCode::ConnectionFailed,
            _ => FaultCode::TesterResources,
        },
        _ => FaultCode::TesterResources,
    }
}

/// The trial that `combine` starts from: all faults, and the CPU time.
pub(crate) fn trial_of(parts: &[Part]) -> Part {
    Part {
        faults: parts.iter().flat_map(|p| p.faults.clone()).collect(),
        cpu_s: parts.iter().map(|p| p.cpu_s).sum(),
        ..Part::default()
    }
}

/// The two ends of each initiator's streams: every initiator has a responder of its own, in the same order.
pub(crate) fn pairs<'a>(
    initiators: &'a [Part],
    responders: &'a [Part],
) -> impl Iterator<Item = Vec<&'a Part>> {
    let count = initiators.len().max(responders.len());
    (0..count).map(|nth| initiators.get(nth).into_iter().chain(responders.get(nth)).collect())
}

/// The name under which a stream's own figure is in a part.
pub(crate) fn of_stream(way: Direction, name: &str, stream: u32) -> String {
    format!("{way}_{name}_{stream}")
}

/// The definitions of how many streams there were to be and how many of them failed, and the share.
pub(crate) fn failure_metrics(label: &str, help: &str) -> [MetricDef; 3] {
    let count = |name: &str, label: &str, better, help: &str| {
        MetricDef::value(name, label, Unit::Count, better, help).by_difference().detail()
    };
    [
        MetricDef::failure("failed_ratio", label, ("failed_streams", "streams"), help),
        count(
            "streams",
            "streams wanted",
            Better::Neither,
            "streams that there were to be, in all directions",
        ),
        count("failed_streams", &format!("{label}, number"), Better::Lower, help),
    ]
}

/// Set the values of [`failure_metrics`].
pub(crate) fn set_failed(trial: &mut Part, wanted: f64, failed: f64) {
    trial.set("streams", wanted);
    trial.set("failed_streams", failed);
    if wanted > 0.0 {
        trial.set("failed_ratio", failed / wanted);
    }
}

/// Which of a direction's streams these parts have a mark for.
pub(crate) fn marked(parts: &[&Part], way: Direction, name: &str, streams: u32) -> BTreeSet<u32> {
    let has = |stream: &u32| {
        let key = of_stream(way, name, *stream);
        parts.iter().any(|p| p.values.contains_key(&key))
    };
    order::set((0..streams).filter(has))
}
