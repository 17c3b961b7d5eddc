//! The two ends: who opens, who accepts, and the threads of the streams.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::handshake::{self, Hello};
use super::receive::{Received, receive};
use super::send::{LOOK, Sent, send};
use super::{TcpStreamWork, summary};
use crate::latency::pin;
use crate::pace::Ending;
use crate::socket::{connect_tcp, wait_readable};
use crate::window::Window;
use crate::{Direction, Error, Part, Responder, Setting, Stop};

/// How long a handshake may take, of TCP or ours.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// What a stream's thread returns.
pub(super) enum Outcome {
    Sent(Sent),
    Received(Received),
}

/// The windows of one end: what it sends begins at another time than what it receives.
pub(super) struct Windows {
    pub sending: Window,
    pub receiving: Window,
}

impl Windows {
    fn new(setting: &Setting) -> Self {
        Windows { sending: Window::new(setting), receiving: Window::new(setting) }
    }
}

fn run_stream(
    work: &TcpStreamWork,
    connection: TcpStream,
    sends: bool,
    windows: &Windows,
    ending: &Ending,
) -> Result<Outcome, Error> {
    // The connection is closed when this returns, before the outcome (which keeps a zero-copy buffer) is dropped.
    if sends {
        send(work, &connection, &windows.sending, ending).map(Outcome::Sent)
    } else {
        receive(work, &connection, &windows.receiving, ending).map(Outcome::Received)
    }
}

/// The initiator's end.
pub(super) fn drive(work: &TcpStreamWork, setting: &Setting, target: SocketAddr) -> Result<Part, Error> {
    let ending = Ending { stop: setting.stop.clone(), done: Stop::default() };
    let windows = Windows::new(setting);
    let mut connections = Vec::new();
    for stream in 0..work.streams {
        for egress in directions(work.direction) {
            let source = |source| Error::Connect { address: target, source };
            let connection =
                connect_tcp(target, &work.socket_options(), HANDSHAKE, &setting.stop).map_err(source)?;
            let hello = Hello { cookie: setting.cookie, stream, egress: *egress };
            handshake::introduce(&connection, hello, HANDSHAKE, &setting.stop).map_err(source)?;
            connections.push((*egress, connection));
        }
    }
    for (_, connection) in &connections {
        handshake::go(connection).map_err(Error::io("start a stream"))?;
    }
    let outcomes = std::thread::scope(|scope| {
        let start = |(nth, (sends, connection)): (usize, (bool, TcpStream))| {
            let (windows, ending) = (&windows, &ending);
            std::thread::Builder::new().name(format!("tcp-{nth}")).spawn_scoped(scope, move || {
                pin(setting, nth)?;
                run_stream(work, connection, sends, windows, ending)
            })
        };
        let threads: Vec<std::io::Result<ScopedJoinHandle<_>>> =
            connections.into_iter().enumerate().map(start).collect();
        if threads.iter().any(Result::is_err) {
            ending.done.raise();
        }
        threads
            .into_iter()
            .map(|t| join(t.map_err(Error::io("start a thread"))?.join()))
            .collect::<Vec<Result<Outcome, Error>>>()
    });
    summary::part(&windows, outcomes, setting, "initiator")
}

/// True for each connection of a stream whose data the initiator sends.
fn directions(direction: Direction) -> &'static [bool] {
    match direction {
        Direction::Egress => &[true],
        Direction::Ingress => &[false],
        Direction::Both => &[true, false],
    }
}

