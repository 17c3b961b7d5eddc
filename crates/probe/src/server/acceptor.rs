//! The one thread at the port: see [`super`].

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use weir_load::{Stop, sockets, udp_handshake};
use weir_mtu::responder;

use super::flood::Strangers;
use super::opening::{self, Opening};
use super::session;
use super::shared::Shared;
use crate::frame;
use crate::message::Tell;
use weir_iperf3::Host;
use weir_load::limits::{Refused, counted_as};

const LISTENER: u64 = u64::MAX;
const UDP: u64 = u64::MAX - 1;

/// Events, connections and datagrams taken in one go: a flood of one kind keeps the others waiting no longer than that.
const EVENTS: usize = 256;
const TURN: usize = 64;

/// Datagrams taken in one go.
const DATAGRAMS: usize = 256;

/// Unknown datagrams per second that count as a flood. The limit for unknown connections is lower, because each costs more work.
const FLOOD_OF_DATAGRAMS: u32 = 1000;
const FLOOD_OF_CONNECTIONS: u32 = 250;

/// Pause in reading datagrams, or in accepting connections, during a flood of them. The flood then wakes this thread once per
/// pause and not once per packet, which would take the cores from the measuring threads. No measurement's datagrams arrive here.
/// While a trial measures the opening of connections, accepting does not pause.
const IN_FLOOD: Duration = Duration::from_millis(5);

/// How soon a raised stop is seen.
const LOOK: Duration = Duration::from_millis(50);

/// Pause in accepting when descriptors have run out: the connections stay in the kernel's queue meanwhile.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Connections that have not yet said what they are, at once, and of one client.
const WAITING: usize = 4096;
const WAITING_OF_CLIENT: usize = 1024;

/// Largest datagram.
const DATAGRAM: usize = 65_535;

/// SO_MAX_PACING_RATE of socket(7), bytes per second; TCP keeps it without a queueing discipline's help.
const SO_MAX_PACING_RATE: i32 = 47;
const SOL_SOCKET: i32 = 1;

/// A thread of a client that is not measured needs little; what it measures has threads of its own.
pub(super) const STACK: usize = 256 << 10;

/// A connection that has not yet said what it is.
struct Waiting {
    connection: TcpStream,
    peer: SocketAddr,
    client: IpAddr,
    /// Number in the order of acceptance; nothing else distinguishes iperf3's streams.
    order: u64,
}

/// See the module.
pub(super) struct Acceptor {
    shared: Arc<Shared>,
    host: Option<Host>,
    mtu: weir_mtu::Responder,
    epoll: rustix::fd::OwnedFd,
    waiting: HashMap<u64, Waiting>,
    waiting_of: HashMap<IpAddr, usize>,
    /// The oldest first; those that have gone on are left in it until their time is over.
    deadlines: VecDeque<(Instant, u64)>,
    next: u64,
    accepted: u64,
    accepts_again: Option<Instant>,
    reads_again: Option<Instant>,
    strange_datagrams: Strangers,
    /// Connections of strangers, or that have not identified themselves yet.
    strange_connections: Strangers,
    datagram: Vec<u8>,
}

impl Acceptor {
    pub(super) fn new(shared: Arc<Shared>, host: Option<Host>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // For probers of the path's MTU; a kernel without it leaves them without an answer, and everything else as it is.
        let _ = weir_sys::segment_size::keep_syn(shared.port.listener());
        epoll::add(&epoll, shared.port.listener(), EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, shared.port.udp(), EventData::new_u64(UDP), EventFlags::IN)?;
        Ok(Acceptor {
            shared,
            host,
            mtu: weir_mtu::Responder::open(),
            epoll,
            waiting: HashMap::new(),
            waiting_of: HashMap::new(),
            deadlines: VecDeque::new(),
            next: 0,
            accepted: 0,
            accepts_again: None,
            reads_again: None,
            strange_datagrams: Strangers::new(FLOOD_OF_DATAGRAMS, Instant::now()),
            strange_connections: Strangers::new(FLOOD_OF_CONNECTIONS, Instant::now()),
            datagram: vec![0; DATAGRAM],
        })
    }

