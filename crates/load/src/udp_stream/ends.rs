//! The two ends: greetings, sockets, and what the streams' threads do.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weir_sys::ethtool::Ethtool;
use weir_sys::netlink::Rtnetlink;

use super::datagram::{Flow, GREETING_BYTES, Word, greeting, read_greeting};
use super::receive::{self, LOOK, Received, receive};
use super::send::{Sent, send};
use super::{Batch, UdpStream, summary};
use crate::door::UdpDoor;
use crate::knock::{self, Knocker};
use crate::latency::pin;
use crate::socket::{set_int, timed_out, wait_readable};
use crate::streams::{self, Side, StreamEnd, StreamResponder, Threads};
use crate::{Direction, Error, Part, Setting};

/// How long the responder may take to answer a greeting, repeated as often as it fits.
const GREETING_TIME: Duration = Duration::from_secs(5);

/// Bytes of the longest datagram that may come before the data.
const LONGEST_WORD: usize = if knock::BYTES > GREETING_BYTES { knock::BYTES } else { GREETING_BYTES };

/// Time between two greetings.
const REPEAT: Duration = Duration::from_millis(100);

type Outcome = streams::Outcome<Sent, Received>;
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

/// A socket of the initiator for one flow, greeted and answered.
fn greet(target: SocketAddr, flow: Flow, setting: &Setting) -> Result<UdpSocket, Error> {
    let error = |source| Error::Connect { address: target, source };
    let socket = UdpSocket::bind(unspecified(target)).map_err(error)?;
    socket.connect(target).map_err(error)?;
    socket.set_read_timeout(Some(REPEAT)).map_err(error)?;
    let deadline = Instant::now() + GREETING_TIME;
    let mut refused = None;
    let mut knocker = Knocker::new(setting.cookie, setting.knocks);
    while Instant::now() < deadline && !setting.stop.raised() {
        let mut bytes = [0; LONGEST_WORD + 1];
        let result = knocker
            .knock(&socket)
            .and_then(|greets| if greets { socket.send(&greeting(Word::Hello, flow)) } else { Ok(0) })
            .and_then(|_| socket.recv(&mut bytes));
        match result {
            Ok(n) if knocker.hears(&bytes[..n]) => {}
            Ok(n) if read_greeting(&bytes[..n]) == Some((Word::Ready, flow)) => return Ok(socket),
            Ok(_) => {}
            Err(e) if timed_out(&e) => {}
            // The responder is there before us: a refusal does not get better.
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
    }
    Err(error(
        refused.unwrap_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "no answer to the greeting")),
    ))
}

/// The initiator's end.
pub(super) fn drive(work: &UdpStream, setting: &Setting, target: SocketAddr) -> Result<Part, Error> {
    let end = StreamEnd::new(Side::Initiator, setting);
    let mut sockets = Vec::new();
    for stream in 0..work.streams {
        for way in work.direction.ways() {
            let egress = *way == Direction::Egress;
            let flow = Flow { cookie: setting.cookie, stream, egress };
            let socket = greet(target, flow, setting)?;
            if egress {
                check_link(work, &socket)?;
            }
            sockets.push((flow, socket));
        }
    }
    let outcomes = end.run_all("udp", sockets, |(flow, socket)| {
        let told = end.flow(flow.stream, flow.egress);
        if flow.egress {
            return send(work, &socket, flow, &end.sending, &end.ending, &told).map(Outcome::Sent);
        }
        let buffer = receive::prepare(work, &socket).map_err(Error::io("prepare a receiving socket"))?;
        socket.send(&greeting(Word::Go, flow)).map_err(Error::io("start a stream"))?;
        receive(&socket, flow, buffer, Some(Word::Go), &end.receiving, &end.ending, &told)
            .map(Outcome::Received)
    });
    summary::part(&end, outcomes)
}

/// Open the responder's end.
pub(super) fn open(
    work: &UdpStream,
    setting: &Setting,
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

/// Open the responder's end for flows that somebody else takes on a port of his and hands over.
pub(super) fn serve(
    work: &UdpStream,
    setting: &Setting,
    door: UdpDoor,
) -> Result<StreamResponder<Sent, Received>, Error> {
    let end = StreamEnd::new(Side::Responder, setting);
    let server = Server { work: work.clone(), end: end.clone() };
    StreamResponder::start("udp", door.port(), end, summary::part, move || server.take_all(&door))
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

/// What the responder's threads share.
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
                Err(e) if timed_out(&e) || e.kind() == io::ErrorKind::ConnectionRefused => continue,
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
            // The socket is made here, so that whoever is greeted next is not yet answered by nobody.
            match stream_socket(local, peer) {
                Ok(own) => threads.start(move |nth| server.serve(&own, flow, nth)),
                Err(source) => threads.fail(Error::Io { what: "open a stream's socket", source }),
            }
        }
        threads.join()
    }

    /// Take flows that are handed over until the end, then wait for the streams.
    fn take_all(self, door: &UdpDoor) -> Outcomes {
        let mut threads = Threads::new("udp");
        // In each direction as many as were asked for; what comes beyond is closed.
        let most = self.work.streams as usize * self.work.direction.ways().len();
        let mut known = 0;
        while !self.end.ending.raised() {
            match wait_readable(door, LOOK).and_then(|ready| ready.then(|| door.take()).transpose()) {
                Ok(Some(socket)) if known < most => {
                    known += 1;
                    let server = self.clone();
                    threads.start(move |nth| server.welcome(&socket, nth));
                }
                Ok(_) => {}
                Err(e) if timed_out(&e) => {}
                // Nobody is left who could hand one over; those that came go on to their end.
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
    fn welcome(&self, socket: &UdpSocket, nth: usize) -> Result<Option<Outcome>, Error> {
        socket.set_read_timeout(Some(LOOK)).map_err(Error::io("prepare a stream's socket"))?;
        let deadline = Instant::now() + GREETING_TIME;
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
    fn serve(&self, socket: &UdpSocket, flow: Flow, nth: usize) -> Result<Option<Outcome>, Error> {
        pin(&self.end.setting, nth)?;
        if !flow.egress {
            check_link(&self.work, socket)?;
        }
        let buffer = receive::prepare(&self.work, socket).map_err(Error::io("prepare a receiving socket"))?;
        socket.send(&greeting(Word::Ready, flow)).map_err(Error::io("answer a greeting"))?;
        let told = self.end.flow(flow.stream, !flow.egress);
        if flow.egress {
            let received = receive(socket, flow, buffer, None, &self.end.receiving, &self.end.ending, &told)?;
            return Ok(Some(Outcome::Received(received)));
        }
        while !self.end.ending.raised() {
            let mut bytes = [0; GREETING_BYTES + 1];
            match socket.recv(&mut bytes) {
                Ok(n) => match read_greeting(&bytes[..n]) {
                    Some((Word::Go, f)) if f == flow => {
                        let sent =
                            send(&self.work, socket, flow, &self.end.sending, &self.end.ending, &told)?;
                        return Ok(Some(Outcome::Sent(sent)));
                    }
                    Some((Word::Hello, f)) if f == flow => {
                        socket.send(&greeting(Word::Ready, flow)).map_err(Error::io("answer a greeting"))?;
                    }
                    _ => {}
                },
                Err(e) if timed_out(&e) => {}
                Err(source) => return Err(Error::Io { what: "wait for a stream's go", source }),
            }
        }
        Ok(None)
    }
}
