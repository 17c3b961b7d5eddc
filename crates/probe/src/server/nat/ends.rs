//! The sockets of one check: what comes to them, and what is sent from them.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::accept_with;
use weir_sys::datagram_filter::{self, Start};

use super::account::{Mappings, Pace};
use super::pool::{Sockets, shared_tcp};
use crate::nat::{self, At, MAGIC, STREAM, Transport};

/// Packets and connections taken from one socket in one go.
const TURN: usize = 64;
/// Connections that have not sent the check's number, at once and how long.
const UNKNOWN: usize = 64;
const UNKNOWN_FOR: Duration = Duration::from_secs(5);
/// Connections of the check at once, each way.
const CONNECTIONS: usize = 128;
/// How long a connection is tried: the kernel sends the SYN once more after a second (RFC 6298), which is not paid for.
const DIAL: Duration = Duration::from_millis(900);

/// A packet that came through the NAT.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) transport: Transport,
    pub(super) at: At,
    pub(super) from: SocketAddr,
    pub(super) mark: Vec<u8>,
}

/// A connection that has not sent the check's number.
#[derive(Debug)]
struct Unknown {
    stream: TcpStream,
    at: At,
    from: SocketAddr,
    head: Vec<u8>,
    since: Instant,
}

/// A connection that this end opens.
#[derive(Debug)]
struct Dialled {
    stream: TcpStream,
    at: At,
    to: SocketAddr,
    since: Instant,
    open: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) number: u64,
    sockets: Vec<Sockets>,
    unknown: Vec<Unknown>,
    known: HashMap<(At, SocketAddr), TcpStream>,
    dialled: Vec<Dialled>,
    pub(super) mappings: Mappings,
    pub(super) pace: Pace,
}

impl Ends {
    pub(super) fn new(number: u64, sockets: Vec<Sockets>) -> Self {
        let start = Start {
            bytes: [&MAGIC[..], &number.to_be_bytes()].concat(),
            length: nat::HEAD as u16,
            exact: false,
        };
        for socket in &sockets {
            // Without the filter the others are read, and dropped then.
            let _ = datagram_filter::admit_only(&socket.udp, std::slice::from_ref(&start));
        }
        Ends {
            number,
            sockets,
            unknown: Vec::new(),
            known: HashMap::new(),
            dialled: Vec::new(),
            mappings: Mappings::default(),
            pace: Pace::new(Instant::now()),
        }
    }

    /// Whether the ports answer no segments of TCP.
    ///
    /// # Errors
    /// In words for the client.
    pub(super) fn set_silent(&self, silent: bool) -> Result<(), String> {
        let set = |listener: &TcpListener| match silent {
            true => datagram_filter::admit_only(listener, &[]),
            false => datagram_filter::admit_all(listener),
        };
        self.sockets.iter().try_for_each(|socket| set(&socket.listener)).map_err(|e| e.to_string())
    }

