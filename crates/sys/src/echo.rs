//! ICMP echo: by a ping socket where the system lets this user have one, else by a raw socket (icmp(7), raw(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, socket_with};

/// Bytes of an echo request's header. The quote of an error (see [`crate::icmp_errors`]) begins with it.
pub const HEADER: usize = 8;

/// A socket that asks one host.
#[derive(Debug)]
pub struct EchoSocket {
    socket: OwnedFd,
    ipv6: bool,
    /// It sees what comes for others too, and IPv4's own header.
    raw: bool,
    identifier: u16,
    target: IpAddr,
}

impl EchoSocket {
    /// Opens one towards a host. It does not block.
    ///
    /// # Errors
    /// EACCES or EPERM if neither `net.ipv4.ping_group_range` names one of the user's groups nor there is CAP_NET_RAW; those of
    /// connect(2), as ENETUNREACH.
    pub fn open(target: IpAddr, identifier: u16) -> io::Result<Self> {
        let (family, protocol) = match target {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, raw) = match socket_with(family, SocketType::DGRAM, flags, Some(protocol)) {
            Ok(socket) => (socket, false),
            Err(_) => (socket_with(family, SocketType::RAW, flags, Some(protocol))?, true),
        };
        rustix::net::connect(&socket, &SocketAddr::new(target, 0))?;
        Ok(EchoSocket { socket, ipv6: target.is_ipv6(), raw, identifier, target })
    }

    /// Asks. The message is header and `data`.
    pub fn send(&self, sequence: u16, data: &[u8]) -> io::Result<()> {
        let mut message = vec![if self.ipv6 { 128 } else { 8 }, 0, 0, 0];
        message.extend(self.identifier.to_be_bytes());
        message.extend(sequence.to_be_bytes());
        message.extend(data);
        // The kernel makes the checksum for IPv6 (RFC 3542 section 3.1) and for ping sockets.
        if self.raw && !self.ipv6 {
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        Ok(())
    }

    /// The next answer to this socket: its sequence number, and its data in `buffer`. `None` if there is none. The buffer
    /// must hold a whole packet.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(u16, &'a [u8])>> {
        loop {
            let n = match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((n, _)) => n,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            let from = if self.raw && !self.ipv6 { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
            let reply = if self.ipv6 { 129 } else { 0 };
            // Ping sockets have an identifier of the kernel's, and get what is theirs.
            let ours = |h: &[u8; HEADER]| {
                h[..2] == [reply, 0] && (!self.raw || h[4..6] == self.identifier.to_be_bytes())
            };
            let header = buffer.get(from..n).and_then(|m| m.first_chunk::<HEADER>()).copied();
            if let Some(h) = header.filter(ours) {
                let sequence = u16::from_be_bytes([h[6], h[7]]);
                return Ok(Some((sequence, &buffer[from + HEADER..n])));
            }
        }
    }

    /// The host that it asks.
    pub fn target(&self) -> IpAddr {
        self.target
    }
}

impl AsFd for EchoSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_checksum_is_rfc_1071_s() {
        // Section 3's example: 00 01 f2 03 f4 f5 f6 f7 sum to ddf2.
        assert_eq!(checksum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0x12]), !0x1200);
    }

    #[test]
    fn this_host_answers_itself() {
        for target in ["127.0.0.1", "::1"] {
            let socket = match EchoSocket::open(target.parse().unwrap(), 0x7e17) {
                Ok(socket) => socket,
                Err(e) => {
                    println!("SKIP: no echo to {target}: {e}");
                    continue;
                }
            };
            for (sequence, size) in [(1, 0), (2, 57), (3, 1400)] {
                let data: Vec<u8> = (0..size).map(|i| i as u8).collect();
                socket.send(sequence, &data).unwrap();
                let mut buffer = vec![0; 65_536];
                let deadline = Instant::now() + Duration::from_secs(10);
                loop {
                    if let Some((answered, got)) = socket.receive(&mut buffer).unwrap() {
                        assert_eq!((answered, got), (sequence, &data[..]), "{target}");
                        break;
                    }
                    assert!(Instant::now() < deadline, "{target} does not answer");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}
