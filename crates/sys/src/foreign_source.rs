//! Sending from an address that this host need not have.
#![allow(unsafe_code, reason = "a socket option that no safe crate offers")]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use crate::error::{Context, Result};

/// A UDP socket whose datagrams come from that address, at any port. Where the host does not have the address, the kernel is told
/// that this is meant (IP_TRANSPARENT of ip(7)), which needs CAP_NET_ADMIN or CAP_NET_RAW over the namespace.
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
        let on: libc::c_int = 1;
        // SAFETY: the option is an int, of which address and size are given.
        let set = unsafe {
            let size = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const on).cast(), size)
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        bind(&socket, &address)?;
        Ok(socket)
    };
    Ok(UdpSocket::from(open().context(what)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::NetNs;
    use crate::netlink::{Rtnetlink, VethEnd};
    use crate::privilege::test_needs_root;

    #[test]
    fn an_address_of_this_host_needs_no_privilege() {
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = udp_from("127.0.0.2".parse().unwrap()).unwrap();
        socket.send_to(b"x", there.local_addr().unwrap()).unwrap();
        assert_eq!(there.recv_from(&mut [0; 4]).unwrap().1.ip().to_string(), "127.0.0.2");
    }

    #[test]
    fn root_an_address_of_nobody_is_sent_from() {
        if test_needs_root() {
            return;
        }
        let (near, far) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        let end = |name, ns| VethEnd { name, namespace: Some(ns), mtu: 1500, mac: None };
        let mut link = Rtnetlink::open_in(&near).unwrap();
        link.create_veth(end("a0", &near), end("b0", &far)).unwrap();
        for (own, other, nobody) in
            [("198.18.0.1", "198.18.0.2", "198.18.0.9"), ("2001:2::1", "2001:2::2", "2001:2::9")]
        {
            let (own, other, nobody): (IpAddr, IpAddr, IpAddr) =
                (own.parse().unwrap(), other.parse().unwrap(), nobody.parse().unwrap());
            let length = if own.is_ipv4() { 24 } else { 64 };
            for (ns, name, address) in [(&near, "a0", own), (&far, "b0", other)] {
                let mut net = Rtnetlink::open_in(ns).unwrap();
                ns.run(|| {
                    let root = crate::ProcRoot::new("/");
                    crate::sysctl::set(&root, &format!("net.ipv6.conf.{name}.accept_dad"), "0").unwrap();
                })
                .unwrap();
                net.set_up(name).unwrap();
                net.add_address(name, address, length).unwrap();
                net.wait_until_local(address, Duration::from_secs(5)).unwrap();
            }
            let there = far.run(|| UdpSocket::bind((other, 5001))).unwrap().unwrap();
            there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let socket = near.run(|| udp_from(nobody)).unwrap().unwrap();
            socket.send_to(b"x", (other, 5001)).unwrap();
            assert_eq!(there.recv_from(&mut [0; 4]).unwrap().1.ip(), nobody);
        }
    }
}
