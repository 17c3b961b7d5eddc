//! IP fragments as they come in, before the kernel puts them together (packet(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType, recv};

use crate::packet_socket;
use crate::socket_option::{attach_filter, packet_drops, set_int};

/// Bytes kept of each fragment: IPv6, fragment header, UDP, and the beginning of the payload.
const KEPT: u32 = 128;
/// Receive buffer, bytes; the kernel counts some 800 for each fragment.
const BUFFER: i32 = 4 << 20;
/// PACKET_IGNORE_OUTGOING (include/uapi/linux/if_packet.h), Linux 4.20.
const IGNORE_OUTGOING: i32 = 23;

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
        let socket = packet_socket::open(SocketType::DGRAM)?;
        // Nothing is taken in before there is a filter.
        filter(&socket)?;
        // Without the privilege for more it is what the system allows.
        if set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER).is_err() {
            set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER)?;
        }
        // On older kernels the filter leaves out what this host sends.
        let _ = set_int(&socket, libc::SOL_PACKET, IGNORE_OUTGOING, 1);
        packet_socket::bind(&socket, 0, libc::ETH_P_ALL as u16)?;
        Ok(FragmentTap { socket })
    }

    /// The beginning of the next fragment, from its IP header on; `None` if there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((n, _)) => return Ok(Some(n)),
                // The interface went away; others are still there.
                Err(Errno::INTR | Errno::NETDOWN) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Fragments that the full buffer had no room for since this was last asked.
    pub fn missed(&self) -> io::Result<u64> {
        packet_drops(&self.socket)
    }
}

/// Takes in only fragments for this host. Offsets count from the IP header.
fn filter(socket: &OwnedFd) -> io::Result<()> {
    // Instructions of linux/filter.h: load, compare and jump over so many, return how many bytes to keep.
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |size: u32| libc::BPF_LD | size | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let any_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let leave = libc::BPF_RET | libc::BPF_K;
    let ancillary = |which: i32| (libc::SKF_AD_OFF + which).cast_unsigned();
    let mut program = [
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
    ];
    attach_filter(socket, &mut program)
}
