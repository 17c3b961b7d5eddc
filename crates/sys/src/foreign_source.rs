//! Sending from an address that this host need not have.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use crate::error::{Context, Result};
use crate::socket_option::set_int;

/// Opens a UDP socket whose datagrams come from that address, at any port. If the host does not have the address, the socket sets
/// IP_TRANSPARENT (ip(7)), which needs CAP_NET_ADMIN or CAP_NET_RAW over the namespace.
///
/// # Errors
/// If the host does not have the address and the privilege is missing.
pub fn udp_from(source: IpAddr) -> Result<UdpSocket> {
    let what = || format!("send from {source}");
    let address = SocketAddr::new(source, 0);
    match UdpSocket::bind(address) {
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {}
        bound => return bound.context(what),
    }
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let open = || -> io::Result<OwnedFd> {
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let (level, option) = match source {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
        };
        set_int(&socket, level, option, 1)?;
        bind(&socket, &address)?;
        Ok(socket)
    };
    Ok(UdpSocket::from(open().context(what)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_of_this_host_needs_no_privilege() {
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = udp_from("127.0.0.2".parse().unwrap()).unwrap();
        socket.send_to(b"x", there.local_addr().unwrap()).unwrap();
        assert_eq!(there.recv_from(&mut [0; 4]).unwrap().1.ip().to_string(), "127.0.0.2");
    }
}
