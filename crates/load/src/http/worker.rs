//! One load thread: an epoll of its own, a fixed number of connections, and when each begins a request.

mod again;
mod connection;
mod request_end;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event};
use rustix::event::{PollFlags, Timespec};
use weir_sys::clock::{now_ns, sleep_until};

use super::gather::Gather;
use super::known::Known;
use super::tally::{Failure, HttpCounts, Waited};
use super::tls::Tls;
use crate::connector::Close;
use crate::latency::dial::{wait_for, wait_ready};
use crate::latency::schedule::{Schedule, WakeMargin};
use crate::latency::{STOP_LOOK_NS, Span, nanos};
use crate::observer::{Flow, Times};
use crate::window::{CpuMeter, Phase};
use crate::{Direction, Error, TrialSettings};
use again::Again;
use connection::{Connection, State};

/// Events taken per epoll_wait(2).
const EVENTS: usize = 256;

/// A connection that failed is tried again after this time, ns: a server that refuses is not flooded, and the thread gets to
/// its other work.
const PAUSE_NS: u64 = 10_000_000;

/// How long after the window's end a schedule may still be caught up with, ns.
const CATCH_UP_NS: u64 = 100_000_000;

/// How long after the window's end a closed loop waits for what is on its way, if not for its time limit: what takes
/// longer is left, and counts as longer than that. Many times what a hop takes that lets requests through.
pub(super) const DRAIN: Duration = Duration::from_secs(1);

/// Bytes per recv(2).
const BUFFER: usize = 64 << 10;

/// The task of all threads of an initiator.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) target: SocketAddr,
    pub(super) request: Vec<u8>,
    pub(super) keep_alive: bool,
    pub(super) close: Close,
    pub(super) quick_ack: bool,
    /// For one request, from when it was meant to begin.
    pub(super) timeout: Duration,
    pub(super) tls: Option<Tls>,
    /// Requests of a set number that are still to be begun.
    pub(super) budget: Option<AtomicU64>,
    pub(super) expect: Expect,
}

/// The criteria of a good response.
#[derive(Debug, Default)]
pub(super) struct Expect {
    /// Its status is one of these; 2xx or 3xx where there are none.
    pub(super) statuses: Vec<u16>,
    /// Bytes of its body, where they are known.
    pub(super) body_bytes: Option<u64>,
}

impl Expect {
    /// Why a whole response is none of the expected ones.
    fn refuses(&self, status: u16, body_bytes: u64) -> Option<Failure> {
        let expected = if self.statuses.is_empty() {
            (200..400).contains(&status)
        } else {
            self.statuses.contains(&status)
        };
        match status {
            _ if expected && self.body_bytes.is_none_or(|bytes| bytes == body_bytes) => None,
            _ if expected => Some(Failure::WrongLength),
            500.. => Some(Failure::Status5xx),
            400.. => Some(Failure::Status4xx),
            _ => Some(Failure::UnexpectedStatus),
        }
    }
}

impl Job {
    /// Take one request out of the set number; false when none is left.
    fn claim(&self) -> bool {
        let Some(budget) = &self.budget else { return true };
        budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    fn is_spent(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.load(Ordering::Relaxed) == 0)
    }
}

/// When a thread's requests begin.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Each connection's next when its last was answered.
    Closed,
    /// On a schedule, on whichever connection is free.
    Open(Schedule),
}