fn join<T>(result: std::thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The responder's end.
pub(super) struct TcpStreamResponder {
    port: u16,
    setting: Setting,
    windows: Arc<Windows>,
    ending: Ending,
    acceptor: Option<JoinHandle<Vec<Result<Outcome, Error>>>>,
}

impl TcpStreamResponder {
    pub(super) fn open(work: &TcpStreamWork, setting: &Setting, bind: SocketAddr) -> Result<Self, Error> {
        let error = |source| Error::Listen { address: bind, source };
        let listener = TcpListener::bind(bind).map_err(error)?;
        // Accepted sockets inherit them; the window scale follows from the buffer when the SYN arrives.
        work.socket_options().apply(&listener).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let port = listener.local_addr().map_err(error)?.port();
        let ending = Ending { stop: setting.stop.clone(), done: Stop::default() };
        let windows = Arc::new(Windows::new(setting));
        let server = Server {
            work: work.clone(),
            setting: setting.clone(),
            windows: windows.clone(),
            ending: ending.clone(),
        };
        let acceptor = std::thread::Builder::new()
            .name("tcp-accept".into())
            .spawn(move || server.accept_all(&listener))
            .map_err(Error::io("start a thread"))?;
        Ok(TcpStreamResponder { port, setting: setting.clone(), windows, ending, acceptor: Some(acceptor) })
    }

    fn close(&mut self) -> Vec<Result<Outcome, Error>> {
        self.ending.done.raise();
        self.acceptor.take().map(|t| join(t.join())).unwrap_or_default()
    }
}

impl Responder for TcpStreamResponder {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let outcomes = self.close();
        summary::part(&self.windows, outcomes, &self.setting, "responder")
    }
}

impl Drop for TcpStreamResponder {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the responder's threads share.
#[derive(Clone)]
struct Server {
    work: TcpStreamWork,
    setting: Setting,
    windows: Arc<Windows>,
    ending: Ending,
}

impl Server {
    /// Accept until the end, then wait for the streams.
    fn accept_all(self, listener: &TcpListener) -> Vec<Result<Outcome, Error>> {
        let mut threads = Vec::new();
        let mut results = Vec::new();
        while !self.ending.raised() {
            match wait_readable(listener, LOOK)
                .and_then(|ready| if ready { listener.accept().map(Some) } else { Ok(None) })
            {
                Ok(Some((connection, _))) => {
                    let (server, nth) = (self.clone(), threads.len());
                    let thread = std::thread::Builder::new().name(format!("tcp-{nth}"));
                    match thread.spawn(move || server.serve(connection, nth)) {
                        Ok(thread) => threads.push(thread),
                        Err(source) => results.push(Err(Error::Io { what: "start a thread", source })),
                    }
                }
                Ok(None) => {}
                // The connection went away between the wait and the accept.
                Err(e) if crate::socket::timed_out(&e) || crate::socket::closed(&e) => {}
                Err(source) => {
                    results.push(Err(Error::Io { what: "accept a connection", source }));
                    break;
                }
            }
        }
        results.extend(threads.into_iter().filter_map(|t| join(t.join()).transpose()));
        results
    }

    /// One connection. `None` if it is a stranger's, or went away before its stream began.
    fn serve(&self, connection: TcpStream, nth: usize) -> Result<Option<Outcome>, Error> {
        connection.set_nonblocking(false).map_err(Error::io("prepare a connection"))?;
        // Limits one who sends half a greeting.
        connection.set_read_timeout(Some(LOOK * 5)).map_err(Error::io("prepare a connection"))?;
        if !self.something_comes(&connection)? {
            return Ok(None);
        }
        let Ok(Some(hello)) = handshake::welcome(&connection, self.setting.cookie) else { return Ok(None) };
        pin(&self.setting, nth)?;
        if !self.something_comes(&connection)? || handshake::wait_for_go(&connection).is_err() {
            return Ok(None);
        }
        run_stream(&self.work, connection, !hello.egress, &self.windows, &self.ending).map(Some)
    }
    /// Wait for the next part of the handshake, as long as that may take and the end has not come.
    fn something_comes(&self, connection: &TcpStream) -> Result<bool, Error> {
        let deadline = Instant::now() + HANDSHAKE;
        while !self.ending.raised() && Instant::now() < deadline {
            if wait_readable(connection, LOOK).map_err(Error::io("wait for a stream's greeting"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