    /// Waits until something can be read here or on one of `others`.
    pub(super) fn wait(&self, others: &[BorrowedFd<'_>], patience: Duration) -> io::Result<()> {
        let read = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut all: Vec<PollFd<'_>> = others.iter().map(|fd| read(*fd)).collect();
        all.extend(self.sockets.iter().flat_map(|s| [read(s.udp.as_fd()), read(s.listener.as_fd())]));
        all.extend(self.unknown.iter().map(|u| read(u.stream.as_fd())));
        let dialling = self.dialled.iter().filter(|d| !d.open);
        all.extend(dialling.map(|d| PollFd::from_borrowed_fd(d.stream.as_fd(), PollFlags::OUT)));
        let limit = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut all, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes what is there.
    pub(super) fn receive(&mut self) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        let mut buffer = [0; nat::HEAD + nat::MARK];
        for n in 0..self.sockets.len() {
            for _ in 0..TURN {
                if !self.datagram(n, &mut buffer, &mut arrived) {
                    break;
                }
            }
            self.accept(n);
        }
        self.read_unknown(&mut arrived);
        self.look_at_dialled();
        arrived
    }

    /// One datagram. False if there is none.
    fn datagram(&mut self, n: usize, buffer: &mut [u8], arrived: &mut Vec<Arrived>) -> bool {
        let socket = &self.sockets[n];
        // The length is that of the whole datagram, of which only the beginning is kept.
        let received = rustix::net::recvfrom(&socket.udp, &mut *buffer, rustix::net::RecvFlags::TRUNC);
        let (kept, length, from) = match received {
            Ok((kept, length, from)) => (kept, length, from),
            Err(Errno::AGAIN) => return false,
            // ICMP errors about what was sent (udp(7)).
            Err(_) => return true,
        };
        let from = from.and_then(|from| SocketAddr::try_from(from).ok()).map(nat::plain);
        let mark = nat::read(self.number, &buffer[..kept]).map(<[u8]>::to_vec);
        if let (Some(from), Some(mark)) = (from, mark)
            && let Some(account) = self.mappings.source(Transport::Udp, from)
        {
            account.received_datagram(length);
            arrived.push(Arrived { transport: Transport::Udp, at: socket.at, from, mark });
        }
        true
    }

    fn accept(&mut self, n: usize) {
        for _ in 0..TURN {
            let socket = &self.sockets[n];
            let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
            let Ok(fd) = accept_with(&socket.listener, flags) else { return };
            let (stream, at) = (TcpStream::from(fd), socket.at);
            let Ok(from) = stream.peer_addr().map(nat::plain) else { continue };
            if self.unknown.len() >= UNKNOWN {
                self.unknown.remove(0);
            }
            self.unknown.push(Unknown { stream, at, from, head: Vec::new(), since: Instant::now() });
        }
    }

    /// Reads connections that have not sent all that they should. They are closed if it is something else, or late.
    fn read_unknown(&mut self, arrived: &mut Vec<Arrived>) {
        let now = Instant::now();
        for mut unknown in std::mem::take(&mut self.unknown) {
            let mut buffer = [0; STREAM];
            let left = STREAM - unknown.head.len();
            match unknown.stream.read(&mut buffer[..left]) {
                Ok(0) => continue,
                Ok(n) => unknown.head.extend_from_slice(&buffer[..n]),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => continue,
            }
            let begins = |a: &[u8], b: &[u8]| a.iter().zip(b).all(|(a, b)| a == b);
            let number = self.number.to_be_bytes();
            if !begins(&unknown.head, &[&MAGIC[..], &number].concat()) {
                continue;
            }
            if unknown.head.len() < STREAM {
                if now.saturating_duration_since(unknown.since) < UNKNOWN_FOR {
                    self.unknown.push(unknown);
                }
                continue;
            }
            self.found(unknown, arrived);
        }
    }

    fn found(&mut self, unknown: Unknown, arrived: &mut Vec<Arrived>) {
        let Unknown { stream, at, from, head, .. } = unknown;
        let Some(mark) = nat::read(self.number, &head).map(<[u8]>::to_vec) else { return };
        if self.known.len() >= CONNECTIONS {
            return;
        }
        let Some(account) = self.mappings.source(Transport::Tcp, from) else { return };
        account.accepted();
        account.received_stream(head.len());
        self.known.insert((at, from), stream);
        arrived.push(Arrived { transport: Transport::Tcp, at, from, mark });
    }

    /// Gives up what takes too long or was refused.
    fn look_at_dialled(&mut self) {
        let now = Instant::now();
        self.dialled.retain_mut(|dialled| {
            if dialled.open {
                return true;
            }
            let failed = !matches!(rustix::net::sockopt::socket_error(&dialled.stream), Ok(Ok(())));
            dialled.open = !failed && dialled.stream.peer_addr().is_ok();
            dialled.open || (!failed && now.saturating_duration_since(dialled.since) < DIAL)
        });
    }

    /// Sends a datagram, or opens a connection, through the NAT.
    ///
    /// # Errors
    /// In words for the client.
    pub(super) fn send(
        &mut self,
        transport: Transport,
        at: At,
        to: SocketAddr,
        mark: &[u8],
    ) -> Result<(), String> {
        let own = self.sockets.iter().position(|s| s.at == at).ok_or("this check has no such endpoint")?;
        let account = self.mappings.destination(transport, to);
        let account = account.ok_or_else(|| format!("nothing has come from {to}"))?;
        let packet = nat::write(self.number, mark, 0);
        let pays = match transport {
            Transport::Udp => account.may_send_datagram(packet.len()),
            Transport::Tcp => account.may_dial(),
        };
        if !pays {
            return Err(format!("no more is sent to {to} than has come from there"));
        }
        std::thread::sleep(self.pace.wait(Instant::now()));
        if transport == Transport::Tcp {
            return self.dial(own, to).map_err(|e| e.to_string());
        }
        match self.sockets[own].udp.send_to(&packet, to) {
            // Lost on the way, as it may be anywhere: a full buffer, or an ICMP error about an earlier one.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn dial(&mut self, own: usize, to: SocketAddr) -> io::Result<()> {
        let Sockets { at, own, .. } = self.sockets[own];
        // Another attempt is another SYN, in place of the one under way.
        self.dialled.retain(|d| d.open || (d.at, d.to) != (at, to));
        if self.dialled.len() >= CONNECTIONS {
            return Err(io::Error::other("too many connections"));
        }
        let stream = TcpStream::from(shared_tcp(own)?);
        match rustix::net::connect(&stream, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                self.dialled.push(Dialled { stream, at, to, since: Instant::now(), open: false });
                Ok(())
            }
            // The connection is there already.
            Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Answers over a connection that came.
    ///
    /// # Errors
    /// In words for the client.
    pub(super) fn answer(&mut self, at: At, to: SocketAddr, mark: &[u8]) -> Result<(), String> {
        let mut stream = self.known.get(&(at, to)).ok_or_else(|| format!("no connection of {to} is open"))?;
        let packet = nat::write(self.number, mark, 0);
        let account = self.mappings.destination(Transport::Tcp, to);
        if !account.is_some_and(|account| account.may_send_stream(packet.len())) {
            return Err(format!("no more is sent to {to} than has come from there"));
        }
        std::thread::sleep(self.pace.wait(Instant::now()));
        // A connection that is gone shows as silence.
        let _ = stream.write(&packet);
        Ok(())
    }
}
