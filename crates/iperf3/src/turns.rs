//! Whose UDP streams a greeting belongs to.
//!
//! A greeting is four bytes without a cookie: it names neither its session nor its position. Clients behind one NAT have one
//! address, and their ports follow no rule. But a client greets only after the server asks it to create its streams, and for each
//! stream only after the answer to the one before. So the server asks the sessions of one address one at a time. All greetings
//! belong to that session until all of its streams exist, in the order of its streams. These remaining cases could go wrong, and
//! do not:
//!
//! - A copy of a greeting that comes in a later turn: the address and port of a stream belong to no other session while its
//!   session lasts.
//! - A greeting that is still on its way when its session gave up: after such a turn the next one waits for [`SETTLING`].
//! - A greeting in another form than the turn's first: versions before 3.10, and machines of another byte order, have their own.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_sys::Stop;

use super::error::Error;
use super::parameters::MAX_STREAMS;
use super::streams::plain;

/// How late a greeting may come after its session is over: the session ended by a connection that the same path serves.
pub(super) const SETTLING: Duration = Duration::from_secs(1);

/// How soon a raised stop is seen.
const LOOK: Duration = Duration::from_millis(100);

/// Greetings of a turn that wait for it, at most: more than it can have streams.
const WAITING: usize = 2 * MAX_STREAMS as usize + 8;

/// Who greeted, and the answer that he is to get.
type Greeting = (SocketAddr, [u8; 4]);

/// The turns of all addresses, and the streams that came of them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    /// A turn is over.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    turns: HashMap<IpAddr, Turn>,
    /// Sessions that wait for their turn.
    awaited: HashMap<IpAddr, u32>,
    /// This host's address, and the far end's address and port.
    claimed: HashSet<(IpAddr, SocketAddr)>,
}

#[derive(Debug)]
enum Turn {
    Taken(SyncSender<Greeting>),
    /// Over, but not free before that time.
    Settling(Instant),
}

/// A session's turn to open its UDP streams.
#[derive(Debug)]
pub(super) struct UdpTurn<'a> {
    turns: &'a Turns,
    client: IpAddr,
    heard: Receiver<Greeting>,
    /// The answer to the first greeting, and so to all of them.
    form: Option<[u8; 4]>,
    done: bool,
}

/// A UDP stream that belongs to no other session until this is dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    turns: &'a Turns,
    ends: (IpAddr, SocketAddr),
}

impl Turns {
    /// Wait for the turn of a session: one at a time from each address, IPv4 in its own form.
    ///
    /// # Errors
    /// The turn did not come in time, or the server ends.
    pub(super) fn wait(&self, client: IpAddr, patience: Duration, stop: &Stop) -> Result<UdpTurn<'_>, Error> {
        let until = Instant::now() + patience;
        let mut state = self.state();
        *state.awaited.entry(client).or_default() += 1;
        let came = loop {
            let now = Instant::now();
            let wait = match state.turns.get(&client) {
                None => break Ok(()),
                Some(Turn::Settling(at)) if *at <= now => break Ok(()),
                Some(Turn::Settling(at)) => *at - now,
                Some(Turn::Taken(_)) => LOOK,
            };
            if now >= until {
                break Err(Error::Silent("waiting for another test of this client to open its streams"));
            }
            if stop.raised() {
                break Err(Error::Stopped);
            }
            let wait = wait.min(LOOK).min(until - now);
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        };
        if let Entry::Occupied(mut waiting) = state.awaited.entry(client) {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
        came?;
        let (tell, heard) = sync_channel(WAITING);
        state.turns.insert(client, Turn::Taken(tell));
        Ok(UdpTurn { turns: self, client, heard, form: None, done: false })
    }

    /// Hands a greeting to the session whose turn it is. Returns at once; false if no session takes it.
    pub(super) fn greeted(&self, from: SocketAddr, answer: [u8; 4]) -> bool {
        match self.state().turns.get(&from.ip().to_canonical()) {
            // A full queue is one of a client that greets more often than it said.
            Some(Turn::Taken(turn)) => turn.try_send((from, answer)).is_ok(),
            _ => false,
        }
    }

