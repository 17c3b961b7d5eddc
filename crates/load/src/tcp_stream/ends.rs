//! The two ends: who opens, who accepts, and what the streams' threads do.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::handshake::{self, Hello};
use super::receive::{Received, receive};
use super::send::{LOOK, Sent, send};
use super::{TcpStreamWork, summary};
use crate::latency::pin;
use crate::socket::{connect_tcp, wait_readable};
use crate::streams::{self, Side, StreamEnd, StreamResponder, Threads};
use crate::{Direction, Error, Part, Setting};

/// How long a handshake may take, of TCP or ours.
const HANDSHAKE: Duration = Duration::from_secs(5);

type Outcome = streams::Outcome<Sent, Received>;
type Outcomes = streams::Outcomes<Sent, Received>;

fn run_stream(
    work: &TcpStreamWork,
    connection: TcpStream,
    sends: bool,
    end: &StreamEnd,
) -> Result<Outcome, Error> {
    // The connection is closed when this returns, before the outcome (which keeps a zero-copy buffer) is dropped.
    if sends {
        send(work, &connection, &end.sending, &end.ending).map(Outcome::Sent)
    } else {
        receive(work, &connection, &end.receiving, &end.ending).map(Outcome::Received)
    }
}

/// The initiator's end.
pub(super) fn drive(work: &TcpStreamWork, setting: &Setting, target: SocketAddr) -> Result<Part, Error> {
    let end = StreamEnd::new(Side::Initiator, setting);
    let mut connections = Vec::new();
    for stream in 0..work.streams {
        for way in work.direction.ways() {
            let egress = *way == Direction::Egress;
            let source = |source| Error::Connect { address: target, source };
            let connection =
                connect_tcp(target, &work.socket_options(), HANDSHAKE, &setting.stop).map_err(source)?;
            let hello = Hello { cookie: setting.cookie, stream, egress };
            handshake::introduce(&connection, hello, HANDSHAKE, &setting.stop).map_err(source)?;
            connections.push((egress, connection));
        }
    }
    for (_, connection) in &connections {
        handshake::go(connection).map_err(Error::io("start a stream"))?;
    }
    let outcomes =
        end.run_all("tcp", connections, |(sends, connection)| run_stream(work, connection, sends, &end));
    summary::part(&end, outcomes)
}

/// Open the responder's end.
pub(super) fn open(
    work: &TcpStreamWork,
    setting: &Setting,
    bind: SocketAddr,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let error = |source| Error::Listen { address: bind, source };
    let listener = TcpListener::bind(bind).map_err(error)?;
    // Accepted sockets inherit them; the window scale follows from the buffer when the SYN arrives.
    work.socket_options().apply(&listener).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    let local = listener.local_addr().map_err(error)?;
    let end = StreamEnd::new(Side::Responder, setting);
    let server = Server { work: work.clone(), end: end.clone() };
    StreamResponder::start("tcp", local, end, summary::part, move || server.accept_all(&listener))
}

/// What the responder's threads share.
#[derive(Clone)]
struct Server {
    work: TcpStreamWork,
    end: StreamEnd,
}

impl Server {
    /// Accept until the end, then wait for the streams.
    fn accept_all(self, listener: &TcpListener) -> Outcomes {
        let mut threads = Threads::new("tcp");
        while !self.end.ending.raised() {
            match wait_readable(listener, LOOK)
                .and_then(|ready| if ready { listener.accept().map(Some) } else { Ok(None) })
            {
                Ok(Some((connection, _))) => {
                    let server = self.clone();
                    threads.start(move |nth| server.serve(connection, nth));
                }
                Ok(None) => {}
                // The connection went away between the wait and the accept.
                Err(e) if crate::socket::timed_out(&e) || crate::socket::closed(&e) => {}
                Err(source) => {
                    threads.fail(Error::Io { what: "accept a connection", source });
                    break;
                }
            }
        }
        threads.join()
    }

    /// One connection. `None` if it is a stranger's, or went away before its stream began.
    fn serve(&self, connection: TcpStream, nth: usize) -> Result<Option<Outcome>, Error> {
        connection.set_nonblocking(false).map_err(Error::io("prepare a connection"))?;
        // Limits one who sends half a greeting.
        connection.set_read_timeout(Some(LOOK * 5)).map_err(Error::io("prepare a connection"))?;
        if !self.something_comes(&connection)? {
            return Ok(None);
        }
        let Ok(Some(hello)) = handshake::welcome(&connection, self.end.setting.cookie) else {
            return Ok(None);
        };
        pin(&self.end.setting, nth)?;
        if !self.something_comes(&connection)? || handshake::wait_for_go(&connection).is_err() {
            return Ok(None);
        }
        run_stream(&self.work, connection, !hello.egress, &self.end).map(Some)
    }

    /// Wait for the next part of the handshake, as long as that may take and the end has not come.
    fn something_comes(&self, connection: &TcpStream) -> Result<bool, Error> {
        let deadline = Instant::now() + HANDSHAKE;
        while !self.end.ending.raised() && Instant::now() < deadline {
            if wait_readable(connection, LOOK).map_err(Error::io("wait for a stream's greeting"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
