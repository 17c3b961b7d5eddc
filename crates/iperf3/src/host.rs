//! The server: many clients at once on one port, which iperf3 itself refuses.
//!
//! The owner of the port hands over connections that begin like iperf3. A connection belongs to the session of its cookie; a new
//! cookie begins a session. UDP greetings carry no cookie: see [`super::turns`].

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use weir_sys::Stop;

use super::datagram::answer;
use super::ended::Ended;
use super::parameters::MAX_STREAMS;
use super::session::Session;
use super::shared::{Entry, Shared};
use super::streams::plain;
use super::turns::Turns;
use super::wire::{COOKIE_BYTES, Cookie, State};
use weir_load::limits::Limits;
use weir_load::port::Port;

/// Stack of a session's thread.
const STACK_BYTES: usize = 256 << 10;

/// How long sessions may take to say goodbye when the server ends.
const GOODBYE: Duration = Duration::from_secs(2);

/// Connections of a session that wait for it, at most: more than it can have streams.
const WAITING: usize = 2 * MAX_STREAMS as usize + 8;

/// The server's part that speaks with iperf3 clients. Dropping it ends all sessions.
pub struct Host {
    shared: Arc<Shared>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("sessions", &self.sessions()).finish_non_exhaustive()
    }
}

impl Host {
    /// Serve over that port, within these limits, in which other clients of the server are counted too.
    pub fn new(limits: Arc<Limits>, port: Arc<Port>) -> Host {
        let shared = Shared {
            limits,
            port,
            stop: Stop::default(),
            json_output: false,
            log: None,
            turns: Turns::default(),
            sessions: Mutex::default(),
            changed: Condvar::new(),
        };
        Host { shared: Arc::new(shared) }
    }

    /// Give clients that ask for the server's output JSON instead of text, as `iperf3 -s -J` does. Before the first connection.
    #[must_use]
    pub fn json_output(mut self, json: bool) -> Host {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.json_output = json;
        }
        self
    }

    /// Tell `log` of each session that is over, from its own thread. Before the first connection.
    #[must_use]
    pub fn log(mut self, log: impl Fn(&Ended) + Send + Sync + 'static) -> Host {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.log = Some(Box::new(log));
        }
        self
    }

    /// Sessions at the moment.
    pub fn sessions(&self) -> usize {
        self.shared.sessions().len()
    }

    /// Take over a connection whose first bytes are a cookie ([`Cookie::read`]), which were only peeked at. Returns at once.
    ///
    /// `order` grows in the order in which connections were accepted. Nothing else tells a test's streams apart, and the first
    /// bytes of one may come after those of the next. True if the connection belongs to a session, or begins one.
    pub fn connection(&self, mut stream: TcpStream, from: SocketAddr, order: u64) -> bool {
        let mut bytes = [0; COOKIE_BYTES];
        let came = stream.set_nonblocking(true).and_then(|()| stream.read_exact(&mut bytes));
        // A peer that sent less is no iperf3 client, or has gone: closing is the answer.
        let (Ok(()), Some(cookie)) = (came, Cookie::read(&bytes)) else { return false };
        let known = self.shared.sessions().get(&cookie).cloned();
        match known {
            Some(entry) if entry.opening_tcp.load(Relaxed) => {
                // A full queue is one of a client that opens more than it said.
                entry.connections.try_send((order, stream)).is_ok()
            }
            Some(_) => deny(&mut stream),
            None => self.begin(cookie, stream, from),
        }
    }

    /// An iperf3 greeting ([`super::is_greeting`]) came to the server's UDP socket; anything else is ignored. Returns at once; true if a session waits for it. Nothing is sent to an address that
    /// has not got a session here, and nothing longer than the greeting before its test runs.
    pub fn datagram(&self, first: &[u8], from: SocketAddr) -> bool {
        answer(first).is_some_and(|answer| self.shared.turns.greeted(from, answer))
    }

    /// End all sessions, and wait for them, 2 s at most.
    pub fn close(&self) {
        self.shared.stop.raise();
        let until = Instant::now() + GOODBYE;
        let mut sessions = self.shared.sessions();
        while !sessions.is_empty() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            sessions = self.shared.wait(sessions, left);
        }
    }

    fn begin(&self, cookie: Cookie, mut stream: TcpStream, from: SocketAddr) -> bool {
        let shared = &self.shared;
        if shared.stop.raised() {
            return deny(&mut stream);
        }
        let Ok(admission) = shared.limits.admit(from.ip()) else { return deny(&mut stream) };
        let (connections, taken) = sync_channel(WAITING);
        let entry = Arc::new(Entry { opening_tcp: AtomicBool::new(false), connections });
        shared.sessions().insert(cookie, entry.clone());
        let (own, from) = (shared.clone(), plain(from));
        let session = move || {
            let _admission = admission;
            let ended = Session::run(&own, &entry, taken, stream, from);
            own.leave(&cookie);
            if let Some(log) = &own.log {
                log(&ended);
            }
        };
        let started =
            std::thread::Builder::new().name("iperf3".into()).stack_size(STACK_BYTES).spawn(session);
        if started.is_err() {
            // The stream went with the closure: its client sees it closed.
            shared.leave(&cookie);
        }
        started.is_ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.close();
    }
}

/// Answers busy, as iperf3 does; false because the connection belongs to no session. It does not wait for a client that does not
/// take one byte.
fn deny(stream: &mut TcpStream) -> bool {
    let _ = stream.write(&[State::AccessDenied.byte()]);
    false
}
