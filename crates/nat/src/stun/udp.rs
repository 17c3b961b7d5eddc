//! STUN over the sockets of this host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::Exchange;

/// Longest datagram that is read, bytes: more than any answer to a binding request has.
const LONGEST: usize = 1_500;

/// One socket at a time, in the network namespace of the calling thread.
#[derive(Debug, Default)]
pub struct UdpExchange {
    socket: Option<UdpSocket>,
}

impl UdpExchange {
    fn socket(&self) -> io::Result<&UdpSocket> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Exchange for UdpExchange {
    fn open(&mut self, server: SocketAddr) -> io::Result<SocketAddr> {
        // The address that the kernel chooses towards the server; a socket that is bound to none has none.
        let any = match server {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let route = UdpSocket::bind((any, 0))?;
        route.connect(server)?;
        let mut own = route.local_addr()?;
        own.set_port(0);
        let socket = UdpSocket::bind(own)?;
        let local = socket.local_addr()?;
        self.socket = Some(socket);
        Ok(local)
    }

    fn send(&mut self, to: SocketAddr, data: &[u8]) -> io::Result<()> {
        self.socket()?.send_to(data, to).map(drop)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<(SocketAddr, Vec<u8>)>> {
        let socket = self.socket()?;
        let end = Instant::now() + patience;
        let mut buffer = [0; LONGEST];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv_from(&mut buffer) {
                Ok((n, from)) => return Ok(Some((from, buffer[..n].to_vec()))),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                // An ICMP error about an earlier request is no answer to this one.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