    pub(super) fn run(&mut self, stop: &Stop) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !stop.raised() {
            events.clear();
            let pauses = [self.reads_again, self.accepts_again].into_iter().flatten();
            let until = |at: Instant| at.saturating_duration_since(Instant::now());
            let look = pauses.map(until).fold(LOOK, Duration::min);
            let look = Timespec { tv_sec: 0, tv_nsec: look.subsec_nanos().into() };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&look)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    UDP => self.datagrams()?,
                    token => self.look_again(token),
                }
            }
            self.close_overdue(Instant::now());
            self.accepts_again = self.resume(self.accepts_again, self.shared.port.listener(), LISTENER)?;
            self.reads_again = self.resume(self.reads_again, self.shared.port.udp(), UDP)?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(self.shared.port.listener(), flags) {
                Ok(fd) => self.arrived(TcpStream::from(fd)),
                Err(Errno::AGAIN) => {
                    // Only once all of them are in: or the queue would be full of strangers before long.
                    let flood = self.strange_connections.are_a_flood(Instant::now());
                    if flood && !self.shared.times_connections() {
                        self.pause_accepting(IN_FLOOD)?;
                    }
                    break;
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.make_room();
                    self.pause_accepting(SHORT_OF_DESCRIPTORS)?;
                    break;
                }
                // Errors of the connection that was to be accepted (accept(2), "Error handling").
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Close the connection that has said nothing for longest.
    fn make_room(&mut self) {
        while let Some((_, token)) = self.deadlines.pop_front() {
            if self.forget(token).is_some() {
                break;
            }
        }
    }

    /// Leave the listener alone for a moment; what comes stays in the kernel's queue.
    fn pause_accepting(&mut self, pause: Duration) -> io::Result<()> {
        epoll::delete(&self.epoll, self.shared.port.listener())?;
        self.accepts_again = Some(Instant::now() + pause);
        Ok(())
    }

    /// Listens again to what was left alone, if the moment is over.
    fn resume(&self, pause: Option<Instant>, socket: impl AsFd, token: u64) -> io::Result<Option<Instant>> {
        if pause.is_none_or(|until| until > Instant::now()) {
            return Ok(pause);
        }
        epoll::add(&self.epoll, socket, EventData::new_u64(token), EventFlags::IN)?;
        Ok(None)
    }

    /// A new connection: most have their first bytes with them.
    fn arrived(&mut self, connection: TcpStream) {
        let Ok(peer) = connection.peer_addr() else { return };
        self.accepted += 1;
        self.strange_connections.came();
        let waiting = Waiting { connection, peer, client: counted_as(peer.ip()), order: self.accepted };
        match what_is(&waiting.connection) {
            Some(Opening::More) => self.wait_for(waiting),
            Some(opening) => self.found_out(opening, waiting),
            None => {}
        }
    }

    fn wait_for(&mut self, waiting: Waiting) {
        let of_client = self.waiting_of.get(&waiting.client).copied().unwrap_or(0);
        if of_client >= WAITING_OF_CLIENT {
            return;
        }
        while self.waiting.len() >= WAITING {
            let Some((_, oldest)) = self.deadlines.pop_front() else { break };
            self.forget(oldest);
        }
        self.next += 1;
        let token = self.next;
        // Edge-triggered: bytes that were only looked at do not ring again.
        let what = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if epoll::add(&self.epoll, &waiting.connection, EventData::new_u64(token), what).is_err() {
            return;
        }
        *self.waiting_of.entry(waiting.client).or_default() += 1;
        self.waiting.insert(token, waiting);
        self.deadlines.push_back((Instant::now() + self.shared.limits.patience, token));
    }

    fn look_again(&mut self, token: u64) {
        let Some(opening) = self.waiting.get(&token).map(|w| what_is(&w.connection)) else { return };
        if opening == Some(Opening::More) {
            return;
        }
        let Some(waiting) = self.forget(token) else { return };
        if let Some(opening) = opening {
            self.found_out(opening, waiting);
        }
    }

    fn found_out(&mut self, opening: Opening, waiting: Waiting) {
        if self.pass_on(opening, waiting) {
            self.strange_connections.known();
        }
    }

    /// Take a connection out of those that wait. It is closed unless it is used.
    fn forget(&mut self, token: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&token)?;
        if let Some(n) = self.waiting_of.get_mut(&waiting.client) {
            *n -= 1;
            if *n == 0 {
                self.waiting_of.remove(&waiting.client);
            }
        }
        // Others may keep copies of the descriptor, which epoll would go on watching.
        let _ = epoll::delete(&self.epoll, &waiting.connection);
        Some(waiting)
    }

    fn close_overdue(&mut self, now: Instant) {
        while self.deadlines.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, token)) = self.deadlines.pop_front() else { break };
            self.forget(token);
        }
    }

    /// Hands a connection over to its owner, or closes it. True if it has an owner.
    fn pass_on(&mut self, opening: Opening, waiting: Waiting) -> bool {
        let Waiting { connection, peer, client, order } = waiting;
        match opening {
            Opening::Control => self.start_session(connection, peer, client),
            Opening::Data(cookie) => {
                // One that does not belong to an open trial, or is one too many, is closed.
                let admitted = self.shared.admit_to(cookie, |trial| {
                    let rate = trial.pacing.map(u32::cast_signed);
                    let paced = rate.map_or(Ok(()), |rate| {
                        sockets::set_int(&connection, SOL_SOCKET, SO_MAX_PACING_RATE, rate)
                    });
                    // A connection that is gone already is the responder's to notice.
                    drop(paced);
                    trial.handover.tcp(connection)
                });
                admitted == Some(true)
            }
            Opening::Mtu => self.answer_mtu(connection, client),
            Opening::Iperf3 => {
                self.host.as_ref().is_some_and(|host| host.connection(connection, peer, order))
            }
            Opening::Stranger | Opening::More => false,
        }
    }

    fn start_session(&self, connection: TcpStream, peer: SocketAddr, client: IpAddr) -> bool {
        let shared = self.shared.clone();
        let place = match shared.limits.admit(client) {
            Err(Refused::Full(_)) if shared.make_room() => shared.limits.admit(client),
            other => other,
        };
        let place = match place {
            Ok(place) => place,
            Err(refused) => {
                refuse(&connection, &refused.to_string());
                return false;
            }
        };
        let thread = std::thread::Builder::new().name("client".into()).stack_size(STACK);
        // If no thread can start, the connection closes, and the client reports that the server is gone.
        thread.spawn(move || session::serve(&shared, connection, peer, place)).is_ok()
    }

    /// A prober's TCP connection takes a client's place as long as it lasts, which is two seconds at most.
    fn answer_mtu(&self, connection: TcpStream, client: IpAddr) -> bool {
        let Ok(admission) = self.shared.limits.admit(client) else { return false };
        let thread = std::thread::Builder::new().name("mtu".into()).stack_size(STACK);
        let probe = move || {
            let _admission = admission;
            // The prober notices any failure.
            let _ = responder::connection(connection);
        };
        thread.spawn(probe).is_ok()
    }

    fn datagrams(&mut self) -> io::Result<()> {
        for _ in 0..DATAGRAMS {
            match self.shared.port.udp().recv_from(&mut self.datagram) {
                Ok((n, from)) => {
                    if !self.datagram(n, from) {
                        self.strange_datagrams.came();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The socket reports an ICMP error of an earlier answer, which no longer matters.
                Err(e) if is_of_peer(&e) => {}
                Err(e) => return Err(e),
            }
        }
        let now = Instant::now();
        if self.strange_datagrams.are_a_flood(now) {
            epoll::delete(&self.epoll, self.shared.port.udp())?;
            self.reads_again = Some(now + IN_FLOOD);
        }
        Ok(())
    }

    /// True if it is of a client that is in.
    fn datagram(&mut self, length: usize, from: SocketAddr) -> bool {
        let bytes = &self.datagram[..length];
        if let Some(request) = udp_handshake::read(bytes) {
            return self.requested(request, from);
        }
        if bytes.starts_with(&weir_mtu::MAGIC) {
            // An answer that cannot be sent counts as a lost probe. Any host may send probes, and the answer time is not
            // measured.
            let _ = self.mtu.reply(self.shared.port.udp(), bytes, length, from);
            return false;
        }
        self.host.as_ref().is_some_and(|host| host.datagram(bytes, from))
    }

    /// Handles a request for a flow of a trial. With the challenge that was sent to its address, the client gets the flow;
    /// without it, it gets a challenge. A client that does not know an open trial gets nothing. True if it knows one.
    fn requested(&self, request: udp_handshake::FlowRequest, from: SocketAddr) -> bool {
        let shared = &self.shared;
        // A second socket for the same peer would take what is meant for the first, even in the moment that it is there.
        let Some(own) = shared.own_address_for(request.cookie, from) else { return false };
        match request.token {
            None => {
                let token = shared.challenge(from, request.cookie);
                // The server keeps nothing for a peer that has not proved its address. If the challenge is lost, the peer asks again.
                let _ = shared.port.answer(own, from, &udp_handshake::challenge(request.cookie, token));
            }
            Some(token) if shared.is_challenge(token, from, request.cookie) => {
                let Ok(socket) = shared.port.connected_udp_from(own, from) else { return true };
                shared.admit_flow(request.cookie, from, |trial| {
                    // If it is lost, the client still sends its greeting after a moment.
                    let _ = socket.send(&udp_handshake::entered(request.cookie));
                    trial.handover.udp(socket)
                });
            }
            Some(_) => {}
        }
        true
    }
}

/// Identifies a connection by the bytes received so far; `None` if it is gone.
fn what_is(connection: &TcpStream) -> Option<Opening> {
    let mut bytes = [0; opening::MOST];
    match recv(connection, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => None,
        Ok((n, _)) => Some(opening::read(&bytes[..n.min(opening::MOST)])),
        Err(Errno::AGAIN | Errno::INTR) => Some(Opening::More),
        Err(_) => None,
    }
}

/// Say why not, as far as one call gets, and close.
fn refuse(connection: &TcpStream, reason: &str) {
    if let Ok(bytes) = frame::encode(&Tell::Refused { reason: reason.to_owned() }, frame::MOST_FROM_CLIENT) {
        let _ = rustix::net::send(connection, &bytes, rustix::net::SendFlags::NOSIGNAL);
    }
    // Discards the received bytes. Otherwise closing would reset the connection, and the client might never read the reason.
    let mut rest = [0; 512];
    let _ = recv(connection, &mut rest[..], RecvFlags::DONTWAIT);
}

fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | Interrupted)
}
