//! A [`Prober`] of sockets: UDP to weir's own far end or to a closed port, or ICMP echo.

mod notices;
mod refusals;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use weir_netlink::Rtnetlink;
use weir_sys::Stop;
use weir_sys::dont_fragment::{self, Splitting};
use weir_sys::echo::EchoSocket;
use weir_sys::icmp_errors;

use crate::message::{FarCounts, HEADER, Kind, Message, TOLD};
use crate::prober::{Probe, ProbeOutcome, Prober, Refusal, Way};
use refusals::Refusals;

/// Longest wait for an answer while no round trip is known.
const PATIENCE: Duration = Duration::from_secs(1);
/// Shortest one: what a busy host or a virtual machine that is held up may take to answer.
const LEAST_PATIENCE: Duration = Duration::from_millis(250);
/// Time between two packets of an exchange.
const SPACING: Duration = Duration::from_micros(500);
/// Longest sleep between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of IP and UDP, or IP and ICMP echo.
const OVERHEAD: [u32; 2] = [28, 48];

/// MTU of the interface through which an address is reached, bytes.
///
/// # Errors
/// There is no route, or no netlink.
pub fn link_mtu(to: IpAddr) -> weir_sys::Result<u32> {
    let mut links = Rtnetlink::open()?;
    let way = links.way_to(to, None)?;
    let interface = links.interfaces()?.into_iter().find(|i| i.index == way.interface);
    let gone = || weir_sys::Error::other(format!("look up the interface towards {to}"), "it is gone");
    interface.map(|i| i.mtu).ok_or_else(gone)
}

/// Bytes of IP and UDP headers in front of a payload.
pub fn overhead(ipv6: bool) -> u32 {
    OVERHEAD[usize::from(ipv6)]
}

/// Whom the probes reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Far {
    /// A [`crate::Responder`]; `trusted` if it knows our session, and so sends more than it got.
    Ours {
        /// See above.
        trusted: bool,
    },
    /// A closed port: the refusals prove that the probes came.
    ClosedPort,
    /// A host that answers pings.
    Echo,
}

#[derive(Debug)]
enum Link {
    Udp(UdpSocket),
    Echo(EchoSocket),
}

/// See the module.
#[derive(Debug)]
pub struct SocketProber {
    link: Link,
    far: Far,
    ipv6: bool,
    session: u64,
    next: u32,
    round_trip: Option<Duration>,
    /// Length up to which a question for a datagram is itself sent whole, bytes.
    egress_whole: u32,
    /// Length of the fragments that the far end is asked for, bytes.
    back_length: u16,
    deadline: Instant,
    stop: Stop,
    buffer: Vec<u8>,
    refusals: Refusals,
    now: (Splitting, Option<u8>),
}

/// A probe under way.
struct Pending {
    number: u32,
    probe: Probe,
    sent: Instant,
    outcome: Option<ProbeOutcome>,
}

impl SocketProber {
    /// By UDP.
    ///
    /// # Errors
    /// No socket, or no route to the target.
    pub fn udp(
        target: SocketAddr,
        far: Far,
        session: u64,
        deadline: Instant,
        stop: &Stop,
    ) -> io::Result<Self> {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        icmp_errors::keep(&socket, target.is_ipv6())?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        Ok(SocketProber::new(Link::Udp(socket), target.ip(), far, session, deadline, stop))
    }

    /// By ICMP echo.
    ///
    /// # Errors
    /// Neither a ping socket nor a raw one may be had, or there is no route to the target.
    pub fn echo(target: IpAddr, session: u64, deadline: Instant, stop: &Stop) -> io::Result<Self> {
        let socket = EchoSocket::open(target, session as u16)?;
        icmp_errors::keep(&socket, target.is_ipv6())?;
        Ok(SocketProber::new(Link::Echo(socket), target, Far::Echo, session, deadline, stop))
    }

    fn new(link: Link, target: IpAddr, far: Far, session: u64, deadline: Instant, stop: &Stop) -> Self {
        SocketProber {
            link,
            far,
            ipv6: target.is_ipv6(),
            session,
            next: 0,
            round_trip: None,
            egress_whole: u32::MAX,
            back_length: 0,
            deadline,
            stop: stop.clone(),
            buffer: vec![0; 1 << 17],
            // The probes that found the port closed have used up two.
            refusals: Refusals::all_but(2),
            now: (Splitting::Usual, None),
        }
    }

