//! ICMP errors about a socket's datagrams, from its error queue (ip(7), IP_RECVERR). Needs no privilege.
#![allow(unsafe_code, reason = "recvmsg(2) of the error queue, which no safe crate offers")]

use std::io;
use std::mem::{size_of, size_of_val};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use crate::socket_option::set_int;

/// The error that an ICMP message, or this host, reported about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Longer than the next link's MTU, which is so many bytes (0: not told, RFC 1191 section 4).
    TooBig(u32),
    /// Longer than this host's own link, of so many bytes.
    TooBigHere(u32),
    /// Its hops were used up.
    HopsUsedUp,
    /// Fragments of it were missing for too long.
    ReassemblyTimeout,
    /// The port has no listener.
    PortClosed,
    /// A firewall says that it is prohibited.
    Prohibited,
    /// It cannot be delivered for another reason (the code of the message).
    Unreachable(u8),
    /// Anything else: type and code, and whether it was this host's own.
    Other(u8, u8),
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Why.
    pub reason: Reason,
    /// Who says so; `None` of what is this host's own.
    pub from: Option<IpAddr>,
    /// Bytes of the datagram's own payload that the message quotes, as far as the buffer holds them. Routers may quote no more
    /// than the UDP header (RFC 792).
    pub quoted: usize,
}

/// Make the socket keep them, and tell its own ENOBUFS.
pub fn keep(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)
    } else {
        set_int(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)
    }
}

/// Take the oldest one, with the beginning of the datagram; `None` if there is none.
pub fn read(socket: impl AsFd, quote: &mut [u8]) -> io::Result<Option<Notice>> {
    let mut control = [0u64; 32];
    let mut vector = libc::iovec { iov_base: quote.as_mut_ptr().cast(), iov_len: quote.len() };
    // SAFETY: msghdr is plain numbers and null pointers, for which all zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let n = loop {
        // SAFETY: the message points to a live vector of a live buffer and to a live control buffer, with their sizes.
        let n = unsafe {
            libc::recvmsg(
                socket.as_fd().as_raw_fd(),
                &raw mut message,
                libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
            )
        };
        if let Ok(n) = usize::try_from(n) {
            break n;
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            e => return Err(e),
        }
    };
    let used = (message.msg_controllen as usize).min(size_of_val(&control));
    let words = control.iter().flat_map(|word| word.to_ne_bytes()).take(used).collect::<Vec<u8>>();
    let (reason, from) = notice(&words).unwrap_or((Reason::Other(0, 0), None));
    Ok(Some(Notice { reason, from, quoted: n }))
}

/// Header of a control message: length, level, type (cmsg(3)).
const HEADER: usize = size_of::<libc::cmsghdr>();
/// `struct sock_extended_err`.
const EXTENDED: usize = 16;
const _: () = assert!(HEADER == 16 && size_of::<libc::sock_extended_err>() == EXTENDED);

/// The message that is in the control data.
fn notice(mut control: &[u8]) -> Option<(Reason, Option<IpAddr>)> {
    loop {
        let length = u64::from_ne_bytes(*control.first_chunk()?) as usize;
        let (level, kind) = (int(control, 8)?, int(control, 12)?);
        let data = control.get(HEADER..length)?;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                return extended(data);
            }
            // Control messages begin at multiples of eight bytes.
            _ => control = control.get(length.next_multiple_of(8).max(HEADER)..)?,
        }
    }
}

/// `struct sock_extended_err` and the address behind it.
fn extended(data: &[u8]) -> Option<(Reason, Option<IpAddr>)> {
    let errno = int(data, 0)?;
    let [origin, kind, code] = *data.get(4..)?.first_chunk()?;
    let info = int(data, 8)?.cast_unsigned();
    let reason = match (origin, kind, code) {
        (libc::SO_EE_ORIGIN_LOCAL, _, _) if errno == libc::EMSGSIZE => Reason::TooBigHere(info),
        (libc::SO_EE_ORIGIN_ICMP, 3, 4) | (libc::SO_EE_ORIGIN_ICMP6, 2, _) => Reason::TooBig(info),
        (libc::SO_EE_ORIGIN_ICMP, 11, 0) | (libc::SO_EE_ORIGIN_ICMP6, 3, 0) => Reason::HopsUsedUp,
        (libc::SO_EE_ORIGIN_ICMP, 11, 1) | (libc::SO_EE_ORIGIN_ICMP6, 3, 1) => Reason::ReassemblyTimeout,
        (libc::SO_EE_ORIGIN_ICMP, 3, 3) | (libc::SO_EE_ORIGIN_ICMP6, 1, 4) => Reason::PortClosed,
        // RFC 1812 section 5.2.7.1; RFC 4443 section 3.1.
        (libc::SO_EE_ORIGIN_ICMP, 3, 9 | 10 | 13) | (libc::SO_EE_ORIGIN_ICMP6, 1, 1 | 5 | 6) => {
            Reason::Prohibited
        }
        (libc::SO_EE_ORIGIN_ICMP, 3, code) | (libc::SO_EE_ORIGIN_ICMP6, 1, code) => Reason::Unreachable(code),
        (_, kind, code) => Reason::Other(kind, code),
    };
    let from = data.get(EXTENDED..).filter(|_| origin != libc::SO_EE_ORIGIN_LOCAL).and_then(offender);
    Some((reason, from))
}

/// The address in a `struct sockaddr`.
fn offender(address: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(*address.get(4..)?.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

fn int(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    fn refused(any: &str) -> (Notice, Vec<u8>) {
        let far = UdpSocket::bind(any).unwrap();
        let closed = far.local_addr().unwrap();
        drop(far);
        let socket = UdpSocket::bind(any).unwrap();
        keep(&socket, closed.is_ipv6()).unwrap();
        socket.connect(closed).unwrap();
        let mut quote = [0; 64];
        assert_eq!(read(&socket, &mut quote).unwrap(), None);
        socket.send(b"is anybody there").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(notice) = read(&socket, &mut quote).unwrap() {
                return (notice, quote[..notice.quoted].to_vec());
            }
            assert!(Instant::now() < deadline, "no answer from a closed port");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_closed_port_is_told_with_what_was_sent() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(address) = any.parse::<std::net::SocketAddr>() else { unreachable!() };
            if UdpSocket::bind(any).is_err() {
                println!("SKIP: this host has no {any}");
                continue;
            }
            let (notice, quote) = refused(any);
            assert_eq!((notice.reason, notice.from), (Reason::PortClosed, Some(address.ip())));
            assert_eq!(quote, b"is anybody there");
        }
    }

    proptest::proptest! {
            #[test]
            fn no_control_data_is_too_strange(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
    proptest::prop_assert!(notice(&bytes).is_none() || bytes.len() >= HEADER + 12);
                // The fields of a message of the right kind.
                proptest::prop_assert_eq!(extended(&bytes).is_some(), bytes.len() >= 12);
            }
        }

    #[test]
    fn half_a_control_message_is_no_notice() {
        assert_eq!(notice(&[]), None);
        assert_eq!(notice(&[0; 16]), None);
        let mut endless = [0; 64];
        endless[..8].copy_from_slice(&16u64.to_ne_bytes());
        assert_eq!(notice(&endless), None);
        let mut cut = Vec::from(40u64.to_ne_bytes());
        cut.extend(libc::IPPROTO_IP.to_ne_bytes());
        cut.extend(libc::IP_RECVERR.to_ne_bytes());
        cut.extend([0; 20]);
        assert_eq!(notice(&cut), None);
    }
}
