//! Packet sockets (packet(7)): opening, and binding to an interface.
#![allow(unsafe_code, reason = "addresses of packet(7), which no safe crate offers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
pub use rustix::net::SocketType;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, recv, socket_with};

use crate::socket_option::{attach_filter, set_int};

/// PACKET_IGNORE_OUTGOING (include/uapi/linux/if_packet.h), Linux 4.20.
pub(crate) const IGNORE_OUTGOING: i32 = 23;

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

/// Opens one that takes in the packets of all interfaces, from their IP header on, which this filter (linux/filter.h) admits. `buffer`
/// is the size of its receive buffer, bytes: the kernel counts some 800 for each short packet.
///
/// # Errors
/// As [`open`], and those of setsockopt(2).
pub(crate) fn open_tap(filter: &mut [libc::sock_filter], buffer: i32) -> io::Result<OwnedFd> {
    let socket = open(SocketType::DGRAM)?;
    // Nothing is taken in before there is a filter.
    attach_filter(&socket, filter)?;
    set_receive_buffer(&socket, buffer)?;
    // On older kernels the filter leaves out what this host sends.
    let _ = set_int(&socket, libc::SOL_PACKET, IGNORE_OUTGOING, 1);
    bind(&socket, 0, libc::ETH_P_ALL as u16)?;
    Ok(socket)
}

/// Makes room for that many bytes; without the privilege for more it is what the system allows.
pub(crate) fn set_receive_buffer(socket: &OwnedFd, bytes: i32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// The next packet of a tap; `None` if there is none. The end of one that does not fit the buffer is cut off.
///
/// # Errors
/// Those of recv(2).
pub(crate) fn read_tap(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((n, _)) => return Ok(Some(n)),
            // The interface went away; others are still there.
            Err(Errno::INTR | Errno::NETDOWN) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}
