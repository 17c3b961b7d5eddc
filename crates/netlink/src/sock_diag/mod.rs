//! TCP and UDP sockets of a network namespace as the kernel describes them (sock_diag(7), include/uapi/linux/inet_diag.h).
//!
//! No privilege is needed. The kernel sends the requested data of every socket in a requested state; nothing is kept here.

mod exact;
mod tcp_info;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;

use crate::{Attributes, End, Message, Protocol, Socket, answers, u32_ne};
use weir_sys::ProcRoot;
use weir_sys::error::{Context, Error, Result};
use weir_sys::modules;

pub use exact::{SocketEnds, SocketFinder};
pub use tcp_info::TcpInfo;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bytes of `struct inet_diag_msg`.
const DIAG_MESSAGE: usize = 72;
/// Bytes of `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
const DIAG_INFO: u16 = 2;
const DIAG_MEMORY: u16 = 7; // INET_DIAG_SKMEMINFO

/// TCP states by number (include/net/tcp_states.h).
pub mod state {
    /// Data flows.
    pub const ESTABLISHED: u8 = 1;
    /// The SYN is out.
    pub const SYN_SENT: u8 = 2;
    /// The SYN came; also what the kernel reports of its request sockets.
    pub const SYN_RECV: u8 = 3;
    /// Over; the ports stay taken for a while.
    pub const TIME_WAIT: u8 = 6;
    /// Waits for connections.
    pub const LISTEN: u8 = 10;
}

/// The attributes that are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    /// Protocol.
    pub protocol: Protocol,
    /// States by number, one bit each: `1 << state::LISTEN`.
    pub states: u32,
    /// With [`Entry::memory`].
    pub memory: bool,
    /// With [`Entry::tcp_info`].
    pub info: bool,
}

/// One socket.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    message: &'a [u8],
}

/// Memory of a socket and what it had no room for (SO_MEMINFO of socket(7)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes received and waiting, as the kernel charges them.
    pub received: u32,
    /// Most that may wait (SO_RCVBUF as the kernel doubles it), bytes.
    pub receive_limit: u32,
    /// Most that may wait to be sent (SO_SNDBUF likewise), bytes.
    pub send_limit: u32,
    /// Bytes queued to be sent, as the kernel charges them.
    pub sending: u32,
    /// Bytes that wait because a program holds the socket.
    pub backlog: u32,
    /// Packets it had to throw away (`sk_drops`); 0 before Linux 4.6.
    pub drops: u32,
}

