//! The two ends of a NAT in front of this host: sockets here, and `weir serve` on the other side.
//!
//! Neither end needs root: each packet of an experiment is a datagram, or opens a connection. With root on both sides, and a key,
//! some experiments exchange raw packets. The rows that need others say so.

mod ports;
mod raw;
mod reasons;
mod sockets;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_probe::client::{Error, NatCheck};
use weir_probe::nat::Transport;
use weir_probe::nat64::Prefix64;
use weir_sys::Stop;
use weir_wire::{Tcp, protocol};

pub use ports::{EndOfPorts, PortChoice, PortSurvey, PortTranslation, survey};
pub use reasons::{Means, NEEDS_RAW_PACKETS, restrict};

use crate::ends::{FIRST_PORT, PORT_STEP};
use crate::session::{CONTROL_PORT, IDLE, IPV6, Segment};
use crate::{Arrival, Conditions, Ends, Limits, Packet, Side, nat64};
use raw::Raw;
use sockets::Sockets;

/// Experiments that sockets can make, and whether they need a second address of the server.
const EXPERIMENTS: &[(&str, bool)] = &[
    ("udp-mapping", false),
    ("udp-ports", false),
    ("udp-pairs", false),
    ("udp-filtering", true),
    ("udp-hairpin", false),
    (IPV6, false),
    ("tcp-mapping", false),
    ("tcp-filtering", true),
    (IDLE, false),
];
/// How often a packet is sent before silence counts: a path that loses 2 % of them loses three of three in 8 of a million.
const ATTEMPTS: u32 = 3;
/// How long a packet may take: so many round trips of the conversation, and a time that a busy host may take.
const ROUND_TRIPS: u32 = 3;
const LEAST_PATIENCE: Duration = Duration::from_millis(250);
/// How often a datagram is sent before an endpoint counts as unreachable.
const GREETINGS: u32 = 5;
/// How often the conversation gets a word that asks for nothing: a server leaves who is silent for five minutes, and a NAT may forget
/// the conversation's own connection sooner.
const KEPT_EVERY: Duration = Duration::from_secs(15);
/// How soon a stop is noticed.
const NOTICE: Duration = Duration::from_millis(100);
/// The experiments begin at one of so many ports, so that those of an earlier check are left alone.
const BEGINNINGS: u16 = 1_500;

/// Both sides of the NAT in front of this host.
#[derive(Debug)]
pub struct ServerEnds {
    far: NatCheck,
    ports: [u16; 2],
    conditions: Conditions,
    first_port: u16,
    sockets: Sockets,
    /// Raw packets, or why there are none.
    raw: Result<Raw, String>,
    /// The present experiment is one of raw packets.
    is_raw: bool,
    /// The server answers no segments of TCP.
    is_silent: bool,
    /// Connections that the far end was asked to open: its endpoint, and the numbers of the SYNs.
    dialled: HashMap<SocketAddr, u32>,
    /// Sources of connections as the server saw them, by the numbers of their SYNs.
    sources: HashMap<u32, SocketAddr>,
    arrived: VecDeque<Arrival>,
    begun: Instant,
    /// When the conversation last got a word to keep it open.
    kept: Instant,
    stop: Stop,
}

