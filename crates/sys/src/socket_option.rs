//! getsockopt(2) and setsockopt(2) for options of Linux that no safe crate covers.
#![allow(unsafe_code, reason = "the two calls themselves")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Reads an option into a buffer; how many bytes of it the kernel filled.
///
/// # Errors
/// Those of getsockopt(2).
pub fn get(socket: impl AsFd, level: i32, name: i32, into: &mut [u8]) -> io::Result<usize> {
    let mut length = into.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of a live slice that only we may write.
    let status = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut length)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok((length as usize).min(into.len())) }
}

/// Reads an option that is an integer.
///
/// # Errors
/// Those of getsockopt(2).
pub fn get_int(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; size_of::<i32>()];
    get(socket, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// Sets an option to these bytes, in which there is no pointer.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length are those of a live slice, which the kernel only reads.
    unsafe { set_raw(socket, level, name, value.as_ptr().cast(), value.len()) }
}

/// Sets an option that is an integer.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set(socket, level, name, &value.to_ne_bytes())
}

/// Lets a listener of TCP answer a SYN twice at most, not six times as Linux does by default: the SYN may come in another host's name
/// (TCP_SYNCNT; net/ipv4/inet_connection_sock.c, `reqsk_timer_handler`). A client that hears neither answer sends another SYN.
///
/// # Errors
/// Those of setsockopt(2).
pub fn answer_syns_twice(listener: impl AsFd) -> io::Result<()> {
    set_int(listener, libc::IPPROTO_TCP, libc::TCP_SYNCNT, 1)
}

/// Lets only packets in that this program of linux/filter.h takes (socket(7), SO_ATTACH_FILTER).
///
/// # Errors
/// `InvalidInput` for more instructions than the kernel takes (4096), and those of setsockopt(2).
pub fn attach_filter(socket: impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>();
    // SAFETY: the kernel copies the program, which is live, and reads no more than its length.
    unsafe { set_raw(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), size) }
}

/// Packets that a packet socket had no room for since this was last asked (packet(7), PACKET_STATISTICS).
///
/// # Errors
/// Those of getsockopt(2).
pub fn packet_drops(socket: impl AsFd) -> io::Result<u64> {
    // struct tpacket_stats: packets in all, and drops.
    let mut stats = [0; size_of::<libc::tpacket_stats>()];
    get(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats)?;
    let [.., a, b, c, d] = stats;
    Ok(u32::from_ne_bytes([a, b, c, d]).into())
}

/// # Safety
/// The kernel reads what the option's value is made of: `value` is valid for `size` bytes, and so is all that it points to.
unsafe fn set_raw(
    socket: impl AsFd,
    level: i32,
    name: i32,
    value: *const libc::c_void,
    size: usize,
) -> io::Result<()> {
    // SAFETY: as the caller promises.
    let status =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value, size as libc::socklen_t) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
