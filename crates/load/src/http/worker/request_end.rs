//! The end of a request: whole, failed, or left when the trial ends; and what counts of it.

use rustix::io::Errno;

use super::Worker;
use super::connection::State;
use crate::Error;
use crate::connector::Close;
use crate::http::tally::{Failure, Waited};
use crate::window::Phase;

impl Worker<'_> {
    /// The response is whole.
    pub(super) fn complete(&mut self, index: usize, closed: bool, now: u64) -> Result<(), Error> {
        let (observed, rated) = (self.is_observed(index, now), self.is_rated(index, now));
        let waited = self.waited(index, now);
        let connection = &mut self.connections[index];
        let status = connection.reader.status();
        let bad = self.job.expect.refuses(status, connection.reader.body_bytes());
        self.tally.all_ok += u64::from(bad.is_none());
        self.pending -= usize::from(connection.measured);
        if observed {
            self.tally.last_ns = now;
            match bad {
                Some(how) => self.tally.fail(how, waited),
                // The batch's time may be from before the request left.
                None => {
                    self.tally.latency.record(waited.whole);
                    self.tally.response.record(now.saturating_sub(connection.asked_ns));
                }
            }
        }
        if rated && bad.is_none() {
            self.tally.ok += 1;
            self.tally.status_2xx += u64::from(status < 300);
            self.tally.status_3xx += u64::from((300..400).contains(&status));
            self.tally.body_bytes += connection.reader.body_bytes();
            self.times.push(now, waited.whole);
        }
        let keeps = connection.reader.keeps_open();
        if self.job.keep_alive && keeps && !closed {
            connection.state = State::Ready;
            connection.reused = true;
            return self.released(index, now, false);
        }
        // A server that said that it closes does so first, which keeps the TIME-WAIT state on its side (RFC 9293 section
        // 3.6.1), and the ports here do not run out.
        if closed || keeps || self.job.close == Close::Reset {
            if closed {
                self.retire(index);
            } else {
                self.drop_connection(index);
            }
            return self.released(index, now, false);
        }
        connection.state = State::Closing;
        Ok(())
    }

    /// A system call on the connection failed.
    pub(super) fn broken(&mut self, index: usize, error: Errno, now: u64) -> Result<(), Error> {
        let connected = self.connections[index].state != State::Opening;
        match Failure::of(error, connected) {
            Some(how) => self.fail(index, how, now),
            None => self.own_error(index, error),
        }
    }

    pub(super) fn fail_tls(&mut self, index: usize, words: &str, now: u64) -> Result<(), Error> {
        self.tally.example.get_or_insert_with(|| format!("TLS: {words}"));
        self.fail(index, Failure::Tls, now)
    }

    /// The request failed.
    pub(super) fn fail(&mut self, index: usize, how: Failure, now: u64) -> Result<(), Error> {
        let observed = self.is_observed(index, now);
        let waited = self.waited(index, now);
        let connection = &mut self.connections[index];
        // A server may close a kept connection at any time, also while a request is on its way; that one is sent again on
        // a new connection, once (RFC 9112 section 9.3.1). A hop that cuts connections looks the same, so these are counted.
        let closed = matches!(how, Failure::Reset | Failure::CutShort);
        if closed && connection.reused && !connection.retried && connection.reader.is_untouched() {
            connection.retried = true;
            self.tally.closed_idle += u64::from(observed);
            self.tally.resent += u64::from(observed);
            self.drop_connection(index);
            return self.dial(index);
        }
        self.pending -= usize::from(connection.measured);
        if observed {
            self.tally.last_ns = now;
            self.tally.fail(how, waited);
        }
        self.drop_connection(index);
        self.released(index, now, true)
    }

    /// Close it; the place is free.
    pub(super) fn drop_connection(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.fd = None;
        connection.tls = None;
        connection.state = State::Free;
        // Comes round after 4 billion connections in one place; no event is that old.
        connection.generation = connection.generation.wrapping_add(1);
    }

    /// Whether the request that ends (or is left) at `now` is an observation. With a schedule or a set number those are that
    /// were meant to begin in the window. In a closed loop those are that began in it, and also those that were on their way
    /// through all of it: what a stall holds must not be missing because it began too early.
    pub(super) fn is_observed(&self, index: usize, now: u64) -> bool {
        let connection = &self.connections[index];
        if !self.counts_ends() {
            return connection.measured;
        }
        let began_before = connection.begun_ns < self.span.window_ns;
        self.span.measures(connection.begun_ns) || (began_before && now >= self.span.end_ns)
    }

    /// Whether a response that is whole at `now` counts for the rate: in a closed loop by when it ends, so that the rate is
    /// right also where responses take longer than the window.
    fn is_rated(&self, index: usize, now: u64) -> bool {
        if self.counts_ends() { self.ends_in_window(now) } else { self.connections[index].measured }
    }

    pub(super) fn ends_in_window(&self, now: u64) -> bool {
        self.span.phase(now) == Phase::Within(0)
    }

    /// How long the request on that place has been on its way.
    pub(super) fn waited(&self, index: usize, now: u64) -> Waited {
        let connection = &self.connections[index];
        let since = |from: u64| now.saturating_sub(from);
        let state = connection.state;
        let was_asked = matches!(state, State::Asking | State::Reading);
        Waited {
            whole: since(connection.begun_ns),
            connecting: (state == State::Opening).then(|| since(connection.dialled_ns)),
            agreeing: (state == State::Agreeing).then(|| since(connection.dialled_ns)),
            asked: was_asked.then(|| since(connection.asked_ns)),
        }
    }

    /// Counts the requests that are still on their way and will not be awaited.
    pub(super) fn leave_all(&mut self, now: u64) {
        for index in 0..self.connections.len() {
            let idle = matches!(self.connections[index].state, State::Free | State::Ready | State::Closing);
            if !idle && self.is_observed(index, now) {
                let waited = self.waited(index, now);
                self.tally.leave(waited);
            }
        }
    }
}