    /// Make what comes from `peer` to `own` a session's; `None` if it is one's already.
    pub(super) fn claim(&self, own: IpAddr, peer: SocketAddr) -> Option<Claim<'_>> {
        let ends = (own.to_canonical(), plain(peer));
        // Made only if it is to be: dropping one gives it up.
        let new = self.state().claimed.insert(ends);
        new.then(|| Claim { turns: self, ends })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UdpTurn<'_> {
    /// The next greeting, if there is one before so long.
    pub(super) fn next(&mut self, patience: Duration) -> Result<Option<Greeting>, Error> {
        match self.heard.recv_timeout(patience) {
            Ok((from, answer)) => {
                let own = *self.form.get_or_insert(answer) == answer;
                Ok(own.then_some((from, answer)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            // The sender's end is kept as long as the turn lasts.
            Err(RecvTimeoutError::Disconnected) => Err(Error::Stopped),
        }
    }

    /// Another session of this address waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.turns.state().awaited.contains_key(&self.client)
    }

    /// All streams are there: no greeting of this session can come any more.
    pub(super) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for UdpTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        let now = Instant::now();
        state.turns.retain(|_, turn| !matches!(turn, Turn::Settling(at) if *at <= now));
        if self.done {
            state.turns.remove(&self.client);
        } else {
            state.turns.insert(self.client, Turn::Settling(now + SETTLING));
        }
        drop(state);
        self.turns.changed.notify_all();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.turns.state().claimed.remove(&self.ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const NOW: Duration = Duration::from_millis(1);

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn a_greeting_is_of_whoever_s_turn_it_is_and_addresses_do_not_wait_for_each_other() {
        let (turns, stop) = (Turns::default(), Stop::default());
        turns.greeted(at("192.0.2.1:1"), *b"6789");
        let mut one = turns.wait(at("192.0.2.1:0").ip(), LONG, &stop).unwrap();
        let mut other = turns.wait(at("192.0.2.2:0").ip(), LONG, &stop).unwrap();
        assert!(one.next(NOW).unwrap().is_none(), "nobody had been told to greet");
        turns.greeted(at("[::ffff:192.0.2.1]:7"), *b"6789");
        turns.greeted(at("192.0.2.2:8"), *b"9876");
        assert_eq!(one.next(LONG).unwrap(), Some((at("[::ffff:192.0.2.1]:7"), *b"6789")));
        assert_eq!(other.next(LONG).unwrap(), Some((at("192.0.2.2:8"), *b"9876")));
        // A client greets in one form only.
        turns.greeted(at("192.0.2.2:9"), *b"6789");
        assert_eq!(other.next(LONG).unwrap(), None);
    }

    #[test]
    fn the_next_turn_comes_at_once_after_a_whole_one_and_later_after_one_that_failed() {
        let (turns, stop) = (Turns::default(), Stop::default());
        let client = at("192.0.2.1:0").ip();
        let turn = || turns.wait(client, Duration::ZERO, &stop);
        let first = turn().unwrap();
        assert!(matches!(turn(), Err(Error::Silent(_))));
        first.done();
        let failed = turn().unwrap();
        drop(failed);
        let ended = Instant::now();
        assert!(matches!(turn(), Err(Error::Silent(_))));
        // Bytes still on their way count for no end.
        turns.greeted(at("192.0.2.1:7"), *b"6789");
        let mut next = turns.wait(client, LONG, &stop).unwrap();
        assert!(ended.elapsed() + Duration::from_millis(1) >= SETTLING);
        assert!(next.next(NOW).unwrap().is_none());
        stop.raise();
        assert!(matches!(turns.wait(client, LONG, &stop), Err(Error::Stopped)));
    }

    #[test]
    fn whoever_waits_is_seen_and_gets_its_turn() {
        let (turns, stop) = (Turns::default(), Stop::default());
        let client = at("192.0.2.1:0").ip();
        let first = turns.wait(client, LONG, &stop).unwrap();
        assert!(!first.is_awaited());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| turns.wait(client, LONG, &stop).map(UdpTurn::done));
            let until = Instant::now() + LONG;
            while !first.is_awaited() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
            first.done();
            second.join().unwrap().unwrap();
        });
        let state = turns.state();
        assert!(state.turns.is_empty() && state.awaited.is_empty(), "{state:?}");
    }

    #[test]
    fn a_stream_is_one_session_s_while_that_lasts() {
        let turns = Turns::default();
        let own = at("192.0.2.9:0").ip();
        let claim = turns.claim(own, at("192.0.2.1:7")).unwrap();
        assert!(turns.claim(own, at("[::ffff:192.0.2.1]:7")).is_none(), "written so or so");
        assert!(turns.claim(own, at("192.0.2.1:8")).is_some());
        assert!(turns.claim(at("192.0.2.8:0").ip(), at("192.0.2.1:7")).is_some());
        drop(claim);
        assert!(turns.claim(own, at("192.0.2.1:7")).is_some());
    }
}
