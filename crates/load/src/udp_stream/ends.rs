//! The two ends: greetings, sockets, and what the streams' threads do.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weir_netlink::Rtnetlink;
use weir_netlink::ethtool::Ethtool;
use weir_sys::clock::now_ns;

use super::datagram::{Flow, GREETING_BYTES, Word, greeting, read_greeting};
use super::receive::{self, LOOK, Received, receive};
use super::send::{Sent, send};
use super::{Batch, UdpStream, summary};
use crate::incoming::UdpIncoming;
use crate::latency::pin;
use crate::socket::{set_int, timed_out, wait_readable};
use crate::streams::{self, OPENING, Side, Start, Starts, StreamEnd, StreamResponder, Threads, by_path};
use crate::udp_handshake::{self, Handshake};
use crate::window::{Window, nanos};
use crate::{Direction, Error, Part, TrialSettings};

/// Bytes of the longest datagram that may come before the data.
const LONGEST_WORD: usize =
    if udp_handshake::BYTES > GREETING_BYTES { udp_handshake::BYTES } else { GREETING_BYTES };

/// Time between two greetings.
const REPEAT: Duration = Duration::from_millis(100);

/// A flow requested this long after the first one came too late for the common start.
const LATE: Duration = Duration::from_millis(200);

type StreamOutcome = streams::StreamOutcome<Sent, Received>;
type Outcomes = streams::Outcomes<Sent, Received>;

/// Refuse to call packets what crosses the link as a super-packet: `batch = "segment"` on an interface that takes
/// super-packets itself.
fn check_link(work: &UdpStream, socket: &UdpSocket) -> Result<(), Error> {
    if work.batch != Batch::Segment {
        return Ok(());
    }
    let own = socket.local_addr().map_err(Error::io("look up the own address"))?.ip();
    let system = |e: weir_sys::Error| Error::Io {
        what: "look up the sender's interface",
        source: io::Error::other(e),
    };
    let interfaces = Rtnetlink::open().and_then(|mut n| n.interfaces()).map_err(system)?;
    let name = interfaces.into_iter().find(|i| i.addresses.iter().any(|(a, _)| *a == own)).map(|i| i.name);
    let Some(name) = name else {
        let source = io::Error::other(format!("no interface has {own}"));
        return Err(Error::Io { what: "look up the sender's interface", source });
    };
    let features = Ethtool::open().and_then(|e| e.features(&name)).map_err(system)?;
    if features.get("tx-udp-segmentation").copied().unwrap_or(false) {
        let source = io::Error::other(format!(
            "tx-udp-segmentation is on: super-packets would cross the link whole. Switch it off with \
             `ethtool -K {name} tx-udp-segmentation off`, or use batch = \"gso\""
        ));
        return Err(Error::Io { what: "split datagrams before the link (batch = \"segment\")", source });
    }
    Ok(())
}

fn unspecified(like: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if like.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    SocketAddr::new(ip, 0)
}

/// A socket of the initiator for one flow, greeted and answered. `None` if the path does not let the flow begin: its greeting is
/// refused or not answered in time, which is as long as another one fits.
fn greet(
    target: SocketAddr,
    flow: Flow,
    setting: &TrialSettings,
    starts: &Starts<'_>,
    window: &Window,
) -> Result<Option<UdpSocket>, Error> {
    let error = |source| Error::Connect { address: target, source };
    let socket = UdpSocket::bind(unspecified(target)).map_err(error)?;
    socket.connect(target).map_err(error)?;
    socket.set_read_timeout(Some(REPEAT)).map_err(error)?;
    let mut handshake = Handshake::new(setting.cookie, setting.handshake);
    while !starts.left().is_zero() && !starts.too_late(window) {
        let mut bytes = [0; LONGEST_WORD + 1];
        let result = handshake
            .request(&socket)
            .and_then(|greets| if greets { socket.send(&greeting(Word::Hello, flow)) } else { Ok(0) })
            .and_then(|_| socket.recv(&mut bytes));
        match result {
            Ok(n) if handshake.hears(&bytes[..n]) => {}
            Ok(n) if read_greeting(&bytes[..n]) == Some((Word::Ready, flow)) => return Ok(Some(socket)),
            Ok(_) => {}
            Err(e) if timed_out(&e) => {}
            // The responder is there before us: a refusal does not get better.
            Err(e) if by_path(&e) => return Ok(None),
            Err(e) => return Err(error(e)),
        }
    }
    if setting.stop.raised() {
        return Err(error(io::Error::new(io::ErrorKind::Interrupted, "stopped")));
    }
    Ok(None)
}