    /// The shortest round trip so far.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Questions for long datagrams are as long themselves where the far end wants that; above this length they go in fragments.
    pub fn set_egress_whole(&mut self, bytes: u32) {
        self.egress_whole = bytes;
    }

    /// Fragments that this socket sends are no longer than this (IPv6; IPv4's routers split again what does not fit); 0: as the
    /// path is known.
    ///
    /// # Errors
    /// Above 0 and below 1280 bytes.
    pub fn set_fragment_length(&self, bytes: u32) -> io::Result<()> {
        if self.ipv6 { dont_fragment::set_fragment_length(self.socket(), bytes) } else { Ok(()) }
    }

    /// Fragments that the far end is asked for are no longer than this, likewise.
    pub fn set_back_length(&mut self, bytes: u32) {
        self.back_length = u16::try_from(bytes).unwrap_or(0);
    }

    /// The path MTU that this host's kernel reckons with towards the target, bytes.
    ///
    /// # Errors
    /// The kernel has no route any more.
    pub fn kernels_path_mtu(&self) -> io::Result<u32> {
        dont_fragment::known_path_mtu(self.socket(), self.ipv6)
    }

    /// A closed port was asked more often than its host answers at once: the next refusals come one by one.
    pub fn expect_few_refusals(&mut self) {
        self.refusals = Refusals::none();
    }

