//! What the kernel knows about a socket and rustix has no call for.
#![allow(unsafe_code, reason = "getsockopt(2) with structures that rustix does not cover")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Index of the drop counter in what SO_MEMINFO returns (include/uapi/linux/sock_diag.h, SK_MEMINFO_DROPS), and the
/// number of values (SK_MEMINFO_VARS).
const MEMINFO_DROPS: usize = 8;
const MEMINFO_VARS: usize = 9;

/// Datagrams that arrived at the socket and were dropped there: buffer full, or a wrong checksum.
pub(crate) fn socket_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut meminfo = [0u32; MEMINFO_VARS];
    let len = get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut meminfo)?;
    if len < size_of::<[u32; MEMINFO_VARS]>() {
        return Err(io::Error::other("the kernel does not count a socket's drops (SO_MEMINFO)"));
    }
    Ok(u64::from(meminfo[MEMINFO_DROPS]))
}

/// Bytes of the option that the kernel wrote.
fn get_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut T) -> io::Result<usize> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `len` bytes, and the kernel writes no more than that; T is made of integers
    // in the caller above, so whatever it writes is a value of it.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut *value).cast(), &raw mut len) };
    if rc == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn counts_the_drops_of_a_full_socket() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4096).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..200 {
            sender.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
        }
        receiver.set_nonblocking(true).unwrap();
        let mut arrived = 0;
        while receiver.recv(&mut [0; 1000]).is_ok() {
            arrived += 1;
        }
        // On loopback a datagram is either in the buffer or dropped by the time send returns.
        assert_eq!(socket_drops(receiver.as_fd()).unwrap() + arrived, 200);
        assert!(arrived < 200);
    }
}
