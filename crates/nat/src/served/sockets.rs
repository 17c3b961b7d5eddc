//! The inside end: sockets of this host that carry the packets of the experiments.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use weir_probe::nat::{self, HEAD, MARK, STREAM, plain};
use weir_probe::shared_tcp;
use weir_sys::datagram_filter::admit_only;
use weir_wire::Tcp;

use crate::session::Segment;
use crate::{Packet, session};

/// Connections that wait to be accepted, on each port.
const BACKLOG: i32 = 16;

/// A connection from an inside port.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// The number of its SYN, by which the far end knows it.
    sequence: u32,
    state: State,
    /// Bytes of answers that are not whole yet.
    answer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No answer to its SYN so far.
    Opening,
    /// Its number was sent.
    Open,
    /// Closed by the far end. It keeps its mapping's port until the end of the check.
    Ended,
}

/// Sockets by inside port, and connections by both endpoints.
#[derive(Debug)]
pub(super) struct Sockets {
    own: IpAddr,
    number: u64,
    udp: BTreeMap<u16, UdpSocket>,
    listeners: BTreeMap<u16, TcpListener>,
    connections: HashMap<(SocketAddr, SocketAddr), Connection>,
    /// Ports whose packets are raw.
    silent: BTreeMap<u16, TcpListener>,
    /// Connections from outside, kept until the end: closing one would be a packet more.
    accepted: Vec<TcpStream>,
}

impl Sockets {
    pub(super) fn new(own: IpAddr, number: u64) -> Self {
        Sockets {
            own,
            number,
            udp: BTreeMap::new(),
            listeners: BTreeMap::new(),
            connections: HashMap::new(),
            silent: BTreeMap::new(),
            accepted: Vec::new(),
        }
    }

    /// Whether a port is free for both protocols, or used here already.
    pub(super) fn has_port(&self, port: u16) -> bool {
        let own = SocketAddr::new(self.own, port);
        let udp = self.udp.contains_key(&port) || UdpSocket::bind(own).is_ok();
        udp && (self.listeners.contains_key(&port) || TcpListener::bind(own).is_ok())
    }

    /// Whether a port is free for datagrams, or used here already.
    pub(super) fn is_free(&self, port: u16) -> bool {
        self.udp.contains_key(&port) || UdpSocket::bind(SocketAddr::new(self.own, port)).is_ok()
    }

    /// Closes the socket of a port.
    pub(super) fn close(&mut self, port: u16) {
        self.udp.remove(&port);
    }

    /// Takes a port of TCP, on which the kernel then answers and resets nothing.
    pub(super) fn silence(&mut self, port: u16) -> io::Result<()> {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.silent.entry(port) {
            let listener =
                TcpListener::from(shared_tcp(SocketAddr::new(self.own, port)).map_err(about("TCP", port))?);
            admit_only(&listener, &[])?;
            rustix::net::listen(&listener, BACKLOG).map_err(|e| about("TCP", port)(e.into()))?;
            entry.insert(listener);
        }
        Ok(())
    }

