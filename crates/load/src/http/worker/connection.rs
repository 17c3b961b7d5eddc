//! One connection: dial, ask, read, and again.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};
use weir_sys::clock::now_ns;

use super::Worker;
use crate::Error;
use crate::http::response::{Bad, Reader};
use crate::http::tally::Failure;
use crate::http::tls::{Heard, Session};

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// There is none.
    Free,
    /// SYN sent.
    Opening,
    /// TLS handshake.
    Agreeing,
    /// Nothing is on its way.
    Ready,
    /// The request did not fit into the socket's buffer.
    Asking,
    /// The request is out.
    Reading,
    /// The response is here; the server's FIN is not.
    Closing,
}

/// A place for one connection after another.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: Option<OwnedFd>,
    pub(super) state: State,
    /// Told apart by it: an event of a connection closed since must not reach the one that took its place.
    pub(super) generation: u32,
    /// When the request was meant to begin, ns.
    pub(super) begun_ns: u64,
    pub(super) dialled_ns: u64,
    pub(super) asked_ns: u64,
    /// Waited for until it ends: all of a closed loop, and what was meant to begin in the window of the others.
    pub(super) measured: bool,
    /// It has answered before.
    pub(super) reused: bool,
    pub(super) retried: bool,
    /// Known to epoll.
    pub(super) watched: bool,
    /// Also for room in the send buffer.
    pub(super) watched_for_room: bool,
    /// The socket has had a connection before this one.
    pub(super) used: bool,
    pub(super) sent: usize,
    pub(super) reader: Reader,
    pub(super) tls: Option<Session>,
}

impl Connection {
    pub(super) fn new() -> Self {
        Connection {
            fd: None,
            state: State::Free,
            generation: 0,
            begun_ns: 0,
            dialled_ns: 0,
            asked_ns: 0,
            measured: false,
            reused: false,
            retried: false,
            watched: false,
            watched_for_room: false,
            used: false,
            sent: 0,
            reader: Reader::new(),
            tls: None,
        }
    }
}

/// The result of reading.
enum ReadOutcome {
    /// More will come.
    Wait,
    /// The response is whole.
    Whole,
    /// It is, since the server said that it closes.
    Closed,
    Failed(Failure),
}

impl From<Bad> for ReadOutcome {
    fn from(_: Bad) -> Self {
        ReadOutcome::Failed(Failure::BadResponse)
    }
}