/// One flow at the initiator, from its greeting to its end.
fn run_flow(
    work: &UdpStream,
    end: &StreamEnd,
    start: Start<'_>,
    flow: Flow,
    target: SocketAddr,
) -> Result<StreamOutcome, Error> {
    let window = if flow.egress { &end.sending } else { &end.receiving };
    let Some(socket) = greet(target, flow, &end.setting, start.starts(), window)? else {
        return Ok(StreamOutcome::Failed);
    };
    if flow.egress {
        check_link(work, &socket)?;
    }
    let late = start.stands();
    let told = end.flow(flow.stream, flow.egress);
    if flow.egress {
        return send(work, &socket, flow, late, window, &end.ending, &told).map(StreamOutcome::Sent);
    }
    let missed = if late { work.missed(target, window) } else { 0 };
    let buffer = receive::prepare(work, &socket).map_err(Error::io("prepare a receiving socket"))?;
    match socket.send(&greeting(Word::Go, flow)) {
        Err(source) if !by_path(&source) => return Err(Error::Io { what: "start a stream", source }),
        // It is repeated until data comes.
        _ => {}
    }
    let received = receive(work, &socket, flow, buffer, Some(Word::Go), window, &end.ending, &told)?;
    Ok(StreamOutcome::Received(Received { missed, ..received }))
}

/// The initiator's end.
pub(super) fn drive(work: &UdpStream, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
    let end = StreamEnd::new(Side::Initiator, setting);
    let one =
        |stream, way: &Direction| Flow { cookie: setting.cookie, stream, egress: *way == Direction::Egress };
    let flows: Vec<Flow> =
        (0..work.streams).flat_map(|n| work.direction.ways().iter().map(move |way| one(n, way))).collect();
    let starts = Starts::new(setting, flows.len());
    let outcomes = end.run_all("udp", flows, |flow| run_flow(work, &end, starts.one(), flow, target));
    let mut part = summary::part(&end, outcomes)?;
    if let Some(pps) = work.stream_pps(work.payload(target)) {
        part.set("due", (pps * end.sending.seconds()).floor());
    }
    Ok(part)
}

/// Open the responder's end.
pub(super) fn open(
    work: &UdpStream,
    setting: &TrialSettings,
    bind: SocketAddr,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let error = |source| Error::Listen { address: bind, source };
    let socket = UdpSocket::bind(bind).map_err(error)?;
    // Set after binding: the port is ours alone, and only the streams' own sockets may join us on it.
    set_int(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).map_err(error)?;
    socket.set_read_timeout(Some(LOOK)).map_err(error)?;
    let local = socket.local_addr().map_err(error)?;
    let end = StreamEnd::new(Side::Responder, setting);
    let server = Server { work: work.clone(), end: end.clone() };
    let port = local.port();
    StreamResponder::start("udp", port, end, summary::part, move || server.accept_all(&socket, local))
}

/// Opens the responder's end for flows that the owner of a shared port accepts and hands over.
pub(super) fn serve(
    work: &UdpStream,
    setting: &TrialSettings,
    incoming: UdpIncoming,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let end = StreamEnd::new(Side::Responder, setting);
    let server = Server { work: work.clone(), end: end.clone() };
    StreamResponder::start("udp", incoming.port(), end, summary::part, move || server.take_all(&incoming))
}

/// A socket on the same port that gets only what this peer sends: the kernel prefers the connected one.
fn stream_socket(local: SocketAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
    let family =
        if peer.is_ipv4() { rustix::net::AddressFamily::INET } else { rustix::net::AddressFamily::INET6 };
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, rustix::net::SocketType::DGRAM, flags, None)?;
    set_int(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    rustix::net::bind(&socket, &local)?;
    let socket = UdpSocket::from(socket);
    socket.connect(peer)?;
    Ok(socket)
}

/// Reports that the flow's thread is ready. An error from the path about an earlier answer is no failure of this host: the
/// initiator greets again.
fn answer(socket: &UdpSocket, flow: Flow) -> Result<(), Error> {
    match socket.send(&greeting(Word::Ready, flow)) {
        Err(source) if !by_path(&source) => Err(Error::Io { what: "answer a greeting", source }),
        _ => Ok(()),
    }
}

/// State shared by the responder's threads.
#[derive(Clone)]
struct Server {
    work: UdpStream,
    end: StreamEnd,
}

