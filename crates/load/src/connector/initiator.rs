//! The initiator: one thread, one epoll, any number of connections.

mod exchange;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{connect, sockopt};
use weir_sys::clock::now_ns;

use super::slab::Slab;
use super::tally::{ConnectCounts, Failure, Reached};
use super::{Arrival, Close, Job};
use crate::latency::dial::{tcp_socket, wait_for, wait_ready};
use crate::latency::kernel::own_descriptors;
use crate::latency::schedule::{Schedule, WakeMargin};
use crate::latency::{STOP_LOOK_NS, Span, nanos, pin, preamble};
use crate::observer::{Flow, Times};
use crate::socket::{abort_on_close, precise_sleeps, tcp_info};
use crate::window::CpuMeter;
use crate::{Direction, Error, Part, TrialSettings};

/// How long after the window's end the sender may still catch up with its schedule, ns.
const CATCH_UP_NS: u64 = 100_000_000;

/// Events taken per epoll_wait(2).
const EVENTS: usize = 256;

/// Requests larger than this may not leave in one segment, and Nagle's algorithm would hold back the rest (RFC 9293
/// section 3.7.1: the least MSS of IPv4).
const ONE_SEGMENT: usize = 536;

/// One connection on its way.
#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    /// When it was meant to begin, ns.
    intended_ns: u64,
    measured: bool,
    state: State,
    watched: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// SYN sent.
    Opening,
    /// Bytes of the request sent, bytes of the response received.
    Exchanging { sent: usize, received: usize },
    /// The response is here; the responder's FIN is not.
    Closing,
}

impl Connection {
    fn reached(&self) -> Reached {
        if self.state == State::Opening { Reached::Nothing } else { Reached::Connected }
    }
}

/// The next step for a connection after an event.
enum Next {
    Keep,
    Done,
    Failed(Failure),
}

struct Initiator<'a> {
    target: SocketAddr,
    job: Job,
    setting: &'a TrialSettings,
    span: Span,
    schedule: Option<Schedule>,
    epoll: OwnedFd,
    connections: Slab<Connection>,
    /// Made in advance, so that the time to connect does not include its making.
    spare: Option<OwnedFd>,
    /// The time limit is the same for all, so the oldest is the first to run out.
    deadlines: VecDeque<(u64, u64)>,
    request: Vec<u8>,
    expected: [u8; preamble::LEN],
    buffer: Vec<u8>,
    next: u64,
    margin: WakeMargin,
    cpu: CpuMeter,
    tally: ConnectCounts,
    times: Times,
    flow: Arc<Flow>,
}