impl ServerEnds {
    /// Takes over a check that has begun. Connections are left alone with raw packets only, and the end of ports is not looked for.
    /// Once `stop` is raised, receiving fails.
    ///
    /// # Errors
    /// If the server has no address, the conversation is gone, or it is one of a link, which has no NAT.
    pub fn new(mut far: NatCheck, limits: Limits, stop: &Stop) -> io::Result<Self> {
        let own = far.visit().own_address()?.ip().to_canonical();
        if matches!(own, IpAddr::V6(own) if own.is_unicast_link_local()) {
            let words =
                "no NAT is between two link-local addresses (fe80::/10); name the server by another address";
            return Err(io::Error::new(io::ErrorKind::Unsupported, words));
        }
        let endpoints = far.endpoints();
        let addresses = &endpoints.addresses;
        let first = *addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut conditions = Conditions {
            inside: [own; 2],
            outside: [first, addresses.get(1).copied().unwrap_or(first)],
            patience: LEAST_PATIENCE.max(far.round_trip() * ROUND_TRIPS),
            attempts: ATTEMPTS,
            outside_mtu: None,
            limits: Limits { connections: Duration::ZERO, mappings: 0, ..limits },
            published: None,
        };
        // The keys of this hasher come from the system's generator.
        let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
        let first_port = FIRST_PORT + (random % u64::from(BEGINNINGS)) as u16 * PORT_STEP;
        let (ports, number) = (endpoints.ports, far.number());
        let raw = open_raw(&mut far)?;
        if raw.is_ok() {
            conditions.limits.connections = limits.connections;
        }
        Ok(ServerEnds {
            far,
            ports,
            conditions,
            first_port,
            sockets: Sockets::new(own, number),
            raw,
            is_raw: false,
            is_silent: false,
            dialled: HashMap::new(),
            sources: HashMap::new(),
            arrived: VecDeque::new(),
            begun: Instant::now(),
            kept: Instant::now(),
            stop: stop.clone(),
        })
    }

    /// Whether the server has a second address.
    pub fn has_two_addresses(&self) -> bool {
        self.conditions.outside[0] != self.conditions.outside[1]
    }

    /// Whether raw packets go both ways; if not, the reason.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn raw_packets(&self) -> Result<(), String> {
        self.raw.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// The server's endpoints that no datagram of this host reached: a firewall there, or before it, has closed them.
    ///
    /// # Errors
    /// If the system refuses, or the server is gone.
    pub fn unreachable(&mut self) -> io::Result<Vec<SocketAddr>> {
        let own = SocketAddr::new(self.conditions.inside[0], CONTROL_PORT);
        let mut left = self.endpoints();
        for _ in 0..GREETINGS {
            for to in &left {
                self.send(Side::Inside, &Packet::udp(own, *to, b"greeting"))?;
            }
            let deadline = self.now() + self.conditions.patience * GREETINGS;
            while !left.is_empty()
                && let Some(arrival) = self.receive(deadline)?
            {
                left.retain(|to| arrival.packet.to() != Some(*to));
            }
        }
        Ok(left)
    }

