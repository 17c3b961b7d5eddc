//! Sockets by their ends, each found by its hash: the kernel goes through no list.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use weir_sys::ProcRoot;
use weir_sys::error::{Context, Result};

use super::{Entry, SOCK_DIAG_BY_FAMILY, require};
use crate::{Message, Protocol, Socket};

/// `INET_DIAG_NOCOOKIE`, twice: any socket with these ends.
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// The ends of a socket, as its namespace has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketEnds {
    /// Protocol.
    pub protocol: Protocol,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// Looks sockets up, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct SocketFinder {
    socket: Socket,
}

impl SocketFinder {
    /// Opens it.
    ///
    /// # Errors
    /// `Unsupported`, without asking the kernel, where a module is not loaded: asking would load it.
    pub fn open(root: &ProcRoot) -> Result<Self> {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            require(root, protocol)?;
        }
        let socket = Socket::open(libc::NETLINK_SOCK_DIAG).context(|| "look up sockets".into())?;
        Ok(SocketFinder { socket })
    }

    /// Inode of the socket that receives what comes from the remote end: the connection, else the one that listens there. 0 if no
    /// program holds it: a connection that is over, or that no program has accepted. `None` without a socket.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn inode(&mut self, ends: &SocketEnds) -> Result<Option<u32>> {
        let mut inode = None;
        let found = self.socket.request_with(request(ends), |received| {
            inode = Entry::read(received.payload).map(|entry| entry.inode());
        });
        match found {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(|()| inode).context(|| "look up a socket".into()),
        }
    }
}

/// `struct inet_diag_req_v2` with the ends of one socket.
fn request(ends: &SocketEnds) -> Message {
    let family = if ends.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // udp_dump_one() takes source and destination as a packet that comes in has them (net/ipv4/udp_diag.c).
    let [source, destination] = match ends.protocol {
        Protocol::Tcp => [ends.local, ends.remote],
        Protocol::Udp => [ends.remote, ends.local],
    };
    Message::new(SOCK_DIAG_BY_FAMILY, libc::NLM_F_ACK)
        .raw(&[family as u8, ends.protocol.number(), 0, 0])
        .raw(&u32::MAX.to_ne_bytes())
        .raw(
            &source
                .port()
                .to_be_bytes()
                .iter()
                .chain(&destination.port().to_be_bytes())
                .copied()
                .collect::<Vec<_>>(),
        )
        .raw(&octets(source.ip()))
        .raw(&octets(destination.ip()))
        // Any interface.
        .raw(&[0; 4])
        .raw(&NO_COOKIE)
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}
