//! IP fragments as they come in, before the kernel puts them together (packet(7)).
#![allow(unsafe_code, reason = "packet sockets and their filter, which no safe crate offers")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::socket_option::set_int;

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
        // Protocol 0: nothing is taken in before there is a filter.
        // SAFETY: no memory is involved.
        let fd = unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, without another owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        filter(&socket)?;
        // Without the privilege for more it is what the system allows.
        if set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER).is_err() {
            set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER)?;
        }
        // On older kernels the filter leaves out what this host sends.
        let _ = set_int(&socket, libc::SOL_PACKET, IGNORE_OUTGOING, 1);
        bind(&socket)?;
        Ok(FragmentTap { socket })
    }

    /// The beginning of the next fragment, from its IP header on; `None` if there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            // SAFETY: pointer and length are those of a live slice that only we may write.
            let n = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(n) = usize::try_from(n) {
                return Ok(Some(n));
            }
            match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The interface went away; others are still there.
                e if e.raw_os_error() == Some(libc::ENETDOWN) => {}
                e => return Err(e),
            }
        }
    }

    /// Fragments that the full buffer had no room for since this was last asked.
    pub fn missed(&self) -> io::Result<u64> {
        // SAFETY: tpacket_stats is two numbers.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: a buffer of the length given.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut length,
            )
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(stats.tp_drops.into()) }
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
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is live, and reads no more than its length.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// From every interface.
fn bind(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain numbers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: an address of the length given.
    let status = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