    /// The server's endpoints, as this host knows them.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let endpoints = self.far.endpoints();
        endpoints.all().filter_map(|at| endpoints.endpoint(at)).collect()
    }

    /// Ends the check; returns the server's count of bytes.
    ///
    /// # Errors
    /// As [`NatCheck::finish`].
    pub fn finish(self) -> Result<weir_probe::client::nat::Bytes, Error> {
        self.far.finish().map(|(_, bytes)| bytes)
    }

    /// Whether an inside port is free for datagrams.
    pub(crate) fn is_free(&self, port: u16) -> bool {
        self.sockets.is_free(port)
    }

    /// Closes the socket of an inside port: the NAT keeps its mapping.
    pub(crate) fn close(&mut self, port: u16) {
        self.sockets.close(port);
    }

    /// Sends a packet of an experiment of raw packets.
    fn send_raw(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        self.set_silent()?;
        if side == Side::Outside {
            let real = self.nat64().map(|prefix| nat64::real(prefix, packet).ok_or_else(unsupported));
            let bytes = real.transpose()?.as_ref().unwrap_or(packet).bytes();
            return self.far.send_raw(&bytes).map_err(io::Error::other);
        }
        match packet.from() {
            Some(from) if packet.header.protocol == protocol::UDP => {
                self.sockets.hold_unlearning(from.port())?;
            }
            Some(from) => self.sockets.silence(from.port())?,
            None => {}
        }
        self.raw.as_ref().map_or_else(|_| Err(unsupported()), |raw| raw.send(packet))
    }

    /// The server answers segments of TCP by itself in experiments of sockets only.
    fn set_silent(&mut self) -> io::Result<()> {
        if self.is_silent != self.is_raw {
            self.far.set_tcp_silent(self.is_raw).map_err(io::Error::other)?;
            self.is_silent = self.is_raw;
        }
        Ok(())
    }

    fn send_inside(&mut self, packet: &Packet) -> io::Result<()> {
        self.set_silent()?;
        let (from, to) = endpoints(packet)?;
        if let Some(data) = packet.udp_data() {
            return self.sockets.send_datagram(from.port(), to, data);
        }
        match packet.tcp_segment() {
            Some((header, _)) if header.flags == Tcp::SYN => {
                let there = self.sockets.connect(from.port(), to, header.sequence)?;
                if let Some(source) = there.and_then(|sequence| self.sources.get(&sequence)) {
                    let (at, packet) = (self.begun.elapsed(), syn(*source, to, header.sequence));
                    self.arrived.push_back(Arrival { side: Side::Outside, at, packet });
                }
                Ok(())
            }
            _ => Err(unsupported()),
        }
    }

    fn send_outside(&mut self, packet: &Packet) -> io::Result<()> {
        let (from, to) = endpoints(packet)?;
        let at = self.far.endpoints().at(from).ok_or_else(unsupported)?;
        if let Some(data) = packet.udp_data() {
            return self.far.send(Transport::Udp, false, (at, to), data).map_err(io::Error::other);
        }
        let (header, _) = packet.tcp_segment().ok_or_else(unsupported)?;
        let answer = match header.flags {
            Tcp::SYN => {
                self.dialled.insert(from, header.sequence);
                false
            }
            flags if flags == Tcp::SYN | Tcp::ACK => true,
            _ => return Err(unsupported()),
        };
        let mark = header.sequence.to_be_bytes();
        self.far.send(Transport::Tcp, answer, (at, to), &mark).map_err(io::Error::other)
    }

    /// Takes what is there on both sides. Control packets come last: what was sent before them, and is not here yet, is lost.
    fn gather(&mut self) -> io::Result<()> {
        let control = self.sockets.datagrams(true);
        let mut raw = self.raw.as_mut().map_or(Ok(Vec::new()), Raw::receive)?;
        if !self.is_raw {
            raw.clear();
        }
        if !control.is_empty() || !raw.is_empty() {
            // The server's word that it has sent everything comes after its word of what came there.
            self.far.settle().map_err(io::Error::other)?;
        }
        self.far.hear().map_err(io::Error::other)?;
        let at = self.begun.elapsed();
        while let Some(arrived) = self.far.arrival() {
            let Some(to) = self.far.endpoints().endpoint(arrived.at) else { continue };
            let Some(packet) = seen_outside(arrived.transport, arrived.from, to, &arrived.mark) else {
                continue;
            };
            if let Some((header, _)) = packet.tcp_segment() {
                self.sources.insert(header.sequence, arrived.from);
            }
            self.arrived.push_back(Arrival { side: Side::Outside, at, packet });
        }
        while let Some(bytes) = self.far.raw_arrival() {
            let packet = Packet::read(&bytes).filter(|_| self.is_raw);
            let packet = match self.nat64() {
                Some(prefix) => packet.and_then(|packet| nat64::known(prefix, &packet)),
                None => packet,
            };
            self.arrived.extend(packet.map(|packet| Arrival { side: Side::Outside, at, packet }));
        }
        let mut inside = self.sockets.datagrams(false);
        for (from, to) in self.sockets.accept() {
            if let Some(sequence) = self.dialled.get(&from) {
                inside.push(syn(from, to, *sequence));
            }
        }
        inside.extend(self.sockets.answers());
        inside.extend(control);
        inside.extend(raw);
        self.arrived.extend(inside.into_iter().map(|packet| Arrival { side: Side::Inside, at, packet }));
        Ok(())
    }

    /// Without raw packets no time is so long that the experiments say nothing meanwhile.
    fn keep_open(&mut self) -> io::Result<()> {
        if self.is_silent && self.kept.elapsed() > KEPT_EVERY {
            self.kept = Instant::now();
            self.far.set_tcp_silent(true).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn wait(&self, patience: Duration) -> io::Result<()> {
        let mut all = self.sockets.poll_fds();
        all.push(PollFd::new(&self.far, PollFlags::IN));
        all.extend(self.raw.iter().map(|raw| PollFd::new(raw, PollFlags::IN)));
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut all, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Raw packets, where both ends can have them.
fn open_raw(far: &mut NatCheck) -> io::Result<Result<Raw, String>> {
    let raw = Raw::open(far.endpoints()).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => "this host needs root (CAP_NET_RAW and CAP_NET_ADMIN)".to_owned(),
        _ => format!("this host cannot open packet sockets: {e}"),
    });
    let Ok(raw) = raw else { return Ok(raw) };
    Ok(far.open_raw().map_err(io::Error::other)?.map(|()| raw))
}

/// The endpoints of a packet.
fn endpoints(packet: &Packet) -> io::Result<(SocketAddr, SocketAddr)> {
    packet.from().zip(packet.to()).ok_or_else(unsupported)
}

/// A packet as the server told of it; `None` for a mark that no packet of an experiment has.
fn seen_outside(transport: Transport, from: SocketAddr, to: SocketAddr, mark: &[u8]) -> Option<Packet> {
    match transport {
        Transport::Udp => Some(Packet::udp(from, to, mark)),
        Transport::Tcp => Some(syn(from, to, u32::from_be_bytes(*mark.first_chunk::<4>()?))),
    }
}

fn syn(from: SocketAddr, to: SocketAddr, sequence: u32) -> Packet {
    let segment = Segment { sequence, acknowledgement: 0, flags: Tcp::SYN };
    Packet::tcp(from, to, segment.header(), &[])
}

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "sockets cannot send this packet")
}

