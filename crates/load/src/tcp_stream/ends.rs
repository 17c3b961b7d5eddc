//! The two ends: who opens, who accepts, and what the streams' threads do.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::net::{SocketFlags, listen};

use super::controls;
use super::handshake::{self, Hello};
use super::receive::{Received, receive};
use super::send::{LOOK, Sent, send};
use super::{TcpStreamWork, summary};
use crate::incoming::TcpIncoming;
use crate::latency::pin;
use crate::socket::{TcpOptions, connect_tcp_until, wait_readable};
use crate::streams::{self, OPENING, Side, Start, Starts, StreamEnd, StreamResponder, Threads, by_path};
use crate::{Direction, Error, Part, TrialSettings};

/// Connections that wait to be accepted: all streams come at once, and one that the own queue turns away would look like the
/// path's doing.
const BACKLOG: i32 = 4096;

type StreamOutcome = streams::StreamOutcome<Sent, Received>;
type Outcomes = streams::Outcomes<Sent, Received>;

fn run_stream(
    work: &TcpStreamWork,
    connection: TcpStream,
    stream: u32,
    sends: bool,
    end: &StreamEnd,
) -> Result<StreamOutcome, Error> {
    let flow = end.flow(stream, sends);
    // The connection is closed when this returns, before the outcome (which keeps a zero-copy buffer) is dropped.
    if sends {
        send(work, stream, &connection, &end.sending, &end.ending, &flow).map(StreamOutcome::Sent)
    } else {
        receive(work, stream, &connection, &end.receiving, &end.ending, &flow).map(StreamOutcome::Received)
    }
}

/// Connects one stream and lets it begin together with the others. `None` if the path does not let it: its connection is refused,
/// reset, closed or not answered in time.
fn begin(
    work: &TcpStreamWork,
    end: &StreamEnd,
    start: Start<'_>,
    target: SocketAddr,
    hello: Hello,
) -> Result<Option<TcpStream>, Error> {
    let starts = start.starts();
    let window = if hello.egress { &end.sending } else { &end.receiving };
    let over = || starts.too_late(window);
    let opened =
        connect_tcp_until(target, &work.socket_options(), starts.left(), &over).and_then(|connection| {
            handshake::introduce(&connection, hello, starts.left(), &over)?;
            Ok(connection)
        });
    let begun = opened.and_then(|connection| {
        start.stands();
        handshake::go(&connection)?;
        Ok(connection)
    });
    match begun {
        Ok(connection) => Ok(Some(connection)),
        Err(e) if by_path(&e) => Ok(None),
        // Not the user's stop: the others' window was over before it stood.
        Err(e) if e.kind() == ErrorKind::Interrupted && !end.setting.stop.raised() => Ok(None),
        Err(source) => Err(Error::Connect { address: target, source }),
    }
}

/// The initiator's end.
pub(super) fn drive(
    work: &TcpStreamWork,
    setting: &TrialSettings,
    target: SocketAddr,
) -> Result<Part, Error> {
    let end = StreamEnd::new(Side::Initiator, setting);
    let numbers = 0..work.streams;
    let streams: Vec<_> = numbers
        .flat_map(|n| work.direction.ways().iter().map(move |w| (n, *w == Direction::Egress)))
        .collect();
    let starts = Starts::new(setting, streams.len());
    let longest = OnceLock::new();
    let outcomes = end.run_all("tcp", streams, |(stream, egress)| {
        let hello = Hello { cookie: setting.cookie, stream, egress, control: false };
        let Some(connection) = begin(work, &end, starts.one(), target, hello)? else {
            return Ok(StreamOutcome::Failed);
        };
        longest.get_or_init(|| controls::packet_bytes(work, &connection));
        run_stream(work, connection, stream, egress, &end)
    });
    let mut part = summary::part(&end, outcomes)?;
    let longest = longest.into_inner().flatten().filter(|_| !setting.stop.raised());
    for way in work.direction.ways() {
        if let Some(longest) = longest.filter(|_| summary::all_stuck(&part, *way)) {
            controls::send(setting, target, *way, longest).tell(&mut part, *way);
        }
    }
    Ok(part)
}

/// Open the responder's end.
pub(super) fn open(
    work: &TcpStreamWork,
    setting: &TrialSettings,
    bind: SocketAddr,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let error = |source| Error::Listen { address: bind, source };
    let incoming = TcpIncoming::own(bind).map_err(error)?;
    if let Some(listener) = incoming.listener() {
        // Accepted sockets inherit them; the window scale follows from the buffer when the SYN arrives.
        work.socket_options().apply(listener).map_err(error)?;
        listen(listener, BACKLOG).map_err(|e| error(e.into()))?;
    }
    serve(work, setting, incoming)
}

/// Open the responder's end for what comes in at that incoming.
pub(super) fn serve(
    work: &TcpStreamWork,
    setting: &TrialSettings,
    incoming: TcpIncoming,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let port = incoming.port().map_err(Error::io("look up the own port"))?;
    let end = StreamEnd::new(Side::Responder, setting);
    let streams = work.streams * work.direction.ways().len() as u32;
    let server = Server { work: work.clone(), end: end.clone(), left: Arc::new(AtomicU32::new(streams)) };
    StreamResponder::start("tcp", port, end, summary::part, move || server.accept_all(&incoming))
}

/// State shared by the responder's threads.
#[derive(Clone)]
struct Server {
    work: TcpStreamWork,
    end: StreamEnd,
    /// Streams that have not come yet: no more are served than were requested, even if other peers connect for controls.
    left: Arc<AtomicU32>,
}

impl Server {
    /// Accept until the end, then wait for the streams.
    fn accept_all(self, incoming: &TcpIncoming) -> Outcomes {
        let mut threads = Threads::new("tcp");
        while !self.end.ending.raised() {
            match wait_readable(incoming, LOOK)
                .and_then(|ready| Ok(ready.then(|| incoming.accept(SocketFlags::empty())).transpose()?))
            {
                Ok(Some(connection)) => {
                    let (server, handed) = (self.clone(), incoming.listener().is_none());
                    threads.start(move |nth| server.serve(connection.into(), handed, nth));
                }
                Ok(None) => {}
                // The connection went away between the wait and the accept.
                Err(e) if by_path(&e) => {}
                // The owner of the shared port is gone; the streams that came go on to their end.
                Err(e) if e.kind() == ErrorKind::InvalidInput && incoming.listener().is_none() => break,
                Err(source) => {
                    threads.fail(Error::Io { what: "accept a connection", source });
                    break;
                }
            }
        }
        threads.join()
    }

    /// One connection. `None` if it is a stranger's, or went away before its stream began.
    fn serve(&self, connection: TcpStream, handed: bool, nth: usize) -> Result<Option<StreamOutcome>, Error> {
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
        let deadline = Instant::now() + OPENING;
        while !self.end.ending.raised() && Instant::now() < deadline {
            if wait_readable(connection, LOOK).map_err(Error::io("wait for a stream's greeting"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
