//! Datagrams that a UDP socket accepts, decided before any thread wakes: the kernel drops all others in the softirq that brought
//! them.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType, socket};

use crate::socket_option::{attach_filter, set_int};

/// Bytes of the UDP header (RFC 768), from which a socket's filter counts (net/ipv4/udp.c, `udp_queue_rcv_one_skb`).
const HEADER: u32 = 8;

/// First bytes of a start: what tells protocols apart is shorter, and a filter's jumps reach no further than 255 instructions.
const MOST: usize = 64;

/// A datagram as it has to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its first bytes, 64 at most.
    pub bytes: Vec<u8>,
    /// How many bytes it has in all, the first ones included.
    pub length: u16,
    /// False if it may have more than these.
    pub exact: bool,
}

/// Let only datagrams in that begin like one of these, from now on: of none, nothing. A port of TCP that listens is silent then,
/// since its segments are dropped before they open or reset anything (net/ipv4/tcp_ipv4.c, `tcp_filter`). Datagrams that wait in the
/// socket's queue stay there. UDP needs no privilege (socket(7), SO_ATTACH_FILTER); TCP does on some kernels ([`may_silence_tcp`]).
///
/// # Errors
/// `InvalidInput` for first bytes that are more than 64 or than the datagram, and for more instructions than the kernel takes (4096),
/// and those of setsockopt(2): the memory for a filter is bounded by net.core.optmem_max. The filter that the socket had before stays
/// then.
pub fn admit_only(socket: impl AsFd, starts: &[Start]) -> io::Result<()> {
    if starts.iter().any(|s| s.bytes.len() > MOST.min(s.length.into())) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    attach_filter(socket, &mut program(starts))
}

/// Asks the kernel whether this process may silence ports of TCP, at a socket of its own that it closes again.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN, where the kernel asks for it at sockets of TCP (seen on Linux 6.18); those of socket(2).
pub fn may_silence_tcp() -> io::Result<()> {
    admit_only(socket(AddressFamily::INET, SocketType::STREAM, None)?, &[])
}

/// Let everything in again. A socket without a filter stays so.
///
/// # Errors
/// Those of setsockopt(2).
pub fn admit_all(socket: impl AsFd) -> io::Result<()> {
    match set_int(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Instructions of linux/filter.h: one start after the other; a datagram that matches none is dropped.
fn program(starts: &[Start]) -> Vec<libc::sock_filter> {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let leave = |bytes: u32| op(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    let jump = |how: u32| libc::BPF_JMP | how | libc::BPF_K;
    let mut all = Vec::new();
    for start in starts {
        let words = words_of(&start.bytes);
        // How many instructions are left of this start, its verdict included, after the first two.
        let mut left = 2 * words.len() as u8 + 1;
        let length = HEADER + u32::from(start.length);
        // Nothing is loaded from beyond the datagram: that would end the whole filter.
        all.push(op(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0));
        all.push(op(jump(if start.exact { libc::BPF_JEQ } else { libc::BPF_JGE }), 0, left, length));
        for (size, at, value) in words {
            left -= 2;
            all.push(op(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, HEADER + at));
            all.push(op(jump(libc::BPF_JEQ), 0, left, value));
        }
        all.push(leave(u32::MAX));
    }
    all.push(leave(0));
    all
}

/// Bytes as the numbers that a filter can compare: size of the load, offset, and value.
fn words_of(bytes: &[u8]) -> Vec<(u32, u32, u32)> {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut all: Vec<_> =
        (0..).zip(words).map(|(n, word)| (libc::BPF_W, 4 * n, u32::from_be_bytes(*word))).collect();
    let from = 4 * words.len() as u32;
    all.extend((from..).zip(rest).map(|(at, byte)| (libc::BPF_B, at, u32::from(*byte))));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn start(bytes: &[u8], length: u16, exact: bool) -> Start {
        Start { bytes: bytes.to_vec(), length, exact }
    }

    /// Those of them that arrive, in order: over loopback each is in the queue, or dropped, when its sending returns.
    fn arrive(to: &UdpSocket, sent: &[&[u8]]) -> Vec<Vec<u8>> {
        let from = UdpSocket::bind((to.local_addr().unwrap().ip(), 0)).unwrap();
        for datagram in sent {
            from.send_to(datagram, to.local_addr().unwrap()).unwrap();
        }
        to.set_nonblocking(true).unwrap();
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| to.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec())).collect()
    }

    #[test]
    fn only_what_begins_like_one_of_them_arrives_whole() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(address).unwrap();
            admit_only(
                &socket,
                &[
                    start(b"knock#1", 9, true),
                    start(b"knock", 12, true),
                    start(b"probe-42", 8, false),
                    start(b"hi", 2, true),
                ],
            )
            .unwrap();
            let long = [&b"probe-42"[..], &[7; 1400]].concat();
            let good: [&[u8]; 5] = [b"knock#1ab", b"knock-123456", b"probe-42", &long, b"hi"];
            let bad: [&[u8]; 11] = [
                b"",
                b"h",
                b"hi!",
                b"hx",
                b"knock#1",
                b"knock#1a",
                b"knock#1abc",
                b"knock#2ab",
                b"probe-4",
                b"probe-43 and more",
                &[0xaa; 1400],
            ];
            let mixed: Vec<&[u8]> = bad.iter().chain(&good).chain(&bad).copied().collect();
            assert_eq!(arrive(&socket, &mixed), good, "{address}");
            // Another set in its place, and none at all.
            admit_only(&socket, &[start(b"h", 1, true)]).unwrap();
            assert_eq!(arrive(&socket, &mixed), [b"h", b"h"], "{address}");
            admit_only(&socket, &[]).unwrap();
            assert!(arrive(&socket, &mixed).is_empty(), "{address}");
            admit_all(&socket).unwrap();
            admit_all(&socket).unwrap();
            assert_eq!(arrive(&socket, &mixed), mixed, "{address}");
        }
    }

    #[test]
    fn too_many_are_an_error_and_what_was_before_stays() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        admit_only(&socket, &[start(b"h", 1, true)]).unwrap();
        let long = |n: u16| start(&vec![b'k'; n.into()], n, true);
        for starts in [
            vec![start(b"knock", 5, true); 1000],
            vec![start(b"knock", 5, true); 20_000],
            vec![long(65)],
            vec![start(b"knock", 4, true)],
        ] {
            let many = starts.len();
            assert_eq!(
                admit_only(&socket, &starts).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{many}"
            );
            assert_eq!(arrive(&socket, &[b"x", b"knock", b"h"]), [b"h"]);
        }
        admit_only(&socket, &[long(64)]).unwrap();
        assert_eq!(arrive(&socket, &[&[b'k'; 63], &[b'k'; 64], &[b'k'; 65]]), [[b'k'; 64]]);
    }
}
