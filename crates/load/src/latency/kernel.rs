//! Information that the kernel has about a socket and for which rustix has no call.
#![allow(unsafe_code, reason = "getsockopt(2) and close_range(2) in ways that rustix does not cover")]

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

/// Give the calling thread a descriptor table of its own, with nothing in it but the standard streams and `keep`.
///
/// In a table that several threads share, every system call on a descriptor takes and drops a reference to the file (fs/file.c,
/// `__fget_light`), which a single-threaded program is spared. Whether that shows in an RTT was within noise where it was
/// measured.
/// An older kernel than 5.9 does not have the call, and the thread then goes on with the shared table.
///
/// The thread must not be the last owner of a descriptor from before: it would close the number in its own table only.
pub(crate) fn own_descriptors(keep: Option<BorrowedFd<'_>>) {
    const FIRST: libc::c_uint = 3;
    let keep = keep.map_or(FIRST - 1, |fd| fd.as_raw_fd().unsigned_abs().max(FIRST - 1));
    let close = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: takes three numbers. With CLOSE_RANGE_UNSHARE the kernel first copies the table and then closes in the copy,
        // which no other thread sees; the second call is made only after that succeeded. The closed descriptors belong to other
        // threads, whose own table is unchanged.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
    };
    if close(keep + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) && keep > FIRST {
        close(FIRST, keep - 1, 0);
    }
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
    use std::io::Write;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

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

    #[test]
    fn a_table_of_its_own_leaves_the_others_theirs() {
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let open = || std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
        let left = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                own_descriptors(Some(near.as_fd()));
                (&near).write_all(b"x").unwrap();
                open()
            });
            thread.join().unwrap()
        });
        // Three standard streams at most, the one kept, and the directory that is read.
        assert!(left <= 5, "{left}");
        assert!(other.local_addr().is_ok());
        drop(far);
        // Closed for good, since the thread kept no copy; a child that another test forks has one until it executes.
        near.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !near.write_all(b"x").is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}
