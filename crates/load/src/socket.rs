//! Socket calls that the standard library and rustix do not have, behind safe functions.
#![allow(unsafe_code, reason = "raw socket options and flags of Linux that no safe crate covers")]

use std::io;
use std::mem::size_of;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::time::Timespec;
use weir_sys::socket_option;
pub use weir_sys::socket_option::{get_int, set_int};

use crate::Stop;

/// `struct tcp_info` of include/uapi/linux/tcp.h up to Linux 5.4; the kernel fills as much as it knows and says how much.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(
    missing_docs,
    reason = "the names without a comment are those of the kernel's header, without `tcpi_`"
)]
pub struct TcpInfo {
    /// Connection state; 1 is ESTABLISHED.
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    /// Window scales, four bits each.
    pub wscale: u8,
    pub flags: u8,
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub fackets: u32,
    pub last_data_sent_ms: u32,
    pub last_ack_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    /// Smoothed round-trip time, us (RFC 6298).
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub snd_ssthresh: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    /// The receiver's estimate of the round-trip time, us; 0 before the first one.
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    /// Segments retransmitted since the connection began.
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    /// Least round-trip time in the kernel's window of it, us; u32::MAX before the first one.
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_time_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    /// Segments that arrived out of order.
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
}

// The offsets of two fields as in the kernel's header: a wrong field order would give plausible nonsense.
const _: () = assert!(std::mem::offset_of!(TcpInfo, total_retrans) == 100);
const _: () = assert!(std::mem::offset_of!(TcpInfo, min_rtt_us) == 148);
const _: () = assert!(size_of::<TcpInfo>() == 232);

/// TCP_INFO of a connection (tcp(7)).
///
/// # Errors
/// Those of getsockopt(2): the socket is not TCP's.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: the pointer is to a live struct of plain integers, and `length` is its size: the kernel writes no more.
    let r = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut length,
        )
    };
    check(r)?;
    Ok(info)
}

/// Bytes of a TCP stream that were written and not acknowledged yet, a FIN counted as one (tcp(7) SIOCOUTQ).
///
/// # Errors
/// Those of ioctl(2).
pub(crate) fn unacknowledged(socket: impl AsFd) -> io::Result<i32> {
    let mut bytes = 0i32;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ on a socket, writes one int, and the pointer is to a live one.
    let r = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(r)?;
    Ok(bytes)
}

/// Give the receive buffer this size in bytes (as given by the user; the kernel doubles it for its own bookkeeping),
/// beyond `net.core.rmem_max` where the privilege for that is there. Returns the size that came of it, in the same
/// terms: without CAP_NET_ADMIN it may be less than wanted.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_receive_buffer(socket: impl AsFd, bytes: u32) -> io::Result<u32> {
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    let fd = socket.as_fd();
    if set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted).is_err() {
        set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, wanted)?;
    }
    Ok(get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?.unsigned_abs() / 2)
}

/// Name of the congestion control, e.g. `cubic`. Empty leaves the system's default.
///
/// # Errors
/// ENOENT if this kernel does not have it, EPERM if it is not in `net.ipv4.tcp_allowed_congestion_control`.
pub(crate) fn set_congestion(socket: impl AsFd, name: &str) -> io::Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    socket_option::set(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes()).map_err(|e| {
        let list = if e.kind() == io::ErrorKind::PermissionDenied { "allowed" } else { "available" };
        let names = listed_congestion(list);
        io::Error::new(e.kind(), format!("congestion control `{name}`: {e} ({list}: {names})"))
    })
}

