//! The one port of a server: TCP and UDP under the same number.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use weir_sys::datagram_filter::{self, Start};
use weir_sys::socket_option::answer_syns_twice;

/// Connections that wait to be accepted; the kernel allows no more than net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// How often another number is tried where any would do and TCP's is taken for UDP.
const TRIES: u32 = 20;

/// The listening TCP socket and the UDP socket of a server.
#[derive(Debug)]
pub struct Port {
    listener: TcpListener,
    udp: UdpSocket,
    address: SocketAddr,
}

impl Port {
    /// Listen on that address; port 0 takes a number that is free for both. `[::]` also answers IPv4, whose clients then
    /// have addresses of the form `::ffff:192.0.2.1`.
    ///
    /// # Errors
    /// The port is taken, the address is not this host's, or the port needs a privilege.
    pub fn open(address: SocketAddr) -> io::Result<Port> {
        let mut tries = 0;
        loop {
            let listener = TcpListener::bind(address)?;
            let own = listener.local_addr()?;
            match UdpSocket::bind(own) {
                Ok(udp) => return Port::new(listener, udp, own),
                Err(e) if address.port() == 0 && e.kind() == io::ErrorKind::AddrInUse && tries < TRIES => {
                    tries += 1;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn new(listener: TcpListener, udp: UdpSocket, address: SocketAddr) -> io::Result<Port> {
        answer_syns_twice(&listener)?;
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        // Set after binding: the port is ours alone, and only the sockets of `connected_udp_from` may join us on it.
        sockopt::set_socket_reuseaddr(&udp, true)?;
        udp.set_nonblocking(true)?;
        Ok(Port { listener, udp, address })
    }

    /// Returns the address that it listens on, with the port's number.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The listening TCP socket; it does not block.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// The UDP socket, to which everything comes that no connected one takes; it does not block.
    pub fn udp(&self) -> &UdpSocket {
        &self.udp
    }

    /// Lets only datagrams that begin like one of these come to [`Port::udp`]; the kernel drops the others without waking a
    /// thread. If the kernel has no room for such a long list, all datagrams come again. Connected sockets are not affected.
    pub fn admit_datagrams(&self, starts: &[Start]) {
        if datagram_filter::admit_only(&self.udp, starts).is_err() {
            // A peer missing from the present list would be kept out. The removal fails if no list is set.
            let _ = datagram_filter::admit_all(&self.udp);
        }
    }

    /// A UDP socket on this port that gets only what this peer sends: the kernel prefers the connected one (net/ipv4/udp.c,
    /// `compute_score`). It blocks. `own` is the address of this host that the peer talks to: where the port listens on all
    /// addresses, the kernel would answer from the one that the route back prefers, and the peer would not know it.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and connect(2).
    pub fn connected_udp_from(&self, own: IpAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
        let family = if self.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &self.reached_from(own, self.address.port(), peer))?;
        let socket = UdpSocket::from(socket);
        socket.connect(self.reached_from(peer.ip(), peer.port(), peer))?;
        Ok(socket)
    }

    /// Send a datagram to a peer from that address of this host, over the socket that all share: so no socket of its own stands in the
    /// way of what the peer sends next.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn answer(&self, own: IpAddr, peer: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let to = self.reached_from(peer.ip(), peer.port(), peer);
        let from = self.reached_from(own, 0, peer).ip();
        crate::sockets::send_from(&self.udp, datagram, to, from).map(drop)
    }

    /// An address as this port's socket writes it: IPv4 on a socket of IPv6 (RFC 4291 section 2.5.5.2), and a link-local one with
    /// the link that the peer is on (RFC 4007 section 11).
    fn reached_from(&self, ip: IpAddr, number: u16, peer: SocketAddr) -> SocketAddr {
        let link = |v6: Ipv6Addr| match peer {
            SocketAddr::V6(peer) if v6.is_unicast_link_local() => peer.scope_id(),
            _ => 0,
        };
        match (self.address, ip) {
            (SocketAddr::V6(_), IpAddr::V4(v4)) => SocketAddr::new(v4.to_ipv6_mapped().into(), number),
            (SocketAddr::V6(_), IpAddr::V6(v6)) => SocketAddrV6::new(v6, number, 0, link(v6)).into(),
            (SocketAddr::V4(_), ip) => SocketAddr::new(ip.to_canonical(), number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_connected_socket_takes_what_its_peer_sends_and_nothing_else() {
        for any in ["127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"] {
            let port = Port::open(any.parse().unwrap()).unwrap();
            let number = port.address().port();
            let (host, from) =
                if any.starts_with("[::1") { ("[::1]", "[::1]:0") } else { ("127.0.0.1", "127.0.0.1:0") };
            let to: SocketAddr = format!("{host}:{number}").parse().unwrap();
            let (one, other) = (UdpSocket::bind(from).unwrap(), UdpSocket::bind(from).unwrap());
            let taken = port.connected_udp_from(to.ip(), one.local_addr().unwrap()).unwrap();
            one.send_to(b"one", to).unwrap();
            other.send_to(b"other", to).unwrap();
            taken.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut buffer = [0; 16];
            assert_eq!(taken.recv(&mut buffer).unwrap(), 3, "{any}");
            taken.set_nonblocking(true).unwrap();
            assert!(taken.recv(&mut buffer).is_err(), "{any}");
            let (n, who) = port.udp().recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..n], who.port()), (&b"other"[..], other.local_addr().unwrap().port()));
            taken.send(b"back").unwrap();
            one.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(one.recv_from(&mut buffer).unwrap(), (4, to), "{any}");
        }
    }

    #[test]
    fn a_taken_port_is_an_error() {
        let port = Port::open("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(Port::open(port.address()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
