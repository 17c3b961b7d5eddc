//! Packet sockets (packet(7)): opening, and binding to an interface.
#![allow(unsafe_code, reason = "addresses of packet(7), which no safe crate offers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

pub use rustix::net::SocketType;
use rustix::net::{AddressFamily, SocketFlags, socket_with};

/// Opens one. Its protocol is 0: it takes nothing in before it is bound to another one.
///
/// # Errors
/// EPERM without CAP_NET_RAW over the namespace, EAFNOSUPPORT on a kernel without packet sockets.
pub fn open(kind: SocketType) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::PACKET, kind, SocketFlags::CLOEXEC, None)?)
}

/// Binds it to an interface (0: to every one) and an EtherType (0 takes nothing in).
///
/// # Errors
/// Those of bind(2).
pub fn bind(socket: impl AsFd, interface: u32, ethertype: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain numbers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = interface.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an address of the length given.
    let bound = unsafe { libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), length) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