impl Worker<'_> {
    /// Begin a request on a place, which was meant to begin at `begun_ns`.
    pub(super) fn begin(&mut self, index: usize, begun_ns: u64, measured: bool) -> Result<(), Error> {
        let connection = &mut self.connections[index];
        connection.begun_ns = begun_ns;
        connection.measured = measured;
        connection.retried = false;
        self.pending += usize::from(measured);
        if connection.state == State::Ready {
            // In a closed loop it begins now, and the clock was just read.
            let at = if self.is_scheduled() { now_ns() } else { begun_ns };
            self.ask(index, at)
        } else {
            self.dial(index)
        }
    }

    pub(super) fn dial(&mut self, index: usize) -> Result<(), Error> {
        let used = self.used_socket(index);
        let is_used = used.is_some();
        let fd = match used.map_or_else(|| self.new_socket(), Ok) {
            Ok(fd) => fd,
            Err(error) => return self.own_error(index, error),
        };
        let session = match self.job.tls.as_ref().map(|tls| tls.session()).transpose() {
            Ok(session) => session,
            Err(e) => return Err(Error::Program { program: "TLS".into(), reason: e.to_string() }),
        };
        let at = now_ns();
        let result = connect(&fd, &self.job.target);
        let connection = &mut self.connections[index];
        connection.fd = Some(fd);
        connection.tls = session;
        connection.state = State::Opening;
        connection.reused = false;
        connection.used = is_used;
        // A used socket is still known to epoll.
        connection.watched &= is_used;
        connection.watched_for_room &= is_used;
        connection.dialled_ns = at;
        connection.sent = 0;
        self.tally.connections_opened += 1;
        match result {
            // On a path within one machine the answer is there when connect(2) returns. To send is the way to find out:
            // it costs less than a registration with epoll and an event, and its time is the truer one.
            Ok(()) | Err(Errno::INPROGRESS) => {
                let at = now_ns();
                self.ask(index, at)
            }
            Err(e) => match Failure::of(e, false) {
                Some(how) => self.fail(index, how, at),
                None => self.own_error(index, e),
            },
        }
    }

    /// This host has no port or descriptor: the request is none.
    pub(super) fn own_error(&mut self, index: usize, error: Errno) -> Result<(), Error> {
        let now = now_ns();
        self.pending -= usize::from(self.connections[index].measured);
        if self.is_observed(index, now) {
            self.tally.own_error(error);
        }
        self.drop_connection(index);
        self.released(index, now, true)
    }

    /// Send the request, or as much of it as fits. `at` is the time.
    fn ask(&mut self, index: usize, at: u64) -> Result<(), Error> {
        let connection = &mut self.connections[index];
        let Some(fd) = connection.fd.as_ref() else { return Ok(()) };
        if let Some(session) = connection.tls.as_mut() {
            if connection.state == State::Ready {
                connection.asked_ns = at;
                connection.reader.reset();
                connection.state = State::Asking;
                if let Err(e) = session.say(&self.job.request) {
                    return self.fail_tls(index, &e.to_string(), at);
                }
            }
            return match session.flush(fd.as_fd()) {
                Ok(all) => self.went_out(index, at, all),
                Err(e) => self.broken(index, e, at),
            };
        }
        if matches!(connection.state, State::Ready | State::Opening) {
            connection.asked_ns = at;
            connection.reader.reset();
            connection.sent = 0;
            if connection.state == State::Ready {
                connection.state = State::Asking;
            }
        }
        let rest = &self.job.request[connection.sent..];
        match send(fd, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => {
                connection.sent += n;
                let all = connection.sent == self.job.request.len();
                self.went_out(index, at, all)
            }
            Err(Errno::AGAIN | Errno::INTR) => self.watch(index, true),
            Err(e) => self.broken(index, e, at),
        }
    }

    /// Something was sent at `at`, so the connection stands.
    fn went_out(&mut self, index: usize, at: u64, all: bool) -> Result<(), Error> {
        let observed = self.is_observed(index, at);
        let connection = &mut self.connections[index];
        if connection.state == State::Opening {
            // TLS without room for its first words has not been sent: the same socket would have taken them.
            if !all && connection.tls.is_some() {
                return self.watch(index, true);
            }
            if observed {
                self.tally.connect.record(at - connection.dialled_ns);
            }
            connection.state = if connection.tls.is_some() { State::Agreeing } else { State::Asking };
            // From here on, of TLS, until the handshake is over.
            if connection.tls.is_some() {
                connection.dialled_ns = at;
            }
        }
        if connection.state == State::Asking && all {
            connection.state = State::Reading;
        }
        self.watch(index, !all)
    }

    /// Have events reported, those of a send buffer with room only where something waits for it.
    fn watch(&mut self, index: usize, room: bool) -> Result<(), Error> {
        let connection = &mut self.connections[index];
        let Some(fd) = connection.fd.as_ref() else { return Ok(()) };
        // With TLS, what is to be sent later may not fit either.
        let room = room || connection.tls.is_some();
        if connection.watched && (connection.watched_for_room || !room) {
            return Ok(());
        }
        let data = EventData::new_u64(u64::from(connection.generation) << 32 | index as u64);
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        flags.set(EventFlags::OUT, room);
        let known = std::mem::replace(&mut connection.watched, true);
        connection.watched_for_room = room;
        let result = match known {
            // A used socket whose earlier requests left at once.
            true => epoll::modify(&self.epoll, fd, data, flags),
            false => epoll::add(&self.epoll, fd, data, flags),
        };
        result.map_err(|e| Error::io("epoll_ctl")(e.into()))
    }

    pub(super) fn handle(&mut self, token: u64, flags: EventFlags, now: u64) -> Result<(), Error> {
        let index = token as u32 as usize;
        let connection = &self.connections[index];
        if u64::from(connection.generation) != token >> 32 {
            return Ok(());
        }
        match connection.state {
            State::Free => Ok(()),
            State::Opening => self.ask(index, now),
            State::Ready | State::Closing => self.nobody_reads(index, flags, now),
            State::Asking | State::Agreeing | State::Reading => {
                if flags.contains(EventFlags::OUT) && connection.state != State::Reading {
                    self.ask(index, now)?;
                }
                let same = u64::from(self.connections[index].generation) == token >> 32;
                let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                if same && flags.intersects(readable) { self.receive(index, flags, now) } else { Ok(()) }
            }
        }
    }

    /// Something happens on a connection on which nothing is awaited but its end.
    fn nobody_reads(&mut self, index: usize, flags: EventFlags, now: u64) -> Result<(), Error> {
        let closing = self.connections[index].state == State::Closing;
        let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        // TLS servers send session tickets whenever they like, and a notice before they close.
        if !ended && self.connections[index].tls.is_some() {
            return self.receive(index, flags, now);
        }
        if !ended && !closing && !flags.contains(EventFlags::IN) {
            return Ok(());
        }
        self.ended(index, now)
    }

    /// A connection on which nothing was on its way was closed.
    fn ended(&mut self, index: usize, now: u64) -> Result<(), Error> {
        let closing = self.connections[index].state == State::Closing;
        if closing {
            self.retire(index);
            return self.released(index, now, false);
        }
        self.drop_connection(index);
        self.tally.closed_idle += u64::from(self.ends_in_window(now));
        self.lost_idle(index);
        Ok(())
    }

    fn receive(&mut self, index: usize, flags: EventFlags, now: u64) -> Result<(), Error> {
        loop {
            let connection = &mut self.connections[index];
            let awaited = !matches!(connection.state, State::Ready | State::Closing);
            let Some(fd) = connection.fd.as_ref() else { return Ok(()) };
            let n = match recv(fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => n,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(e) => return self.broken(index, e, now),
            };
            let outcome = if n == 0 {
                if connection.reader.closed() {
                    ReadOutcome::Closed
                } else {
                    ReadOutcome::Failed(Failure::CutShort)
                }
            } else if connection.tls.is_some() {
                self.decrypt(index, n, now)?
            } else {
                match self.known.read(&mut connection.reader, &self.buffer[..n]) {
                    Ok(true) => ReadOutcome::Whole,
                    Ok(false) => ReadOutcome::Wait,
                    Err(bad) => bad.into(),
                }
            };
            match outcome {
                ReadOutcome::Whole | ReadOutcome::Closed | ReadOutcome::Failed(_) if !awaited => {
                    return self.ended(index, now);
                }
                ReadOutcome::Whole => return self.complete(index, flags.contains(EventFlags::RDHUP), now),
                ReadOutcome::Closed => return self.complete(index, true, now),
                ReadOutcome::Failed(how) => return self.fail(index, how, now),
                ReadOutcome::Wait => {}
            }
            if n < self.buffer.len() && !flags.contains(EventFlags::RDHUP) {
                // A short receive emptied the socket; epoll reports what comes later.
                return Ok(());
            }
        }
    }

    /// Received bytes of a TLS connection, in the buffer.
    fn decrypt(&mut self, index: usize, n: usize, now: u64) -> Result<ReadOutcome, Error> {
        let mut rest = 0..n;
        loop {
            let connection = &mut self.connections[index];
            let (Some(session), Some(fd)) = (connection.tls.as_mut(), connection.fd.as_ref()) else {
                return Ok(ReadOutcome::Wait);
            };
            let mut bytes = &self.buffer[rest.clone()];
            let heard = session.hear(&mut bytes, &mut self.plain);
            rest.start = rest.end - bytes.len();
            let agreed = connection.state == State::Agreeing && !session.is_shaking_hands();
            match heard {
                Err(words) => {
                    // The alert that says so is sent, if it can be; it changes nothing here.
                    let _ = session.flush(fd.as_fd());
                    let how = match connection.state {
                        State::Agreeing => Failure::Tls,
                        _ => Failure::BadResponse,
                    };
                    self.tally.example.get_or_insert_with(|| format!("TLS: {words}"));
                    return Ok(ReadOutcome::Failed(how));
                }
                Ok(Heard::Plain(n)) => match connection.reader.read(&self.plain[..n]) {
                    Ok(true) => return Ok(ReadOutcome::Whole),
                    Ok(false) => {}
                    Err(bad) => return Ok(bad.into()),
                },
                Ok(Heard::Closed) => {
                    let whole = connection.reader.closed();
                    return Ok(if whole {
                        ReadOutcome::Closed
                    } else {
                        ReadOutcome::Failed(Failure::CutShort)
                    });
                }
                Ok(Heard::Nothing) => {}
            }
            if agreed {
                let since = connection.dialled_ns;
                connection.state = State::Ready;
                if self.is_observed(index, now) {
                    self.tally.tls.record(now.saturating_sub(since));
                }
                let at = now_ns();
                self.ask(index, at)?;
            } else if self.connections[index].state == State::Agreeing {
                // Its next words, if it has any.
                self.ask(index, now)?;
            }
            if heard == Ok(Heard::Nothing) && rest.is_empty() {
                return Ok(ReadOutcome::Wait);
            }
        }
    }
}
