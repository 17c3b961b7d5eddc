//! Opening connections so that a raised stop ends the wait.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use weir_sys::clock::now_ns;

use super::{STOP_LOOK_NS, nanos};
use crate::{Error, Stop};

/// A time limit and a stop for everything that happens before the traffic.
#[derive(Debug)]
pub(crate) struct Dialer<'a> {
    deadline_ns: u64,
    stop: &'a Stop,
}

impl<'a> Dialer<'a> {
    pub(crate) fn new(limit: Duration, stop: &'a Stop) -> Self {
        Dialer { deadline_ns: now_ns().saturating_add(nanos(limit)), stop }
    }

    /// A connected, non-blocking TCP socket with Nagle's algorithm off.
    pub(crate) fn tcp(&self, target: SocketAddr) -> io::Result<OwnedFd> {
        let fd = tcp_socket(target)?;
        match connect(&fd, &target) {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => {
                self.wait(fd.as_fd(), PollFlags::OUT)?;
                sockopt::socket_error(&fd)??;
            }
            Err(e) => return Err(e.into()),
        }
        sockopt::set_tcp_nodelay(&fd, true)?;
        Ok(fd)
    }

    /// Until there is something to read, the limit is over, or the stop is raised; the latter two are errors.
    pub(crate) fn wait_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.wait(fd, PollFlags::IN)
    }

    fn wait(&self, fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
        loop {
            let now = now_ns();
            if self.stop.raised() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
            }
            if now >= self.deadline_ns {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if wait_for(fd, what, STOP_LOOK_NS.min(self.deadline_ns - now))? {
                return Ok(());
            }
        }
    }
}

/// A non-blocking TCP socket for that kind of address.
pub(crate) fn tcp_socket(target: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family(target), SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// The family of an address.
pub(crate) fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Wait with the precision of ppoll(2). True if the descriptor is ready, false if the time is over or a signal came.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, what: PollFlags, limit_ns: u64) -> io::Result<bool> {
    // Below 1e9 and below 2^34: both fit.
    let limit =
        Timespec { tv_sec: (limit_ns / 1_000_000_000) as i64, tv_nsec: (limit_ns % 1_000_000_000) as i64 };
    match poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&limit)) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Waits for ready descriptors within that time, and returns when they were ready. One reading of the clock serves for all of
/// them; otherwise the later ones would be charged with the work on the earlier.
pub(crate) fn wait_ready(epoll: &OwnedFd, events: &mut Vec<Event>, limit: &Timespec) -> Result<u64, Error> {
    events.clear();
    match epoll::wait(epoll, spare_capacity(events), Some(limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(now_ns()),
        Err(e) => Err(Error::io("epoll_wait")(e.into())),
    }
}