/// Do the job on a thread of its own, pinned to the setting's first core.
pub(crate) fn drive(setting: &TrialSettings, target: SocketAddr, job: Job) -> Result<Part, Error> {
    // A path that swallows SYNs keeps rate x timeout of them open. If they do not suffice, the connections that could not be
    // begun are counted and void the trial.
    weir_sys::process::raise_descriptor_limit();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("connector".into())
            .spawn_scoped(scope, || {
                own_descriptors(None);
                pin(setting, 0)?;
                // A poll's time limit else ends up to 50 us late; ends with the thread.
                precise_sleeps().map_err(Error::io("set the timer slack"))?;
                Initiator::new(setting, target, job)?.run()
            })
            .map_err(Error::io("start a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl<'a> Initiator<'a> {
    fn new(setting: &'a TrialSettings, target: SocketAddr, job: Job) -> Result<Self, Error> {
        let expected = preamble::of(setting.cookie);
        let mut request = expected.to_vec();
        request.resize(job.exchange.map_or(0, |e| e.request_bytes), 0x5a);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| Error::io("epoll_create")(e.into()))?;
        let span = Span::starting_now(setting);
        let schedule = match job.arrival {
            Arrival::Closed { .. } => None,
            Arrival::Open { per_second } => {
                Some(Schedule::new(&span, f64::from(per_second), 0, 1, setting.cookie))
            }
        };
        Ok(Initiator {
            target,
            job,
            setting,
            span,
            schedule,
            epoll,
            connections: Slab::new(),
            spare: None,
            deadlines: VecDeque::new(),
            request,
            expected,
            buffer: vec![0; 64 * 1024],
            next: 0,
            margin: WakeMargin::new(),
            cpu: CpuMeter::default(),
            tally: ConnectCounts::default(),
            times: Times::new(&setting.observer),
            flow: setting.observer.flow(Direction::Egress, 0, true),
        })
    }

    fn run(mut self) -> Result<Part, Error> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !self.setting.stop.raised() {
            let now = now_ns();
            self.cpu.look(self.span.phase(now));
            self.flow.ok.set(self.tally.ok);
            self.flow.failed.set(self.tally.failures.iter().sum());
            let all_begun = self.begin_due(now)?;
            self.give_up_overdue(now_ns());
            if all_begun && self.connections.len() == 0 && now >= self.span.end_ns {
                break;
            }
            let limit = self.sleep(all_begun)?;
            let now = wait_ready(&self.epoll, &mut events, &limit)?;
            for event in &events {
                self.handle(event.data.u64(), event.flags, now)?;
            }
        }
        Ok(self.finish())
    }

    /// Begin what is due. True when nothing more will be.
    fn begin_due(&mut self, now: u64) -> Result<bool, Error> {
        match (self.job.arrival, self.schedule.clone()) {
            (Arrival::Open { .. }, Some(schedule)) => {
                let late = self.span.end_ns + CATCH_UP_NS;
                while self.next < schedule.len() && now < late {
                    let intended = schedule.intended_ns(self.next);
                    let at = now_ns();
                    if intended > at {
                        return Ok(false);
                    }
                    if self.span.measures(intended) {
                        self.tally.kept.scheduled += 1;
                        self.tally.kept.lateness.record(at - intended);
                    }
                    self.next += 1;
                    self.begin(Some(intended))?;
                }
                Ok(true)
            }
            (Arrival::Closed { parallel }, _) => {
                // Those that fail at once are not begun again in the same turn, so that the loop gets to its other work.
                let room = (parallel as usize).saturating_sub(self.connections.len());
                for _ in 0..room {
                    if now_ns() >= self.span.end_ns {
                        break;
                    }
                    self.begin(None)?;
                }
                Ok(now >= self.span.end_ns)
            }
            (Arrival::Open { .. }, None) => Ok(true),
        }
    }

    /// A socket that is ready to connect, or the error by which this host has none to give.
    fn prepare(&self) -> Result<Result<OwnedFd, Errno>, Error> {
        let fd = match tcp_socket(self.target) {
            Ok(fd) => fd,
            Err(e) => {
                let error = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                return if Failure::of(error).is_some() {
                    Err(Error::io("open a socket")(e))
                } else {
                    Ok(Err(error))
                };
            }
        };
        if self.job.exchange.is_none_or(|e| e.close == Close::Reset) {
            abort_on_close(&fd).map_err(Error::io("set SO_LINGER"))?;
        }
        if self.request.len() > ONE_SEGMENT {
            sockopt::set_tcp_nodelay(&fd, true).map_err(|e| Error::io("set TCP_NODELAY")(e.into()))?;
        }
        Ok(Ok(fd))
    }

    /// Begin one connection, which was meant to begin at `scheduled_ns`; without a schedule, now.
    fn begin(&mut self, scheduled_ns: Option<u64>) -> Result<(), Error> {
        let socket = match self.spare.take() {
            Some(fd) => Ok(fd),
            None => self.prepare()?,
        };
        let fd = match socket {
            Ok(fd) => fd,
            Err(error) => {
                self.tally.own_error(error);
                return Ok(());
            }
        };
        let now = now_ns();
        let intended_ns = scheduled_ns.unwrap_or(now);
        let measured = self.span.measures(intended_ns);
        // On a path within one machine the answer is there when connect(2) returns. The second call asks: it costs less
        // than a registration with epoll and an event, and its time is the truer one.
        let result = match connect(&fd, &self.target) {
            Err(Errno::INPROGRESS) => connect(&fd, &self.target),
            other => other,
        };
        let answered_at = now_ns();
        let connection = Connection { fd, intended_ns, measured, state: State::Opening, watched: false };
        match result {
            Ok(()) => {
                self.count_attempt(measured);
                let token = self.admit(connection, now);
                self.established(token, answered_at)
            }
            Err(Errno::ALREADY | Errno::INPROGRESS) => {
                self.count_attempt(measured);
                let token = self.admit(connection, now);
                self.watch(token, EventFlags::IN | EventFlags::OUT)
            }
            Err(e) => match Failure::of(e) {
                Some(how) => {
                    self.count_attempt(measured);
                    if measured {
                        self.tally.fail(how, Reached::Nothing, answered_at - intended_ns);
                    }
                    Ok(())
                }
                None => {
                    self.tally.own_error(e);
                    Ok(())
                }
            },
        }
    }

    fn count_attempt(&mut self, measured: bool) {
        self.tally.attempted += u64::from(measured);
    }

    /// Whether what becomes of a connection at `now` is an observation. In a closed loop those count, too, that were on their
    /// way through the whole window: what a stall holds must not be missing because it began too early. They are counted as
    /// attempts here.
    fn observe(&mut self, token: u64, now: u64) -> bool {
        let closed_loop = self.schedule.is_none();
        let (window_ns, end_ns) = (self.span.window_ns, self.span.end_ns);
        let Some(connection) = self.connections.get_mut(token) else { return false };
        let through_it = connection.intended_ns < window_ns && now >= end_ns;
        // One that is only being closed was answered before.
        if !connection.measured && closed_loop && through_it && connection.state != State::Closing {
            connection.measured = true;
            self.tally.attempted += 1;
        }
        connection.measured
    }

    fn admit(&mut self, connection: Connection, now: u64) -> u64 {
        let token = self.connections.insert(connection);
        self.deadlines.push_back((now.saturating_add(nanos(self.job.timeout)), token));
        token
    }

    fn watch(&mut self, token: u64, what: EventFlags) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        connection.watched = true;
        epoll::add(
            &self.epoll,
            &connection.fd,
            EventData::new_u64(token),
            what | EventFlags::RDHUP | EventFlags::ET,
        )
        .map_err(|e| Error::io("epoll_ctl")(e.into()))
    }

    /// The SYN-ACK was here at `now`.
    fn established(&mut self, token: u64, now: u64) -> Result<(), Error> {
        self.observe(token, now);
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        if connection.measured {
            self.tally.connect.record(now - connection.intended_ns);
        }
        if self.job.exchange.is_none() {
            if connection.measured {
                self.tally.ok += 1;
                self.times.push(now, now - connection.intended_ns);
                let info = tcp_info(&connection.fd).map_err(Error::io("read TCP_INFO"))?;
                self.tally.syn_retransmits += u64::from(info.total_retrans);
                if info.rtt_us > 0 {
                    self.tally.handshake.record(u64::from(info.rtt_us) * 1000);
                }
            }
            self.connections.remove(token);
            return Ok(());
        }
        connection.state = State::Exchanging { sent: 0, received: 0 };
        let next = self.send_request(token);
        self.settle(token, next)?;
        let all = self.request.len();
        match self.connections.get_mut(token).map(|c| (c.watched, c.state)) {
            // Not yet known to epoll; room in the send buffer matters only if the request did not fit.
            Some((false, State::Exchanging { sent, .. })) if sent < all => {
                self.watch(token, EventFlags::IN | EventFlags::OUT)
            }
            Some((false, _)) => self.watch(token, EventFlags::IN),
            _ => Ok(()),
        }
    }

    fn handle(&mut self, token: u64, flags: EventFlags, now: u64) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        if connection.state == State::Opening {
            match sockopt::socket_error(&connection.fd) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => self.established(token, now)?,
                Ok(Ok(())) => return Ok(()),
                Ok(Err(e)) | Err(e) => {
                    return self.settle(token, Next::Failed(Failure::of(e).unwrap_or(Failure::Other)));
                }
            }
        } else if flags.contains(EventFlags::OUT) {
            let next = self.send_request(token);
            self.settle(token, next)?;
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            let next = self.receive(token, flags, now);
            self.settle(token, next)?;
        }
        Ok(())
    }

    fn settle(&mut self, token: u64, next: Next) -> Result<(), Error> {
        match next {
            Next::Keep => {}
            Next::Done => {
                self.connections.remove(token);
            }
            Next::Failed(how) => {
                self.observe(token, now_ns());
                if let Some(connection) = self.connections.remove(token).filter(|c| c.measured) {
                    self.tally.fail(how, connection.reached(), now_ns() - connection.intended_ns);
                }
            }
        }
        Ok(())
    }

    fn give_up_overdue(&mut self, now: u64) {
        while let Some(&(deadline, token)) = self.deadlines.front() {
            match self.connections.get_mut(token) {
                Some(_) if now < deadline => break,
                _ => {}
            }
            self.deadlines.pop_front();
            self.observe(token, now);
            match self.connections.remove(token) {
                Some(c) if c.measured && c.state == State::Closing => self.tally.unclosed += 1,
                Some(c) if c.measured => {
                    self.tally.fail(Failure::TimedOut, c.reached(), now - c.intended_ns);
                }
                _ => {}
            }
        }
    }

    /// Sleep until something is ready or the next thing is to be done, the last stretch of it to be spun. Returns the limit
    /// for the epoll_wait(2) that follows.
    fn sleep(&mut self, all_begun: bool) -> Result<Timespec, Error> {
        let now = now_ns();
        let mut until = now + STOP_LOOK_NS;
        if let Some(&(deadline, _)) = self.deadlines.front() {
            until = until.min(deadline);
        }
        if now < self.span.end_ns {
            until = until.min(self.span.end_ns);
        }
        let send_at = match &self.schedule {
            Some(schedule) if !all_begun => Some(schedule.intended_ns(self.next)),
            _ => None,
        };
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Some(send_at) = send_at else {
            // Rounded up to milliseconds by the kernel's older call, which is early enough here.
            let left = until.saturating_sub(now);
            return Ok(Timespec { tv_sec: 0, tv_nsec: left as i64 });
        };
        if self.spare.is_none() && send_at > now {
            self.spare = self.prepare()?.ok();
        }
        until = until.min(send_at.saturating_sub(self.margin.ns()));
        let now = now_ns();
        if until > now {
            let ready =
                wait_for(self.epoll.as_fd(), PollFlags::IN, until - now).map_err(Error::io("poll"))?;
            if !ready {
                self.margin.learn(now_ns().saturating_sub(until));
            }
        }
        Ok(NOW)
    }

    fn finish(mut self) -> Part {
        let now = now_ns();
        self.cpu.look(self.span.phase(now));
        if self.setting.stop.raised() {
            let open = |c: &&Connection| c.measured && c.state != State::Closing;
            for connection in self.connections.iter().filter(open) {
                self.tally.cut(connection.reached(), now.saturating_sub(connection.intended_ns));
            }
        } else if let Some(schedule) = &self.schedule {
            let unsent =
                (self.next..schedule.len()).filter(|&k| self.span.measures(schedule.intended_ns(k))).count();
            self.tally.kept.unsent = unsent as u64;
            self.tally.kept.scheduled += unsent as u64;
        }
        let window_s = self.span.elapsed_s(now);
        self.tally.into_part(
            window_s,
            self.cpu.seconds(),
            self.schedule.is_some(),
            self.job.exchange.is_some(),
        )
    }
}