/// The names of a list of the kernel: `available`, or `allowed` without CAP_NET_ADMIN.
fn listed_congestion(list: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control");
    std::fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// Make close(2) drop what is still unsent and reset the connection, so that nothing of this trial is left in the next.
pub(crate) fn abort_on_close(socket: impl AsFd) -> io::Result<()> {
    let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Options of a TCP socket, set before it connects or listens.
#[derive(Debug, Clone, Default)]
pub struct TcpOptions {
    /// Congestion control; empty: the system's.
    pub congestion: String,
    /// Largest segment to send and to announce, bytes.
    pub mss: Option<u16>,
    /// SO_SNDBUF and SO_RCVBUF, bytes; it also switches the kernel's auto-tuning off.
    pub window_bytes: Option<u32>,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// Most bits per second that it sends (SO_MAX_PACING_RATE); TCP keeps to it without a queueing discipline's help.
    pub pacing_bps: Option<f64>,
}

impl TcpOptions {
    /// Apply them; accepted sockets inherit them from a listening one.
    ///
    /// # Errors
    /// Those of setsockopt(2); a congestion control that this kernel does not have is named, with those it has.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        let fd = socket.as_fd();
        set_congestion(fd, &self.congestion)?;
        if let Some(mss) = self.mss {
            set_int(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, i32::from(mss))?;
        }
        if let Some(bytes) = self.window_bytes {
            let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
            set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
            set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
        }
        if self.nodelay {
            set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        }
        if let Some(bps) = self.pacing_bps {
            // Bytes per second, as a number without a sign (net/core/sock.c, sk_setsockopt): what does not fit is no limit.
            let rate = u32::try_from((bps / 8.0).ceil() as u64).unwrap_or(u32::MAX).max(1);
            set_int(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate.cast_signed())?;
        }
        Ok(())
    }
}

/// Longest wait between two looks at a stop flag.
const LOOK: Duration = Duration::from_millis(40);

/// Connect with options that must be there before the handshake (std cannot set them). The result is blocking.
///
/// # Errors
/// Also `TimedOut`, and `Interrupted` once `stop` is raised.
pub fn connect_tcp(
    target: SocketAddr,
    options: &TcpOptions,
    timeout: Duration,
    stop: &Stop,
) -> io::Result<TcpStream> {
    connect_tcp_until(target, options, timeout, &|| stop.raised())
}

/// As [`connect_tcp`], ended with `Interrupted` as soon as `over` says so.
pub(crate) fn connect_tcp_until(
    target: SocketAddr,
    options: &TcpOptions,
    timeout: Duration,
    over: &dyn Fn() -> bool,
) -> io::Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None)?;
    options.apply(&socket)?;
    match rustix::net::connect(&socket, &target) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            wait_unless(socket.as_fd(), PollFlags::OUT, timeout, over)?;
            rustix::net::sockopt::socket_error(&socket)??;
        }
        Err(e) => return Err(e.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Wait until a descriptor can be read.
///
/// # Errors
/// `TimedOut`, and `Interrupted` once `stop` is raised.
pub(crate) fn await_readable(socket: impl AsFd, timeout: Duration, stop: &Stop) -> io::Result<()> {
    await_readable_until(socket, timeout, &|| stop.raised())
}

/// As [`await_readable`], ended with `Interrupted` as soon as `over` says so.
pub(crate) fn await_readable_until(
    socket: impl AsFd,
    timeout: Duration,
    over: &dyn Fn() -> bool,
) -> io::Result<()> {
    wait_unless(socket.as_fd(), PollFlags::IN, timeout, over)
}

fn wait_unless(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    timeout: Duration,
    over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    while !wait(fd, flags, LOOK)? {
        if over() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
        }
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
    }
    Ok(())
}

/// Wait until a descriptor can be read; false after the timeout.
pub(crate) fn wait_readable(socket: impl AsFd, timeout: Duration) -> io::Result<bool> {
    wait(socket.as_fd(), PollFlags::IN, timeout)
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&left)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// send(2) with these flags and no SIGPIPE. Interrupted calls are made again.
pub(crate) fn send(socket: BorrowedFd<'_>, data: &[u8], flags: i32) -> io::Result<usize> {
    loop {
        // SAFETY: pointer and length are those of a live slice, which the kernel only reads. With MSG_ZEROCOPY it goes
        // on reading after the call, from pages that it has pinned: what goes out is at stake then, and not memory.
        let n = unsafe {
            libc::send(socket.as_raw_fd(), data.as_ptr().cast(), data.len(), flags | libc::MSG_NOSIGNAL)
        };
        match check_len(n) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// recv(2) into the buffer. Interrupted calls are made again.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    loop {
        // SAFETY: pointer and length are those of a live slice that only we may write.
        let n = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        match check_len(n) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Take up to `buffer.len()` bytes of a TCP stream off the socket without copying them: MSG_TRUNC, tcp(7).
pub(crate) fn discard(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    receive(socket, buffer, libc::MSG_TRUNC)
}

/// Take one notice off a socket's error queue; false when there is none. MSG_ZEROCOPY leaves one or more there
/// (Documentation/networking/msg_zerocopy.rst), and an unread queue ends in ENOBUFS.
pub(crate) fn drain_error_queue(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut control = [0u64; 32];
    // SAFETY: msghdr is plain numbers and null pointers, for which all zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to a live control buffer with its size, and to no data.
    let n =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    match check_len(n) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

/// Let the calling thread's sleeps end on time (prctl(2) PR_SET_TIMERSLACK, default 50 us): an open-loop sender is late
/// by that otherwise. Ends with the thread.
///
/// # Errors
/// Those of prctl(2).
pub fn precise_sleeps() -> io::Result<()> {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) }).map(drop)
}

pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// True for the errors that mean "nothing within the socket's timeout".
pub(crate) fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
