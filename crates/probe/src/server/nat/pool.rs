//! The ports of checks: two for each, on one or two addresses.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use weir_load::limits::counted_as;
use weir_sys::socket_option::answer_syns_twice;

use crate::nat::{At, Endpoints, version};

/// How often another number is tried where any would do.
const TRIES: u32 = 20;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Addresses and ports for `weir nat check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatPorts {
    /// One address of this host, or two, of IPv4, IPv6 or each: with one, some kinds of NAT look the same.
    pub addresses: Vec<IpAddr>,
    /// Each check uses two of these ports, the first one even; `None` for any free ones.
    pub ports: Option<RangeInclusive<u16>>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::server) struct Pool {
    places: NatPorts,
    used: Mutex<Used>,
}

#[derive(Debug)]
struct Used {
    clients: HashSet<IpAddr>,
    /// First ports of the pairs that are free. The one that was freed first comes first: a NAT forgets what a client sent to it
    /// before the same client gets it again.
    free: VecDeque<u16>,
}

/// The ports that one check has. Dropping it frees them.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pool: &'a Pool,
    client: IpAddr,
    first: Option<u16>,
}

/// The sockets of one endpoint.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) at: At,
    pub(super) own: SocketAddr,
    pub(super) udp: UdpSocket,
    pub(super) listener: TcpListener,
}

impl Pool {
    pub(in crate::server) fn new(places: NatPorts) -> Self {
        let free = places.ports.as_ref().map(pairs).unwrap_or_default();
        Pool { places, used: Mutex::new(Used { clients: HashSet::new(), free }) }
    }

    /// Two ports for a client that talks to address `own`, with their sockets. A client has one check at a time.
    ///
    /// # Errors
    /// In words for the client.
    pub(super) fn take(
        &self,
        client: IpAddr,
        own: IpAddr,
    ) -> Result<(Reservation<'_>, Endpoints, Vec<Sockets>), String> {
        let own = own.to_canonical();
        let same = |address: &&IpAddr| address.is_ipv4() == own.is_ipv4();
        let addresses: Vec<IpAddr> = self.places.addresses.iter().filter(same).copied().collect();
        if addresses.is_empty() {
            return Err(format!("no {} address for NAT checks here: --nat-address", version(own)));
        }
        let client = counted_as(client);
        if !lock(&self.used).clients.insert(client) {
            return Err("another NAT check of this address runs here; repeat this one after it".into());
        }
        let mut reservation = Reservation { pool: self, client, first: None };
        if self.places.ports.is_none() {
            let (endpoints, sockets) = any_ports(addresses).map_err(|e| format!("no ports are free: {e}"))?;
            return Ok((reservation, endpoints, sockets));
        }
        let free = lock(&self.used).free.len();
        for _ in 0..free {
            reservation.release();
            let Some(first) = lock(&self.used).free.pop_front() else { break };
            reservation.first = Some(first);
            let endpoints = Endpoints { addresses: addresses.clone(), ports: [first, first + 1] };
            // Another program may have one of them.
            if let Ok(sockets) = open(&endpoints) {
                return Ok((reservation, endpoints, sockets));
            }
        }
        Err("all ports for NAT checks are in use; repeat this one later".into())
    }
}

/// The even ports whose next one is there too.
fn pairs(ports: &RangeInclusive<u16>) -> VecDeque<u16> {
    ports.clone().filter(|port| port % 2 == 0 && port < ports.end()).collect()
}

fn any_ports(addresses: Vec<IpAddr>) -> io::Result<(Endpoints, Vec<Sockets>)> {
    let first = *addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut endpoints = Endpoints { addresses, ports: [0; 2] };
    let mut tries = 0;
    loop {
        let free = [UdpSocket::bind((first, 0))?, UdpSocket::bind((first, 0))?];
        endpoints.ports = [free[0].local_addr()?.port(), free[1].local_addr()?.port()];
        drop(free);
        match open(&endpoints) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && tries < TRIES => tries += 1,
            other => return other.map(|sockets| (endpoints, sockets)),
        }
    }
}

impl Reservation<'_> {
    fn release(&mut self) {
        if let Some(first) = self.first.take() {
            lock(&self.pool.used).free.push_back(first);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.release();
        lock(&self.pool.used).clients.remove(&self.client);
    }
}

fn lock(used: &Mutex<Used>) -> MutexGuard<'_, Used> {
    // Nothing that holds the lock can panic half-way.
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(endpoints: &Endpoints) -> io::Result<Vec<Sockets>> {
    let sockets = endpoints.all().filter_map(|at| endpoints.endpoint(at).map(|own| (at, own)));
    sockets
        .map(|(at, own)| {
            let udp = UdpSocket::bind(own)?;
            udp.set_nonblocking(true)?;
            let listener = TcpListener::from(shared_tcp(own)?);
            answer_syns_twice(&listener)?;
            listen(&listener, BACKLOG)?;
            Ok(Sockets { at, own, udp, listener })
        })
        .collect()
}

/// A TCP socket at an address and port from which others of this user listen and connect too. It does not block.
///
/// # Errors
/// Those of socket(2) and bind(2).
pub fn shared_tcp(own: SocketAddr) -> io::Result<rustix::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &own)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn each_client_has_two_ports_until_it_ends() {
        let addresses = vec![OWN, Ipv4Addr::new(127, 0, 0, 2).into()];
        let pool = Pool::new(NatPorts { addresses, ports: Some(23_457..=23_462) });
        let take = |n: u8| pool.take(IpAddr::from([192, 0, 2, n]), OWN);
        // 23458 and 23459, 23460 and 23461.
        let one = take(1).unwrap();
        assert_eq!(one.1.ports, [23_458, 23_459]);
        assert_eq!(one.2.len(), 4);
        assert!(take(1).unwrap_err().contains("another NAT check"));
        let two = take(2).unwrap();
        assert_eq!(two.1.ports, [23_460, 23_461]);
        assert!(take(3).unwrap_err().contains("in use"));
        drop(one);
        assert_eq!(take(3).unwrap().1.ports, [23_458, 23_459]);
        drop(two);
        // The pair that has been free for longer.
        assert_eq!(take(2).unwrap().1.ports, [23_458, 23_459]);
        assert_eq!(take(2).unwrap().1.ports, [23_460, 23_461]);
    }

    #[test]
    fn any_free_ports_will_do() {
        let pool = Pool::new(NatPorts { addresses: vec![OWN], ports: None });
        let (_place, endpoints, sockets) = pool.take(IpAddr::from([192, 0, 2, 1]), OWN).unwrap();
        assert_eq!((endpoints.all().count(), sockets.len()), (2, 2));
        assert_ne!(endpoints.ports[0], endpoints.ports[1]);
    }

    #[test]
    fn a_client_has_addresses_of_its_version() {
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let pool = Pool::new(NatPorts { addresses: vec![OWN, v6], ports: None });
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        for (own, expected) in [(OWN, OWN), (mapped, OWN), (v6, v6)] {
            let (_place, endpoints, sockets) = pool.take(IpAddr::from([192, 0, 2, 1]), own).unwrap();
            assert_eq!((endpoints.addresses, sockets.len()), (vec![expected], 2));
        }
        let pool = Pool::new(NatPorts { addresses: vec![OWN], ports: None });
        let reason = pool.take(IpAddr::from([192, 0, 2, 1]), v6).unwrap_err();
        assert!(reason.contains("no IPv6 address"), "{reason}");
    }
}
