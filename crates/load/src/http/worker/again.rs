//! One socket for one connection after another.
//!
//! A good part of a new connection's cost is the socket and not the connection: file, inode and socket are allocated, registered
//! with epoll, and freed again. A socket whose connection has ended in order can be made to forget it (connect(2) with AF_UNSPEC;
//! net/ipv4/tcp.c, `tcp_disconnect`). It keeps its registration and begins the next connection as a new socket does: from a newly
//! drawn port, with the same options in the SYN. The packets on the wire are the same ones in the same order, except for one
//! number: the first sequence number is not drawn anew, but follows those that the socket used before. A peer may still remember
//! the same port from an earlier connection. It tells the two connections apart by timestamps if they have them (RFC 7323, RFC
//! 6191), and by sequence numbers otherwise (RFC 9293 section 3.6.1). So without timestamps every connection has a socket of its
//! own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, connect_unspec, shutdown, sockopt};

use super::Worker;
use super::connection::State;
use crate::connector::Close;
use crate::latency::dial::tcp_socket;
use crate::socket::{abort_on_close, get_int, set_int, tcp_info, unacknowledged};

/// Requests larger than this may not leave in one segment, and Nagle's algorithm would hold back the rest (RFC 9293
/// section 3.7.1: the least MSS of IPv4).
const ONE_SEGMENT: usize = 536;

/// Bytes of a body up to which a socket is used again. More may have made the kernel give it a larger receive buffer
/// (net/ipv4/tcp_input.c, `tcp_rcv_space_adjust`: above ten segments), which the next connection would begin with.
const SMALL_BODY: u64 = 4096;

/// TCPI_OPT_TIMESTAMPS of include/uapi/linux/tcp.h.
const TIMESTAMPS: u8 = 1;

/// SO_BUF_LOCK of include/uapi/asm-generic/socket.h: which buffers the user has set, so that they are not tuned any more.
const SO_BUF_LOCK: i32 = 72;

/// How many attempts in a row must have failed before a worker gives up for a while, and how many connections that while is.
const FAILURES: u32 = 16;
const WHILE: u32 = 4096;

/// Whether it is worthwhile to try.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// Attempts in a row that failed: no timestamps, or the far end's last acknowledgement was not there yet.
    failed: u32,
    /// Connections that are still to be closed before the next attempt.
    skip: u32,
}

impl Again {
    /// Try with this connection?
    fn tries(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        true
    }

    fn learn(&mut self, success: bool) {
        self.failed = if success { 0 } else { self.failed + 1 };
        if self.failed == FAILURES {
            (self.failed, self.skip) = (0, WHILE);
        }
    }
}

impl Worker<'_> {
    /// The server has closed a connection that is done with. Ours is closed too, and its socket kept where it may carry
    /// another one.
    pub(super) fn retire(&mut self, index: usize) {
        if self.may_be_used_again(index) && self.again.tries() {
            let Some(fd) = self.connections[index].fd.as_ref() else { return };
            // Asked once for each socket: the servers behind one address are of one kind.
            let fit =
                self.connections[index].used || has_timestamps(fd) && offer_as_at_first(fd.as_fd()).is_ok();
            // Sends the FIN. Within one machine its acknowledgement has arrived when the call returns, and the kernel is done
            // with the connection. The socket must not forget the connection earlier, because the kernel would then answer with a
            // RST.
            let in_time = fit
                && shutdown(fd, Shutdown::Write).is_ok()
                && unacknowledged(fd).is_ok_and(|bytes| bytes == 0);
            self.again.learn(in_time);
            if in_time {
                let connection = &mut self.connections[index];
                connection.state = State::Free;
                connection.used = true;
                return;
            }
        }
        self.drop_connection(index);
    }

    fn may_be_used_again(&self, index: usize) -> bool {
        let connection = &self.connections[index];
        connection.watched
            && connection.tls.is_none()
            && self.job.close == Close::Fin
            && connection.reader.body_bytes() <= SMALL_BODY
    }

    /// A socket that has had no connection yet.
    pub(super) fn new_socket(&self) -> Result<OwnedFd, Errno> {
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let fd = tcp_socket(self.job.target).map_err(errno)?;
        if self.job.close == Close::Reset {
            abort_on_close(&fd).map_err(errno)?;
        }
        if !self.job.quick_ack {
            // Before the handshake: a socket in this mode leaves out the bare ACK of it (net/ipv4/tcp_input.c,
            // tcp_rcv_synsent_state_process).
            sockopt::set_tcp_quickack(&fd, false)?;
        }
        if self.job.request.len() > ONE_SEGMENT || self.job.tls.is_some() {
            sockopt::set_tcp_nodelay(&fd, true)?;
        }
        Ok(fd)
    }

    /// The socket of the connection before, ready for the next. None if there is none.
    pub(super) fn used_socket(&mut self, index: usize) -> Option<OwnedFd> {
        let fd = self.connections[index].fd.take()?;
        let quick = self.job.quick_ack;
        // This mode is the connection's, and not the socket's.
        let ready = connect_unspec(&fd).is_ok() && (quick || sockopt::set_tcp_quickack(&fd, false).is_ok());
        if !ready {
            self.drop_connection(index);
        }
        ready.then_some(fd)
    }
}

fn has_timestamps(fd: &OwnedFd) -> bool {
    tcp_info(fd).is_ok_and(|info| info.options & TIMESTAMPS != 0)
}

/// Have the next SYN offer the window that the first one did.
///
/// It is the receive buffer's size times what of it is expected to be payload. A new socket expects half (include/net/tcp.h,
/// TCP_DEFAULT_SCALING_RATIO); one that has received knows better (net/ipv4/tcp_input.c, `tcp_measure_rcv_mss`), and would
/// offer 65,535 bytes for 64,240, say. With that goes when a response is acknowledged: as it arrives, or only as it is read.
/// So the buffer is made larger or smaller by as much, and its size left to the kernel as before.
fn offer_as_at_first(fd: BorrowedFd<'_>) -> io::Result<()> {
    let buffer = i64::from(get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?);
    let window = i64::from(get_int(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)?);
    if window == buffer / 2 {
        return Ok(());
    }
    // A route or a user may limit the window too, which is none of this.
    if !(buffer / 8..=buffer).contains(&window) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let wanted = buffer * (buffer / 2) / window;
    // The kernel doubles the value that it gets.
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, i32::try_from(wanted / 2).unwrap_or(i32::MAX))?;
    set_int(fd, libc::SOL_SOCKET, SO_BUF_LOCK, 0)?;
    // No larger than net.core.rmem_max allows.
    match i64::from(get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?) {
        size if size == wanted / 2 * 2 => Ok(()),
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_server_is_not_asked_every_time() {
        let mut again = Again::default();
        let tried = (0..100_000).filter(|_| {
            let tries = again.tries();
            if tries {
                again.learn(false);
            }
            tries
        });
        // 16 in every 4,112.
        assert_eq!(tried.count() as u32, 100_000 / (FAILURES + WHILE) * FAILURES + FAILURES);
    }

    #[test]
    fn one_success_in_sixteen_is_enough() {
        let mut again = Again::default();
        for n in 0..10_000u32 {
            assert!(again.tries(), "{n}");
            again.learn(n % FAILURES == 0);
        }
    }
}
