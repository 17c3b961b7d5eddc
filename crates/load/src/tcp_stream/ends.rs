//! The two ends: who opens, who accepts, and what the streams' threads do.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::SocketFlags;

use super::controls;
use super::handshake::{self, Hello};
use super::receive::{Received, receive};
use super::send::{LOOK, Sent, send};
use super::{TcpStreamWork, summary};
use crate::door::TcpDoor;
use crate::latency::pin;
use crate::socket::{TcpOptions, connect_tcp, wait_readable};
use crate::streams::{self, Side, StreamEnd, StreamResponder, Threads};
use crate::{Direction, Error, Part, Setting};

/// How long a handshake may take, of TCP or ours.
const HANDSHAKE: Duration = Duration::from_secs(5);

type Outcome = streams::Outcome<Sent, Received>;
type Outcomes = streams::Outcomes<Sent, Received>;

fn run_stream(
    work: &TcpStreamWork,
    connection: TcpStream,
    stream: u32,
    sends: bool,
    end: &StreamEnd,
) -> Result<Outcome, Error> {
    let flow = end.flow(stream, sends);
    // The connection is closed when this returns, before the outcome (which keeps a zero-copy buffer) is dropped.
    if sends {
        send(work, &connection, &end.sending, &end.ending, &flow).map(Outcome::Sent)
    } else {
        receive(work, &connection, &end.receiving, &end.ending, &flow).map(Outcome::Received)
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
            let hello = Hello { cookie: setting.cookie, stream, egress, control: false };
            handshake::introduce(&connection, hello, HANDSHAKE, &setting.stop).map_err(source)?;
            connections.push((stream, egress, connection));
        }
    }
    for (_, _, connection) in &connections {
        handshake::go(connection).map_err(Error::io("start a stream"))?;
    }
    let longest = connections.first().and_then(|(_, _, connection)| controls::packet_bytes(work, connection));
    let outcomes = end.run_all("tcp", connections, |(stream, sends, connection)| {
        run_stream(work, connection, stream, sends, &end)
    });
    let mut part = summary::part(&end, outcomes)?;
    let stuck = |way: &&Direction| part.value(&format!("{way}_stuck")) == f64::from(work.streams);
    for way in work.direction.ways().iter().filter(stuck).copied().collect::<Vec<_>>() {
        if let Some(longest) = longest.filter(|_| !setting.stop.raised()) {
            controls::send(setting, target, way, longest).tell(&mut part, way);
        }
    }
    Ok(part)
}

/// Open the responder's end.
pub(super) fn open(
    work: &TcpStreamWork,
    setting: &Setting,
    bind: SocketAddr,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let error = |source| Error::Listen { address: bind, source };
    let door = TcpDoor::own(bind).map_err(error)?;
    if let Some(listener) = door.listener() {
        // Accepted sockets inherit them; the window scale follows from the buffer when the SYN arrives.
        work.socket_options().apply(listener).map_err(error)?;
    }
    serve(work, setting, door)
}

/// Open the responder's end for what comes in at that door.
pub(super) fn serve(
    work: &TcpStreamWork,
    setting: &Setting,
    door: TcpDoor,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let port = door.port().map_err(Error::io("look up the own port"))?;
    let end = StreamEnd::new(Side::Responder, setting);
    let streams = work.streams * work.direction.ways().len() as u32;
    let server = Server { work: work.clone(), end: end.clone(), left: Arc::new(AtomicU32::new(streams)) };
    StreamResponder::start("tcp", port, end, summary::part, move || server.accept_all(&door))
}

/// What the responder's threads share.
#[derive(Clone)]
struct Server {
    work: TcpStreamWork,
    end: StreamEnd,
    /// Streams that have not come yet: no more are served than were asked for, whoever else may connect for controls.
    left: Arc<AtomicU32>,
}

impl Server {
    /// Accept until the end, then wait for the streams.
    fn accept_all(self, door: &TcpDoor) -> Outcomes {
        let mut threads = Threads::new("tcp");
        while !self.end.ending.raised() {
            match wait_readable(door, LOOK)
                .and_then(|ready| Ok(ready.then(|| door.accept(SocketFlags::empty())).transpose()?))
            {
                Ok(Some(connection)) => {
                    let (server, handed) = (self.clone(), door.listener().is_none());
                    threads.start(move |nth| server.serve(connection.into(), handed, nth));
                }
                Ok(None) => {}
                // The connection went away between the wait and the accept.
                Err(e) if crate::socket::timed_out(&e) || crate::socket::closed(&e) => {}
                // Nobody is left who could hand one over; those that came go on to their end.
                Err(e) if e.kind() == std::io::ErrorKind::InvalidInput && door.listener().is_none() => break,
                Err(source) => {
                    threads.fail(Error::Io { what: "accept a connection", source });
                    break;
                }
            }
        }
        threads.join()
    }

    /// One connection. `None` if it is a stranger's, or went away before its stream began.
    fn serve(&self, connection: TcpStream, handed: bool, nth: usize) -> Result<Option<Outcome>, Error> {
        if handed {
            // There was no listener of ours to inherit from. The initiator's SYN has set the segment's size for both.
            let options = TcpOptions { mss: None, ..self.work.socket_options() };
            options.apply(&connection).map_err(Error::io("prepare a connection"))?;
        }
        // Limits one who sends half a greeting.
        connection.set_read_timeout(Some(LOOK * 5)).map_err(Error::io("prepare a connection"))?;
        if !self.something_comes(&connection)? {
            return Ok(None);
        }
        let Ok(Some(hello)) = handshake::welcome(&connection, self.end.setting.cookie) else {
            return Ok(None);
        };
        if hello.control {
            // One that goes away in the middle is its initiator's to notice.
            let _ = controls::serve(&connection, hello, &self.end.ending);
            return Ok(None);
        }
        let one_less = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Ok(None);
        }
        pin(&self.end.setting, nth)?;
        if !self.something_comes(&connection)? || handshake::wait_for_go(&connection).is_err() {
            return Ok(None);
        }
        run_stream(&self.work, connection, hello.stream, !hello.egress, &self.end).map(Some)
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