    /// The socket of a port. While it is there, the kernel does not reject datagrams to that port.
    pub(super) fn hold(&mut self, port: u16) -> io::Result<&UdpSocket> {
        match self.udp.entry(port) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let socket = UdpSocket::bind(SocketAddr::new(self.own, port)).map_err(about("UDP", port))?;
                socket.set_nonblocking(true)?;
                Ok(entry.insert(socket))
            }
        }
    }

    /// The same for raw packets: the kernel learns no MTU of the path from errors about them.
    pub(super) fn hold_unlearning(&mut self, port: u16) -> io::Result<()> {
        let socket = self.hold(port)?;
        // Errors are then for the experiment only (ip_sk_accept_pmtu of the kernel, ip(7)).
        match socket.local_addr()? {
            SocketAddr::V4(_) => set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::INTERFACE)?,
            SocketAddr::V6(_) => set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::INTERFACE)?,
        }
        Ok(())
    }

    /// Sends a datagram from an inside port.
    pub(super) fn send_datagram(&mut self, from: u16, to: SocketAddr, mark: &[u8]) -> io::Result<()> {
        let number = self.number;
        let socket = self.hold(from)?;
        match socket.send_to(&nat::write(number, mark, nat::datagram(to.ip())), to) {
            Ok(_) => Ok(()),
            // A rule of this host, or an ICMP error about an earlier one: it is lost, as it may be anywhere.
            Err(e) if is_of_path(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Opens a connection from an inside port, which others may open connections to as well. One that is open already is returned
    /// by its number: there cannot be two between the same endpoints.
    pub(super) fn connect(&mut self, from: u16, to: SocketAddr, sequence: u32) -> io::Result<Option<u32>> {
        let own = SocketAddr::new(self.own, from);
        if let std::collections::btree_map::Entry::Vacant(entry) = self.listeners.entry(from) {
            let listener = TcpListener::from(shared_tcp(own).map_err(about("TCP", from))?);
            rustix::net::listen(&listener, BACKLOG).map_err(|e| about("TCP", from)(e.into()))?;
            entry.insert(listener);
        }
        if let Some(there) = self.connections.get(&(own, to)).filter(|c| c.state != State::Opening) {
            return Ok(Some(there.sequence));
        }
        // Another attempt is another SYN, in place of the one under way.
        self.connections.remove(&(own, to));
        let stream = TcpStream::from(shared_tcp(own).map_err(about("TCP", from))?);
        match rustix::net::connect(&stream, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) if is_of_path(&e.into()) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let connection = Connection { stream, sequence, state: State::Opening, answer: Vec::new() };
        self.connections.insert((own, to), connection);
        Ok(None)
    }

    /// All sockets, for poll(2).
    pub(super) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let udp = self.udp.values().map(|socket| PollFd::new(socket, PollFlags::IN));
        let listeners = self.listeners.values().map(|socket| PollFd::new(socket, PollFlags::IN));
        let connections = self.connections.values().filter(|c| c.state != State::Ended).map(|c| {
            let awaited = if c.state == State::Open { PollFlags::IN } else { PollFlags::OUT };
            PollFd::new(&c.stream, awaited)
        });
        udp.chain(listeners).chain(connections).collect()
    }

    /// The packets that came to the control port, or to all others.
    pub(super) fn datagrams(&self, control: bool) -> Vec<Packet> {
        let mut packets = Vec::new();
        let sockets = self.udp.iter().filter(|(port, _)| (**port == session::CONTROL_PORT) == control);
        let mut buffer = [0; HEAD + MARK];
        for (port, socket) in sockets {
            loop {
                let (length, from) = match socket.recv_from(&mut buffer) {
                    Ok((length, from)) => (length, plain(from)),
                    Err(e) if is_of_path(&e) => continue,
                    Err(_) => break,
                };
                if let Some(mark) = nat::read(self.number, &buffer[..length]) {
                    packets.push(Packet::udp(from, SocketAddr::new(self.own, *port), mark));
                }
            }
        }
        packets
    }

    /// Connections from outside: the endpoints of each.
    pub(super) fn accept(&mut self) -> Vec<(SocketAddr, SocketAddr)> {
        let mut came = Vec::new();
        for (port, listener) in &self.listeners {
            while let Ok((stream, from)) = listener.accept() {
                came.push((plain(from), SocketAddr::new(self.own, *port)));
                self.accepted.push(stream);
            }
        }
        came
    }

    /// Goes on with connections, and returns the answers that came over them.
    pub(super) fn answers(&mut self) -> Vec<Packet> {
        let number = self.number;
        let mut packets = Vec::new();
        self.connections.retain(|(own, to), connection| {
            if connection.state == State::Opening {
                return connection.go_on(number);
            }
            if connection.state == State::Open && !connection.read() {
                connection.state = State::Ended;
            }
            while connection.answer.len() >= HEAD {
                let length = HEAD + usize::from(connection.answer[HEAD - 1]);
                let Some(bytes) = connection.answer.get(..length) else { break };
                if let Some(mark) = nat::read(number, bytes).and_then(<[u8]>::first_chunk::<4>) {
                    let flags = Tcp::SYN | Tcp::ACK;
                    let acknowledgement = connection.sequence.wrapping_add(1);
                    let sequence = u32::from_be_bytes(*mark);
                    let header = Segment { sequence, acknowledgement, flags }.header();
                    packets.push(Packet::tcp(*to, *own, header, &[]));
                }
                connection.answer.drain(..length);
            }
            true
        });
        packets
    }
}

impl Connection {
    /// Sends its number once it is open. False if it was refused.
    fn go_on(&mut self, number: u64) -> bool {
        if !matches!(rustix::net::sockopt::socket_error(&self.stream), Ok(Ok(()))) {
            return false;
        }
        if self.stream.peer_addr().is_err() {
            return true;
        }
        self.state = State::Open;
        // It fits the buffer of a new connection.
        self.stream.write_all(&nat::write(number, &self.sequence.to_be_bytes(), STREAM)).is_ok()
    }

    /// False at the end of the connection.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 512];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => self.answer.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// An error that names the port: another program may have taken it since it was free.
fn about(protocol: &'static str, port: u16) -> impl FnOnce(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("port {port} of {protocol}: {e}"))
}

/// An error of the path, and not of this host's sockets.
pub(super) fn is_of_path(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable,
        PermissionDenied,
    };
    matches!(
        error.kind(),
        AddrNotAvailable
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | PermissionDenied
    )
}