/// Hands over every socket of the calling thread's namespace that fits, IPv4 first. Sockets that come and go meanwhile may or
/// may not be among them. True if `each` had enough before the end.
///
/// # Errors
/// `Unsupported`, without asking the kernel, where its module is not loaded: asking would load it.
pub fn dump(
    root: &ProcRoot,
    query: Query,
    mut each: impl FnMut(&Entry<'_>) -> ControlFlow<()>,
) -> Result<bool> {
    let name = require(root, query.protocol)?;
    let what = || format!("read {name} sockets");
    for family in [libc::AF_INET, libc::AF_INET6] {
        if one_family(query, family, &mut each).context(what)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Name of the protocol.
///
/// # Errors
/// `Unsupported` where its module is not loaded.
fn require(root: &ProcRoot, protocol: Protocol) -> Result<&'static str> {
    let (module, name) = match protocol {
        Protocol::Tcp => ("tcp_diag", "TCP"),
        Protocol::Udp => ("udp_diag", "UDP"),
    };
    if modules::is_loaded(root, module) {
        return Ok(name);
    }
    let why = format!("the kernel module {module} is not loaded (`modprobe {module}` loads it)");
    Err(Error::new(format!("read {name} sockets"), std::io::Error::new(std::io::ErrorKind::Unsupported, why)))
}

fn one_family(
    query: Query,
    family: i32,
    each: &mut impl FnMut(&Entry<'_>) -> ControlFlow<()>,
) -> std::io::Result<bool> {
    // Its own socket: a dump that is left early goes on blocking other requests on the socket that asked for it.
    let mut socket = Socket::open(libc::NETLINK_SOCK_DIAG)?;
    let sequence = socket.ask(query.request(family))?;
    let mut buffer = vec![0; crate::BUFFER];
    let mut end = End::default();
    loop {
        let length = socket.receive_into(&mut buffer)?;
        let last = answers(&buffer[..length], |number| number == sequence, &mut end, &mut |received| {
            match Entry::read(received.payload) {
                Some(entry) => each(&entry),
                None => ControlFlow::Continue(()),
            }
        })?;
        if last {
            return Ok(end.stopped);
        }
    }
}

impl Query {
    /// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and an empty id.
    fn request(&self, family: i32) -> Message {
        let bit = |wanted: bool, kind: u16| u8::from(wanted) << (kind - 1);
        let extensions = bit(self.memory, DIAG_MEMORY) | bit(self.info, DIAG_INFO);
        Message::new(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP)
            .raw(&[family as u8, self.protocol.number(), extensions, 0])
            .raw(&self.states.to_ne_bytes())
            .raw(&[0; SOCKET_ID])
    }
}

impl<'a> Entry<'a> {
    /// `None` of what is too short.
    fn read(message: &'a [u8]) -> Option<Self> {
        (message.len() >= DIAG_MESSAGE).then_some(Entry { message })
    }

    fn u32_at(&self, offset: usize) -> u32 {
        self.message.get(offset..).and_then(u32_ne).unwrap_or_default()
    }

    fn address(&self, offset: usize) -> IpAddr {
        let bytes = &self.message[offset..offset + 16];
        if i32::from(self.message[0]) == libc::AF_INET {
            Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
        } else {
            let mut octets = [0; 16];
            octets.copy_from_slice(bytes);
            // An IPv6 socket that speaks IPv4 has a mapped address.
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
    }

    fn port(&self, offset: usize) -> u16 {
        u16::from_be_bytes([self.message[offset], self.message[offset + 1]])
    }

    /// State by number (see [`state`]).
    pub fn state(&self) -> u8 {
        self.message[1]
    }

    /// Retransmissions of what is out now, without an answer so far.
    pub fn retransmits(&self) -> u8 {
        self.message[3]
    }

    /// This end. An IPv4 address of an IPv6 socket is given as IPv4.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.address(8), self.port(4))
    }

    /// The other end; zero if there is none.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.address(24), self.port(6))
    }

    /// A number that no other socket of this machine has or will have until it restarts.
    pub fn cookie(&self) -> u64 {
        u64::from(self.u32_at(44)) | u64::from(self.u32_at(48)) << 32
    }

    /// Bytes that wait to be read; of a listening socket the connections that wait to be accepted.
    pub fn receive_queue(&self) -> u32 {
        self.u32_at(56)
    }

    /// Bytes not yet acknowledged; of a listening socket how many connections may wait.
    pub fn send_queue(&self) -> u32 {
        self.u32_at(60)
    }

    /// Inode, as `/proc/PID/fd` shows it (`socket:[INODE]`); 0 if no program holds it.
    pub fn inode(&self) -> u32 {
        self.u32_at(68)
    }

    /// Its memory, if it was asked for.
    pub fn memory(&self) -> Option<Memory> {
        let values = Attributes(&self.message[DIAG_MESSAGE..]).get(DIAG_MEMORY)?;
        // SK_MEMINFO_* (include/uapi/linux/sock_diag.h) by number.
        let value = |number: usize| u32_ne(values.get(4 * number..)?);
        Some(Memory {
            received: value(0)?,
            receive_limit: value(1)?,
            send_limit: value(3)?,
            sending: value(5)?,
            backlog: value(7)?,
            drops: value(8).unwrap_or(0),
        })
    }

    /// TCP's own information, if it was asked for. Sockets that only begin, or are over, have none.
    pub fn tcp_info(&self) -> Option<TcpInfo<'a>> {
        let attributes: &'a [u8] = &self.message[DIAG_MESSAGE..];
        Attributes(attributes).get(DIAG_INFO).map(TcpInfo)
    }
}