impl Server {
    /// Answer greetings until the end, then wait for the streams.
    fn accept_all(self, socket: &UdpSocket, local: SocketAddr) -> Outcomes {
        let mut threads = Threads::new("udp");
        let mut known = BTreeSet::new();
        let mut bytes = [0; GREETING_BYTES + 1];
        while !self.end.ending.raised() {
            let (n, peer) = match socket.recv_from(&mut bytes) {
                Ok(from) => from,
                Err(e) if by_path(&e) => continue,
                Err(source) => {
                    threads.fail(Error::Io { what: "wait for greetings", source });
                    break;
                }
            };
            let Some((Word::Hello, flow)) = read_greeting(&bytes[..n]) else { continue };
            // A repeated greeting may have been queued here before its stream's own socket was there.
            if flow.cookie != self.end.setting.cookie || !known.insert((peer, flow.stream)) {
                continue;
            }
            let server = self.clone();
            // The socket is made here and not in the thread, so that it exists when the peer's next datagram comes.
            match stream_socket(local, peer) {
                Ok(own) => threads.start(move |nth| server.serve(&own, flow, nth)),
                Err(source) => threads.fail(Error::Io { what: "open a stream's socket", source }),
            }
        }
        threads.join()
    }

    /// Take flows that are handed over until the end, then wait for the streams.
    fn take_all(self, incoming: &UdpIncoming) -> Outcomes {
        let mut threads = Threads::new("udp");
        // In each direction as many as were asked for; what comes beyond is closed.
        let most = self.work.streams as usize * self.work.direction.ways().len();
        let mut known = 0;
        while !self.end.ending.raised() {
            match wait_readable(incoming, LOOK).and_then(|ready| ready.then(|| incoming.take()).transpose()) {
                Ok(Some(socket)) if known < most => {
                    known += 1;
                    let server = self.clone();
                    threads.start(move |nth| server.welcome(&socket, nth));
                }
                Ok(_) => {}
                Err(e) if timed_out(&e) => {}
                // The owner of the shared port is gone; the flows that came go on to their end.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => break,
                Err(source) => {
                    threads.fail(Error::Io { what: "wait for flows", source });
                    break;
                }
            }
        }
        threads.join()
    }

    /// A flow that was handed over, from its greeting on.
    fn welcome(&self, socket: &UdpSocket, nth: usize) -> Result<Option<StreamOutcome>, Error> {
        socket.set_read_timeout(Some(LOOK)).map_err(Error::io("prepare a stream's socket"))?;
        let deadline = Instant::now() + OPENING;
        let mut bytes = [0; LONGEST_WORD + 1];
        while !self.end.ending.raised() && Instant::now() < deadline {
            match socket.recv(&mut bytes) {
                Ok(n) => match read_greeting(&bytes[..n]) {
                    Some((Word::Hello, flow)) if flow.cookie == self.end.setting.cookie => {
                        return self.serve(socket, flow, nth);
                    }
                    _ => {}
                },
                Err(e) if timed_out(&e) => {}
                // Its initiator is gone.
                Err(_) => break,
            }
        }
        Ok(None)
    }

    /// One stream. `None` if the end came before it began.
    fn serve(&self, socket: &UdpSocket, flow: Flow, nth: usize) -> Result<Option<StreamOutcome>, Error> {
        pin(&self.end.setting, nth)?;
        if !flow.egress {
            check_link(&self.work, socket)?;
        }
        let buffer = receive::prepare(&self.work, socket).map_err(Error::io("prepare a receiving socket"))?;
        answer(socket, flow)?;
        let told = self.end.flow(flow.stream, !flow.egress);
        if flow.egress {
            let end = &self.end;
            let received =
                receive(&self.work, socket, flow, buffer, None, &end.receiving, &end.ending, &told)?;
            return Ok(Some(StreamOutcome::Received(received)));
        }
        while !self.end.ending.raised() {
            let mut bytes = [0; GREETING_BYTES + 1];
            match socket.recv(&mut bytes) {
                Ok(n) => match read_greeting(&bytes[..n]) {
                    Some((Word::Go, f)) if f == flow => {
                        let end = &self.end;
                        let late = end.sending.first_ns().is_some_and(|t| now_ns() > t + nanos(LATE));
                        let sent = send(&self.work, socket, flow, late, &end.sending, &end.ending, &told)?;
                        return Ok(Some(StreamOutcome::Sent(sent)));
                    }
                    Some((Word::Hello, f)) if f == flow => answer(socket, flow)?,
                    _ => {}
                },
                // An ICMP message about the answer is not the end: the go may still come.
                Err(e) if by_path(&e) => {}
                Err(source) => return Err(Error::Io { what: "wait for a stream's go", source }),
            }
        }
        Ok(None)
    }
}
