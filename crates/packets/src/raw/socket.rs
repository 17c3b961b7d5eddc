//! Packet sockets: opening and options.
#![allow(unsafe_code, reason = "packet(7) options, which no safe crate offers")]

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use weir_sys::packet_socket::{self, SocketType};
use weir_sys::socket_option::{attach_filter, packet_drops};

use crate::Error;

/// Opens a packet socket that sees nothing yet.
///
/// # Errors
/// [`Error::Missing`] without CAP_NET_RAW, or on a kernel without packet sockets.
pub(super) fn open() -> Result<OwnedFd, Error> {
    packet_socket::open(SocketType::RAW).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Missing(format!(
            "packet sockets need CAP_NET_RAW ({error}): run as root, or `setcap cap_net_raw+ep` on the weir binary, or start its \
             container with `--cap-add NET_RAW`"
        )),
        Some(libc::EAFNOSUPPORT) => Error::Missing(format!(
            "this kernel has no packet sockets ({error}): `modprobe af_packet`, or a kernel with CONFIG_PACKET"
        )),
        _ => failed("open a packet socket", error),
    })
}

/// Binds a socket to an interface and an EtherType; 0 takes nothing in.
pub(super) fn bind(socket: &OwnedFd, interface: u32, ethertype: u16) -> Result<(), Error> {
    packet_socket::bind(socket, interface, ethertype).map_err(|e| failed("bind a packet socket", e))
}

/// Sets a packet(7) or socket(7) option. `T` is what the option takes: a C struct or an `int`.
pub(super) fn set<T>(
    socket: &OwnedFd,
    level: c_int,
    name: c_int,
    value: &T,
    what: &'static str,
) -> Result<(), Error> {
    // SAFETY: the kernel reads as many bytes as there are.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result, what).map(drop)
}

/// Takes in only frames for this host that carry UDP or TCP, of one IP version, and of each no more than `keep` bytes.
///
/// Frames of a VLAN that this interface is not part of are for another host too, as the kernel sees it: it takes
/// their tag out before it looks for whom they are (`__netif_receive_skb_core`), so that nothing else tells them apart.
pub(super) fn set_filter(socket: &OwnedFd, protocol_at: u32, keep: u32) -> Result<(), Error> {
    // Instructions of linux/filter.h: load a byte, compare and jump over so many, return how many bytes to keep.
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let leave = libc::BPF_RET | libc::BPF_K;
    let kind = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    let mut program = [
        op(load, 0, 0, kind),
        op(equals, 4, 0, u32::from(libc::PACKET_OTHERHOST)),
        op(load, 0, 0, protocol_at),
        op(equals, 1, 0, u32::from(weir_wire::protocol::UDP)),
        op(equals, 0, 1, u32::from(weir_wire::protocol::TCP)),
        op(leave, 0, 0, keep),
        op(leave, 0, 0, 0),
    ];
    attach_filter(socket, &mut program).map_err(|e| failed("filter what a packet socket takes in", e))
}

/// Frames that the socket had no room for since this was last asked.
pub(super) fn dropped(socket: &OwnedFd) -> Result<u64, Error> {
    packet_drops(socket).map_err(|e| failed("read a packet socket's drops", e))
}

/// The result of a system call, or its error with what was being done.
pub(super) fn check(result: c_int, what: &'static str) -> Result<c_int, Error> {
    if result >= 0 { Ok(result) } else { Err(failed(what, io::Error::last_os_error())) }
}

/// An error with what was being done.
pub(super) fn failed(what: &'static str, error: io::Error) -> Error {
    Error::Sys(weir_sys::Error::new(what, error))
}