    /// Asks the far end for its tally; `None` if it does not answer in time, or is not weir's.
    ///
    /// # Errors
    /// The own host cannot send.
    pub fn tally(&mut self) -> io::Result<Option<FarCounts>> {
        if !matches!(self.far, Far::Ours { .. }) {
            return Ok(None);
        }
        for _ in 0..3 {
            self.prepare(Splitting::Usual, None)?;
            let number = self.number();
            let message = self.message(Kind::Tell, number, false, 0);
            if self.send(&message.write(TOLD))? != Sent::Away {
                continue;
            }
            let until = Instant::now() + self.patience();
            loop {
                let now = Instant::now();
                while let Some(n) = self.receive()? {
                    let answer = Message::read(&self.buffer[..n]);
                    if answer.is_some_and(|m| m == Message { kind: Kind::Told, ..message })
                        && let Some(tally) = FarCounts::read(&self.buffer[..n])
                    {
                        return Ok(Some(tally));
                    }
                }
                if now >= until || self.is_over() {
                    break;
                }
                self.wait(until)?;
            }
        }
        Ok(None)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match &self.link {
            Link::Udp(socket) => socket.as_fd(),
            Link::Echo(socket) => socket.as_fd(),
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn message(&self, kind: Kind, number: u32, splits: bool, size: u32) -> Message {
        Message { session: self.session, number, kind, splits, fragment: self.back_length, size }
    }

    fn patience(&self) -> Duration {
        self.round_trip.map_or(PATIENCE, |rtt| (4 * rtt).clamp(LEAST_PATIENCE, 3 * PATIENCE))
    }

    /// Options of the socket for what is sent next.
    fn prepare(&mut self, splitting: Splitting, hops: Option<u8>) -> io::Result<()> {
        if self.now.0 != splitting {
            dont_fragment::set(self.socket(), self.ipv6, splitting)?;
        }
        if self.now.1 != hops {
            match hops {
                Some(hops) => dont_fragment::set_hops(self.socket(), self.ipv6, hops)?,
                None => dont_fragment::reset_hops(self.socket(), self.ipv6)?,
            }
        }
        self.now = (splitting, hops);
        Ok(())
    }

    fn send(&mut self, payload: &[u8]) -> io::Result<Sent> {
        // The next call reports an ICMP message about an earlier packet once; a further call sends the packet.
        for _ in 0..8 {
            let sent = match &self.link {
                Link::Udp(socket) => socket.send(payload).map(drop),
                // The number is in the data, whatever the header's sixteen bits say.
                Link::Echo(socket) => socket.send(self.next as u16, payload),
            };
            let Err(error) = sent else { return Ok(Sent::Away) };
            match rustix::io::Errno::from_io_error(&error) {
                // Either of an earlier one, or of this one: the error queue tells which, and a local one is no earlier one's.
                Some(rustix::io::Errno::MSGSIZE) => {
                    if payload.len() as u32 + overhead(self.ipv6) > self.own_limit() {
                        return Ok(Sent::TooLong);
                    }
                }
                Some(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::INTR) => {}
                Some(
                    rustix::io::Errno::HOSTUNREACH
                    | rustix::io::Errno::NETUNREACH
                    | rustix::io::Errno::PROTO
                    | rustix::io::Errno::ACCESS
                    | rustix::io::Errno::OPNOTSUPP,
                ) => {}
                Some(rustix::io::Errno::NOBUFS | rustix::io::Errno::WOULDBLOCK) => {
                    std::thread::sleep(SPACING);
                }
                // An own firewall's DROP in the output chain.
                Some(rustix::io::Errno::PERM) => return Ok(Sent::Nowhere),
                _ => return Err(error),
            }
        }
        Ok(Sent::Nowhere)
    }

    /// Length above which this host itself refuses to send whole, bytes.
    fn own_limit(&self) -> u32 {
        let peer = match &self.link {
            Link::Udp(socket) => socket.peer_addr().map(|a| a.ip()),
            Link::Echo(socket) => Ok(socket.target()),
        };
        let known = peer.ok().and_then(|ip| link_mtu(ip).ok());
        known.unwrap_or(u32::MAX)
    }

    /// A datagram, or the data of an echo, in the buffer.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        for _ in 0..64 {
            let received = match &self.link {
                Link::Udp(socket) => socket.recv(&mut self.buffer),
                Link::Echo(socket) => {
                    let (mut space, mut found) = (std::mem::take(&mut self.buffer), None);
                    let received = socket.receive(&mut space).map(|r| r.map(|(_, data)| data.to_vec()));
                    self.buffer = space;
                    let received = received.map(|data| {
                        if let Some(data) = data {
                            self.buffer[..data.len()].copy_from_slice(&data);
                            found = Some(data.len());
                        }
                        found
                    });
                    match received {
                        Ok(Some(n)) => Ok(n),
                        Ok(None) => return Ok(None),
                        Err(e) => Err(e),
                    }
                }
            };
            match received {
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // An ICMP message: its details are in the error queue.
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn wait(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now()).min(LOOK);
        let left = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(self.socket(), PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits until a closed port may answer again.
    fn await_refusal(&mut self, pending: &mut [Pending]) -> io::Result<()> {
        while self.far == Far::ClosedPort && !self.is_over() {
            // For probes on their way it is not known yet whether they are answered.
            let open = pending.iter().filter(|p| p.outcome.is_none() && p.probe.size == self.least()).count();
            if self.refusals.left() > open {
                break;
            }
            self.wait(Instant::now() + LOOK)?;
            self.take(pending)?;
        }
        Ok(())
    }

    fn launch(&mut self, probe: Probe) -> io::Result<Pending> {
        let number = self.number();
        let payload = probe.size.saturating_sub(overhead(self.ipv6)) as usize;
        let (bytes, splitting) = match probe.way {
            Way::Egress => {
                let splitting = if probe.splits { Splitting::Allowed } else { Splitting::Never };
                (self.message(Kind::Probe, number, probe.splits, 0).write(payload), splitting)
            }
            Way::Ingress => {
                let trusted = self.far == Far::Ours { trusted: true };
                let asking = self.message(Kind::Fetch, number, probe.splits, payload as u32);
                let splits = !trusted && probe.size > self.egress_whole;
                let splitting = if splits { Splitting::Allowed } else { Splitting::Never };
                (asking.write(if trusted { HEADER } else { payload }), splitting)
            }
        };
        self.prepare(splitting, probe.hops)?;
        let sent = Instant::now();
        let outcome = match self.send(&bytes)? {
            Sent::Away => None,
            Sent::TooLong => Some(ProbeOutcome::TooBigHere { mtu: self.own_limit() }),
            Sent::Nowhere => Some(ProbeOutcome::Refused { from: None, refusal: Refusal::Prohibited }),
        };
        Ok(Pending { number, probe, sent, outcome })
    }

    /// Takes in what has come.
    fn take(&mut self, pending: &mut [Pending]) -> io::Result<()> {
        while let Some(n) = self.receive()? {
            let Some(message) = Message::read(&self.buffer[..n]) else { continue };
            if message.session != self.session {
                continue;
            }
            let Some(p) = pending.iter_mut().find(|p| p.number == message.number) else { continue };
            let payload = p.probe.size.saturating_sub(overhead(self.ipv6)).max(HEADER as u32);
            let outcome = match message.kind {
                Kind::Came if message.size == payload => ProbeOutcome::Arrived,
                Kind::Fetched if n as u32 == payload => ProbeOutcome::Arrived,
                // An echo comes back as it was sent.
                Kind::Probe if self.far == Far::Echo && n as u32 == payload => ProbeOutcome::Arrived,
                Kind::TooLong => ProbeOutcome::TooBigHere { mtu: message.size },
                _ => continue,
            };
            if outcome == ProbeOutcome::Arrived && p.outcome.is_none() {
                let took = p.sent.elapsed();
                self.round_trip = Some(self.round_trip.map_or(took, |r| r.min(took)));
            }
            p.outcome = Some(outcome);
        }
        let mut quote = [0; 256];
        while let Some(notice) = icmp_errors::read(self.socket(), &mut quote)? {
            let header = if matches!(self.link, Link::Echo(_)) { weir_sys::echo::HEADER } else { 0 };
            let quoted = quote.get(header..notice.quoted.min(quote.len())).unwrap_or_default();
            if let Some(p) = notices::about(pending, &notice, Message::read(quoted), self.session) {
                let outcome = notices::meaning(&notice, p.probe.way, self.far);
                if let (None, Some(outcome)) = (p.outcome, outcome) {
                    if outcome == ProbeOutcome::Arrived {
                        // Only refusals prove an arrival here.
                        self.refusals.take();
                        let took = p.sent.elapsed();
                        self.round_trip = Some(self.round_trip.map_or(took, |r| r.min(took)));
                    }
                    p.outcome = Some(outcome);
                }
            }
        }
        Ok(())
    }
}

/// The result of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Away,
    /// This host's link does not carry it.
    TooLong,
    /// This host refuses.
    Nowhere,
}

impl Prober for SocketProber {
    fn least(&self) -> u32 {
        HEADER as u32 + overhead(self.ipv6)
    }

    fn exchange(&mut self, probes: &[Probe], grace: Duration) -> io::Result<Vec<ProbeOutcome>> {
        let mut pending: Vec<Pending> = Vec::with_capacity(probes.len());
        for (nth, probe) in probes.iter().enumerate() {
            if nth > 0 {
                std::thread::sleep(SPACING);
            }
            self.await_refusal(&mut pending)?;
            let launched = self.launch(*probe)?;
            pending.push(launched);
            self.take(&mut pending)?;
        }
        let last_sent = pending.last().map_or_else(Instant::now, |p| p.sent);
        let patience = self.patience().max(grace);
        let mut answered: Option<Instant> = None;
        loop {
            // The time is taken before what came is: nothing that was there in time is called late.
            let now = Instant::now();
            self.take(&mut pending)?;
            if pending.iter().all(|p| p.outcome.is_some()) || self.is_over() {
                break;
            }
            if pending.last().is_some_and(|p| p.outcome.is_some()) {
                answered.get_or_insert(now);
            }
            let grace = grace.max(self.round_trip.unwrap_or_default() / 2);
            let until = answered.map_or(last_sent + patience, |t| (t + grace).min(last_sent + patience));
            if now >= until {
                break;
            }
            self.wait(until)?;
        }
        let least = self.least();
        if self.far == Far::ClosedPort && pending.iter().any(|p| p.outcome.is_none() && p.probe.size == least)
        {
            self.expect_few_refusals();
        }
        let outcome = |p: Pending| p.outcome.unwrap_or(ProbeOutcome::Silent);
        Ok(pending.into_iter().map(outcome).collect())
    }

    fn far_mtu(&mut self) -> io::Result<Option<u32>> {
        Ok(self.tally()?.map(|t| t.route_mtu).filter(|mtu| *mtu > 0))
    }

    fn is_over(&self) -> bool {
        self.stop.raised() || Instant::now() >= self.deadline
    }
}
