//! IP fragments as they come in, before the kernel puts them together (packet(7)).

use std::io;
use std::os::fd::OwnedFd;

use crate::packet_socket;
use crate::socket_option::packet_drops;

/// Bytes kept of each fragment: IPv6, fragment header, UDP, and the beginning of the payload.
const KEPT: u32 = 128;
/// Receive buffer, bytes; the kernel counts some 800 for each fragment.
const BUFFER: i32 = 4 << 20;

/// Sees the fragments that reach the network namespace of the thread that opened it, of every sender.
#[derive(Debug)]
pub struct FragmentTap {
    socket: OwnedFd,
}

impl FragmentTap {
    /// Opens it. It does not see earlier fragments.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW over the namespace.
    pub fn open() -> io::Result<Self> {
        let socket = packet_socket::open_tap(&mut filter(), BUFFER)?;
        Ok(FragmentTap { socket })
    }

    /// The beginning of the next fragment, from its IP header on; `None` if there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        packet_socket::read_tap(&self.socket, buffer)
    }

    /// Fragments that the full buffer had no room for since this was last asked.
    pub fn missed(&self) -> io::Result<u64> {
        packet_drops(&self.socket)
    }
}

/// Takes in only fragments for this host. Offsets count from the IP header.
fn filter() -> [libc::sock_filter; 11] {
    // Instructions of linux/filter.h: load, compare and jump over so many, return how many bytes to keep.
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |size: u32| libc::BPF_LD | size | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let any_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let leave = libc::BPF_RET | libc::BPF_K;
    let ancillary = |which: i32| (libc::SKF_AD_OFF + which).cast_unsigned();
    [
        op(load(libc::BPF_B), 0, 0, ancillary(libc::SKF_AD_PKTTYPE)),
        op(equals, 0, 8, u32::from(libc::PACKET_HOST)),
        op(load(libc::BPF_H), 0, 0, ancillary(libc::SKF_AD_PROTOCOL)),
        op(equals, 0, 2, libc::ETH_P_IP as u32),
        // More fragments follow, or it is not the first.
        op(load(libc::BPF_H), 0, 0, 6),
        op(any_bit, 3, 4, 0x3fff),
        op(equals, 0, 3, libc::ETH_P_IPV6 as u32),
        // The next header is that of fragments. Other extension headers before it are rare, and then it goes unseen.
        op(load(libc::BPF_B), 0, 0, 6),
        op(equals, 0, 1, 44),
        op(leave, 0, 0, KEPT),
        op(leave, 0, 0, 0),
    ]
}
