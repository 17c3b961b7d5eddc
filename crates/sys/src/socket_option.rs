//! getsockopt(2) and setsockopt(2) for options of Linux that no safe crate covers.
#![allow(unsafe_code, reason = "the two calls themselves")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Reads an option into a buffer; how many bytes of it the kernel filled.
pub(crate) fn get(socket: impl AsFd, level: i32, name: i32, into: &mut [u8]) -> io::Result<usize> {
    let mut length = into.len() as libc::socklen_t;
    // SAFETY: pointer and length are those of a live slice that only we may write.
    let status = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut length)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok((length as usize).min(into.len())) }
}

/// Reads an option that is an integer.
pub(crate) fn get_int(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; size_of::<i32>()];
    get(socket, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// Sets an option that is an integer.
pub(crate) fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads one integer from a live one.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
