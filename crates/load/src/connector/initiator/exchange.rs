//! Request and response over a connection that stands.

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::super::Close;
use super::super::tally::Failure;
use super::{Initiator, Next, State};

impl Initiator<'_> {
    /// Sends what of the request there is room for.
    pub(super) fn send_request(&mut self, token: u64) -> Next {
        let Some(connection) = self.connections.get_mut(token) else { return Next::Keep };
        let State::Exchanging { sent, .. } = &mut connection.state else { return Next::Keep };
        while *sent < self.request.len() {
            match send(&connection.fd, &self.request[*sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => *sent += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Next::Failed(Failure::of(e).unwrap_or(Failure::Other)),
            }
        }
        Next::Keep
    }

    /// Takes what has come of the response.
    pub(super) fn receive(&mut self, token: u64, flags: EventFlags, now: u64) -> Next {
        let Some(exchange) = self.job.exchange else { return Next::Keep };
        self.observe(token, now);
        loop {
            let Some(connection) = self.connections.get_mut(token) else { return Next::Keep };
            let n = match recv(&connection.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => n,
                Err(Errno::AGAIN) => return Next::Keep,
                Err(Errno::INTR) => continue,
                // Answered already: how it was closed is not the transaction's matter.
                Err(_) if connection.state == State::Closing => return Next::Done,
                Err(e) => return Next::Failed(Failure::of(e).unwrap_or(Failure::Other)),
            };
            match (&mut connection.state, n) {
                (State::Closing, 0) => return Next::Done,
                (_, 0) => return Next::Failed(Failure::CutShort),
                (State::Exchanging { received, .. }, n) => {
                    if !continues(&self.expected, *received, &self.buffer[..n])
                        || *received + n > exchange.response_bytes
                    {
                        return Next::Failed(Failure::Foreign);
                    }
                    *received += n;
                    if *received == exchange.response_bytes {
                        if connection.measured {
                            self.tally.ok += 1;
                            self.tally.whole.record(now - connection.intended_ns);
                            self.times.push(now, now - connection.intended_ns);
                        }
                        connection.state = State::Closing;
                        // With the FIN already seen, another receive would only confirm it.
                        if exchange.close == Close::Reset || flags.contains(EventFlags::RDHUP) {
                            return Next::Done;
                        }
                    }
                }
                // More than was asked for; it has been answered and counted.
                (_, _) => return Next::Done,
            }
            if n < self.buffer.len() && !flags.contains(EventFlags::RDHUP) {
                // A short receive emptied the socket; epoll reports what comes later.
                return Next::Keep;
            }
        }
    }
}

/// True if these bytes, which begin at `offset` of a response, agree with the preamble that it must begin with.
fn continues(expected: &[u8], offset: usize, bytes: &[u8]) -> bool {
    let rest = expected.get(offset..).unwrap_or_default();
    rest.iter().zip(bytes).all(|(a, b)| a == b)
}