impl Ends for ServerEnds {
    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn makes(&self, experiment: &str) -> bool {
        EXPERIMENTS.iter().any(|(name, two)| *name == experiment && (!two || self.has_two_addresses()))
            || (self.raw.is_ok() && raw::EXPERIMENTS.contains(&experiment))
    }

    fn mark(&self) -> [u8; 4] {
        self.far.raw_mark()
    }

    fn begin(&mut self, experiment: &'static str) {
        self.is_raw = self.raw.is_ok() && raw::EXPERIMENTS.contains(&experiment);
    }

    fn carries_everything(&self) -> bool {
        self.is_raw
    }

    fn nat64(&self) -> Option<Prefix64> {
        self.far.prefix()
    }

    fn first_port(&self) -> u16 {
        self.first_port
    }

    fn has_port(&self, port: u16) -> bool {
        // Experiments use odd ports beside their even one.
        self.sockets.has_port(port) && self.sockets.has_port(port | 1)
    }

    fn outside_port(&self, port: u16) -> u16 {
        self.ports[usize::from(port / PORT_STEP % 2)]
    }

    fn send(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        if self.is_raw {
            return self.send_raw(side, packet);
        }
        match side {
            Side::Inside => self.send_inside(packet),
            Side::Outside => self.send_outside(packet),
        }
    }

    fn receive(&mut self, deadline: Duration) -> io::Result<Option<Arrival>> {
        loop {
            if let Some(arrival) = self.arrived.pop_front() {
                return Ok(Some(arrival));
            }
            if self.stop.raised() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
            }
            self.gather()?;
            if !self.arrived.is_empty() {
                continue;
            }
            let left = deadline.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.wait(left.min(NOTICE))?;
            self.keep_open()?;
        }
    }
}

/// As many descriptors as are allowed: each mapping that is left alone has a socket.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // Raising the soft limit to the hard one is always allowed (setrlimit(2)).
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
}
