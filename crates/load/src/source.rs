//! Datagrams from an address of one's choice: a socket that listens on all addresses would answer from the one that the route
//! back prefers.
#![allow(unsafe_code, reason = "sendmsg(2) with a control message that no safe crate makes")]

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

/// Send a datagram to `to` from this host's address `from`: IP_PKTINFO (ip(7)) or IPV6_PKTINFO (ipv6(7)). On a socket of IPv6 both may
/// be IPv4 addresses in IPv6's form; the families of the two must be the socket's.
///
/// # Errors
/// Those of sendmsg(2); EINVAL if the families differ or the address is not this host's.
pub fn send_from(socket: impl AsFd, data: &[u8], to: SocketAddr, from: IpAddr) -> io::Result<usize> {
    match (to, from) {
        (SocketAddr::V4(to), IpAddr::V4(from)) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            send(socket, data, address, (libc::IPPROTO_IP, libc::IP_PKTINFO), info)
        }
        (SocketAddr::V6(to), IpAddr::V6(from)) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: from.octets() },
                ipi6_ifindex: if from.is_unicast_link_local() { to.scope_id() } else { 0 },
            };
            send(socket, data, address, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), info)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// One control message and the address that it goes to.
fn send<A, I: Copy>(
    socket: impl AsFd,
    data: &[u8],
    mut address: A,
    (level, kind): (i32, i32),
    info: I,
) -> io::Result<usize> {
    // Room for a header and the larger of the two (20 bytes), aligned as a header must be.
    let mut control = [0u64; 8];
    let mut vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: msghdr is plain numbers and null pointers, for which all zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<A>() as libc::socklen_t;
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: computes a size.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<I>() as u32) } as _;
    // SAFETY: the control buffer has 64 bytes, aligned to 8: a header of 16 and at most 20 bytes of data fit, and `info` is
    // one of the kernel's two structs of plain integers, written without regard to alignment.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<I>() as u32) as _;
        libc::CMSG_DATA(header).cast::<I>().write_unaligned(info);
    }
    // SAFETY: everything that the message points to lives until the call returns, with the lengths given; the kernel only
    // reads it.
    let n = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn the_answer_comes_from_the_address_that_was_asked() {
        // All of 127.0.0.0/8 is this host's; by itself the kernel would answer from 127.0.0.1.
        for (bind, to, from) in [
            ("0.0.0.0:0", "127.0.0.1", "127.0.0.5"),
            ("[::]:0", "::ffff:127.0.0.1", "::ffff:127.0.0.5"),
            ("[::]:0", "::1", "::1"),
        ] {
            let socket = UdpSocket::bind(bind).unwrap();
            let plain: IpAddr = to.parse::<IpAddr>().unwrap().to_canonical();
            let receiver = UdpSocket::bind((plain, 0)).unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let to = SocketAddr::new(to.parse().unwrap(), receiver.local_addr().unwrap().port());
            let from: IpAddr = from.parse().unwrap();
            assert_eq!(send_from(&socket, b"abc", to, from).unwrap(), 3);
            let (n, sender) = receiver.recv_from(&mut [0; 8]).unwrap();
            assert_eq!((n, sender.ip()), (3, from.to_canonical()));
        }
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let to = "127.0.0.1:9".parse().unwrap();
        assert!(send_from(&socket, b"", to, "::1".parse().unwrap()).is_err(), "of another family");
        assert!(send_from(&socket, b"", to, "192.0.2.1".parse().unwrap()).is_err(), "not this host's");
    }
}