pub(super) struct Worker<'a> {
    job: &'a Job,
    setting: &'a TrialSettings,
    span: Span,
    arrival: Arrival,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Connections of a closed loop that were begun at the start so far.
    ramped: usize,
    ramp_ns: f64,
    /// Failed ones, by when they may be tried again.
    paused: VecDeque<(u64, usize)>,
    /// Open loop: connections that stand and wait for a request, the one that has waited longest first.
    idle: VecDeque<usize>,
    /// Open loop: places without a connection.
    free: Vec<usize>,
    /// Open loop: requests that are due, by when, for which every connection was busy.
    due: VecDeque<u64>,
    next: u64,
    margin: WakeMargin,
    /// Measured requests on their way.
    pending: usize,
    next_look_ns: u64,
    gather: Gather,
    again: Again,
    known: Known,
    buffer: Vec<u8>,
    plain: Vec<u8>,
    cpu: CpuMeter,
    tally: HttpCounts,
    times: Times,
    flow: Arc<Flow>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        job: &'a Job,
        setting: &'a TrialSettings,
        span: Span,
        arrival: Arrival,
        connections: usize,
        ramp_per_second: f64,
    ) -> Result<Self, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| Error::io("epoll_create")(e.into()))?;
        let is_open = matches!(arrival, Arrival::Open(_));
        Ok(Worker {
            job,
            setting,
            span,
            arrival,
            epoll,
            connections: (0..connections).map(|_| Connection::new()).collect(),
            ramped: 0,
            ramp_ns: 1e9 / ramp_per_second,
            paused: VecDeque::new(),
            idle: VecDeque::new(),
            // Taken from the end: the first place first.
            free: if is_open { (0..connections).rev().collect() } else { Vec::new() },
            due: VecDeque::new(),
            next: 0,
            margin: WakeMargin::new(),
            pending: 0,
            next_look_ns: 0,
            gather: Gather::new(),
            again: Again::default(),
            known: Known::new(),
            buffer: vec![0; BUFFER],
            plain: if job.tls.is_some() { vec![0; BUFFER] } else { Vec::new() },
            cpu: CpuMeter::default(),
            tally: HttpCounts::default(),
            times: Times::new(&setting.observer),
            flow: setting.observer.flow(Direction::Egress, 0, true),
        })
    }

    pub(super) fn run(mut self) -> Result<HttpCounts, Error> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !self.setting.stop.raised() {
            let now = now_ns();
            self.cpu.look(self.phase(now));
            self.flow.ok.set(self.tally.ok);
            self.flow.failed.set(self.tally.failures.iter().sum());
            self.flow.bytes.set(self.tally.body_bytes);
            let all_begun = self.begin_due(now)?;
            if now >= self.next_look_ns {
                self.give_up_overdue(now)?;
            }
            if self.is_over(all_begun, now) {
                break;
            }
            let limit = self.sleep(all_begun)?;
            let now = wait_ready(&self.epoll, &mut events, &limit)?;
            for event in &events {
                self.handle(event.data.u64(), event.flags, now)?;
            }
            if !self.is_scheduled() {
                let nap = self.gather.took(events.len(), self.connections.len(), now);
                // From when these were taken, so that the work on them is part of it.
                if nap > 0 {
                    sleep_until(now + nap, 0);
                }
            }
        }
        Ok(self.finish())
    }

    /// True in an open loop.
    fn is_scheduled(&self) -> bool {
        matches!(self.arrival, Arrival::Open(_))
    }

    /// True where what ends within the window is counted, as in a closed loop without a set number; elsewhere it is what was
    /// meant to begin within it.
    fn counts_ends(&self) -> bool {
        !self.is_scheduled() && self.job.budget.is_none()
    }

    /// A set number of requests is done: the window ends with the last of them.
    fn is_done_early(&self) -> bool {
        self.pending == 0 && self.job.is_spent()
    }

    fn phase(&self, now: u64) -> Phase {
        if self.is_done_early() { Phase::After } else { self.span.phase(now) }
    }

    fn is_over(&self, all_begun: bool, now: u64) -> bool {
        match self.arrival {
            Arrival::Closed => {
                let waits = self.pending > 0 && now < self.span.end_ns + nanos(DRAIN.min(self.job.timeout));
                (now >= self.span.end_ns && !waits) || self.is_done_early()
            }
            Arrival::Open(_) => all_begun && self.pending == 0 && now >= self.span.end_ns,
        }
    }

    /// Begin what is due. True when nothing more will be.
    fn begin_due(&mut self, now: u64) -> Result<bool, Error> {
        match self.arrival {
            Arrival::Closed => {
                self.ramp(now)?;
                while self.paused.front().is_some_and(|&(at, _)| at <= now) {
                    let Some((_, index)) = self.paused.pop_front() else { break };
                    self.begin_closed(index)?;
                }
                Ok(now >= self.span.end_ns)
            }
            Arrival::Open(_) => self.begin_scheduled(now),
        }
    }

    /// Connections at the start, one after the other: all at once they would overflow the server's queue of new connections, and
    /// what is measured would be retransmitted SYNs.
    fn ramp(&mut self, now: u64) -> Result<(), Error> {
        let since = now.saturating_sub(self.span.begin_ns) as f64;
        let wanted = ((since / self.ramp_ns) as usize + 1).min(self.connections.len());
        while self.ramped < wanted {
            self.ramped += 1;
            self.begin_closed(self.ramped - 1)?;
        }
        Ok(())
    }

    /// The next request of a connection of the closed loop.
    fn begin_closed(&mut self, index: usize) -> Result<(), Error> {
        let now = now_ns();
        if now >= self.span.end_ns {
            return Ok(());
        }
        // A set number is counted from the window's start on.
        let counted = self.job.budget.is_some() && now >= self.span.window_ns;
        if counted && !self.job.claim() {
            return Ok(());
        }
        self.begin(index, now, counted || self.counts_ends())
    }

    fn begin_scheduled(&mut self, now: u64) -> Result<bool, Error> {
        while self.paused.front().is_some_and(|&(at, _)| at <= now) {
            let Some((_, index)) = self.paused.pop_front() else { break };
            self.free.push(index);
        }
        let latest = self.span.end_ns + CATCH_UP_NS;
        loop {
            let Arrival::Open(schedule) = &self.arrival else { return Ok(true) };
            if self.next >= schedule.len() || now >= latest {
                break;
            }
            let intended = schedule.intended_ns(self.next);
            let at = now_ns();
            if intended > at {
                break;
            }
            let measured = self.span.measures(intended);
            if measured {
                // Only what the thread itself was late by; waiting for a free connection is the server's doing.
                self.tally.kept.scheduled += 1;
                self.tally.kept.lateness.record(at - intended);
                self.pending += 1;
            }
            self.next += 1;
            self.due.push_back(intended);
            self.serve_due()?;
        }
        self.serve_due()?;
        let Arrival::Open(schedule) = &self.arrival else { return Ok(true) };
        Ok(self.next >= schedule.len() || now >= latest)
    }

    /// Give due requests to connections that are free: standing ones first.
    fn serve_due(&mut self) -> Result<(), Error> {
        while let Some(&intended) = self.due.front() {
            let Some(index) = self.idle.pop_front().or_else(|| self.free.pop()) else { return Ok(()) };
            self.due.pop_front();
            let measured = self.span.measures(intended);
            // Counted as pending when it became due.
            self.pending -= usize::from(measured);
            self.begin(index, intended, measured)?;
        }
        Ok(())
    }

    /// A connection has nothing to do any more.
    fn released(&mut self, index: usize, now: u64, after_failure: bool) -> Result<(), Error> {
        if after_failure {
            self.paused.push_back((now + PAUSE_NS, index));
            return Ok(());
        }
        if !self.is_scheduled() {
            return self.begin_closed(index);
        }
        if self.connections[index].state == State::Ready {
            self.idle.push_back(index);
        } else {
            self.free.push(index);
        }
        self.serve_due()
    }

    /// The server closed an idle connection.
    fn lost_idle(&mut self, index: usize) {
        self.idle.retain(|&other| other != index);
        self.free.push(index);
    }

    /// Gives up all work that is overdue. All of it has the same limit, so an occasional check of each connection is enough.
    fn give_up_overdue(&mut self, now: u64) -> Result<(), Error> {
        let timeout = nanos(self.job.timeout);
        self.next_look_ns = now + (timeout / 20).clamp(1_000_000, STOP_LOOK_NS);
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if connection.state == State::Ready || connection.state == State::Free {
                continue;
            }
            if now.saturating_sub(connection.begun_ns) < timeout {
                continue;
            }
            match connection.state {
                State::Closing => {
                    self.tally.unclosed += u64::from(self.span.measures(connection.begun_ns));
                    self.drop_connection(index);
                    self.released(index, now, false)?;
                }
                State::Opening => self.fail(index, Failure::ConnectTimedOut, now)?,
                _ => self.fail(index, Failure::TimedOut, now)?,
            }
        }
        while self.due.front().is_some_and(|&intended| now.saturating_sub(intended) >= timeout) {
            let Some(intended) = self.due.pop_front() else { break };
            if self.span.measures(intended) {
                self.pending -= 1;
                let whole = now.saturating_sub(intended);
                self.tally.fail(Failure::TimedOut, Waited { whole, ..Waited::default() });
            }
        }
        Ok(())
    }

    /// Sleep until something is ready or the next thing is to be done, the last stretch before a scheduled request to be spun.
    /// Returns the limit for the epoll_wait(2) that follows.
    fn sleep(&mut self, all_begun: bool) -> Result<Timespec, Error> {
        let now = now_ns();
        let mut until = (now + STOP_LOOK_NS).min(self.next_look_ns.max(now));
        if now < self.span.end_ns {
            until = until.min(self.span.end_ns);
        }
        if let Some(&(at, _)) = self.paused.front() {
            until = until.min(at);
        }
        let scheduled = match &self.arrival {
            Arrival::Closed if self.ramped < self.connections.len() => {
                Some(self.span.begin_ns + (self.ramped as f64 * self.ramp_ns) as u64)
            }
            Arrival::Open(schedule) if !all_begun => Some(schedule.intended_ns(self.next)),
            _ => None,
        };
        let Some(scheduled) = scheduled else {
            let left = until.saturating_sub(now);
            return Ok(Timespec { tv_sec: 0, tv_nsec: left.min(999_999_999) as i64 });
        };
        until = until.min(scheduled.saturating_sub(self.margin.ns()));
        if until > now {
            let ready =
                wait_for(self.epoll.as_fd(), PollFlags::IN, until - now).map_err(Error::io("poll"))?;
            if !ready {
                self.margin.learn(now_ns().saturating_sub(until));
            }
        }
        Ok(Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    fn finish(mut self) -> HttpCounts {
        let now = now_ns();
        self.cpu.look(self.phase(now));
        self.tally.cpu_s = self.cpu.seconds();
        self.leave_all(now);
        for intended in std::mem::take(&mut self.due).into_iter().filter(|due| self.span.measures(*due)) {
            self.tally.leave(Waited { whole: now.saturating_sub(intended), ..Waited::default() });
        }
        if let Arrival::Open(schedule) = &self.arrival
            && !self.setting.stop.raised()
        {
            let unsent =
                (self.next..schedule.len()).filter(|&k| self.span.measures(schedule.intended_ns(k))).count();
            self.tally.kept.unsent = unsent as u64;
            self.tally.kept.scheduled += unsent as u64;
        }
        self.tally
    }
}
