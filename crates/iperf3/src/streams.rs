//! The streams of one test, and their threads.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::net::sockopt;
use weir_load::sockets::{TcpInfo, tcp_info};
use weir_sys::sched::{CpuUse, thread_cpu_use};

use super::error::Error;
use super::parameters::Parameters;
use super::progress::{Counters, RunProgress};
use super::tcp::{self, Payload};
use super::udp;
use weir_netlink::Protocol;

/// Stack of a stream's thread: its loops keep their buffers elsewhere.
const STACK_BYTES: usize = 256 << 10;

/// A stream's socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// One stream of a test at one end.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    /// iperf3's number of it: 1, 3, 4, 5, ...
    pub(super) id: i64,
    /// This end sends.
    pub(super) sends: bool,
    pub(super) socket: Arc<Socket>,
    pub(super) counters: Arc<Counters>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

/// iperf3's number of the `nth` stream, from 0, in the order of their opening: 2 is left out, for what once was there.
pub(super) fn stream_id(nth: usize) -> i64 {
    if nth == 0 { 1 } else { nth as i64 + 2 }
}

impl Stream {
    /// The `nth` stream of its test, from 0. Sets what can be set on a socket that is connected.
    pub(super) fn new(nth: usize, sends: bool, socket: Socket, p: &Parameters) -> Result<Stream, Error> {
        let addresses = match &socket {
            Socket::Tcp(s) => s.local_addr().and_then(|l| Ok((l, s.peer_addr()?))),
            Socket::Udp(s) => s.local_addr().and_then(|l| Ok((l, s.peer_addr()?))),
        };
        let (local, peer) = addresses.map_err(Error::io("look up a stream's addresses"))?;
        match &socket {
            Socket::Tcp(s) => set_up(s, p, local),
            Socket::Udp(s) => set_up(s, p, local),
        }
        .map_err(|e| Error::Io { what: "set a stream's type of service or pacing", source: e })?;
        Ok(Stream {
            id: stream_id(nth),
            sends,
            socket: Arc::new(socket),
            counters: Arc::default(),
            local: plain(local),
            peer: plain(peer),
        })
    }

    /// TCP_INFO; `None` for UDP, and for a connection that was reset.
    pub(super) fn info(&self) -> Option<TcpInfo> {
        match &*self.socket {
            Socket::Tcp(s) => tcp_info(s).ok(),
            Socket::Udp(_) => None,
        }
    }

    /// The congestion control in use; `None` for UDP.
    pub(super) fn congestion(&self) -> Option<String> {
        match &*self.socket {
            Socket::Tcp(s) => sockopt::tcp_congestion(s).ok(),
            Socket::Udp(_) => None,
        }
    }
}

fn set_up(socket: impl std::os::fd::AsFd, p: &Parameters, local: SocketAddr) -> std::io::Result<()> {
    if p.tos > 0 {
        match local.ip() {
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none() => {
                sockopt::set_ipv6_tclass(&socket, p.tos.into())?
            }
            _ => sockopt::set_ip_tos(&socket, p.tos)?,
        }
    }
    if p.fq_rate_bps > 0 {
        // Bytes per second; an unsigned 32-bit number is understood by all kernels (sock(7), net/core/sock.c).
        let rate = u32::try_from(p.fq_rate_bps / 8).unwrap_or(u32::MAX);
        weir_load::sockets::set_int(&socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate.cast_signed())?;
    }
    Ok(())
}

/// An IPv4 address that an IPv6 socket shows as `::ffff:192.0.2.1` in its own form.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The running threads of a test's streams. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Threads {
    progress: Arc<RunProgress>,
    senders: Vec<JoinHandle<CpuUse>>,
    receivers: Vec<JoinHandle<CpuUse>>,
    used: CpuUse,
}

impl Threads {
    /// Start one for each stream.
    ///
    /// # Errors
    /// A thread cannot be started, or memory for what is sent not be had.
    pub(super) fn start(
        streams: &[Stream],
        parameters: &Arc<Parameters>,
        progress: &Arc<RunProgress>,
    ) -> Result<Threads, Error> {
        let payload = Payload::new(parameters)?;
        let mut threads = Threads {
            progress: progress.clone(),
            senders: Vec::new(),
            receivers: Vec::new(),
            used: CpuUse::default(),
        };
        streams.iter().filter(|s| s.sends).for_each(|_| progress.sender_begins());
        for stream in streams {
            let sends = stream.sends;
            let (stream, p, progress, payload) =
                (stream.clone(), parameters.clone(), progress.clone(), payload.clone());
            let name = if p.protocol == Protocol::Udp { "iperf3-udp" } else { "iperf3-tcp" };
            let thread = Builder::new()
                .name(name.into())
                .stack_size(STACK_BYTES)
                .spawn(move || run(&stream, &p, &payload, &progress))
                .map_err(Error::io("start a stream's thread"))?;
            if sends { &mut threads.senders } else { &mut threads.receivers }.push(thread);
        }
        Ok(threads)
    }

    /// End the senders: when this returns, their counts do not change any more.
    pub(super) fn end_sending(&mut self) {
        self.progress.end_sending();
        self.used += joined(&mut self.senders);
    }

    /// End them all, and say what they used.
    pub(super) fn join(mut self) -> CpuUse {
        self.end();
        self.used
    }

    fn end(&mut self) {
        self.progress.end();
        self.used += joined(&mut self.senders);
        self.used += joined(&mut self.receivers);
    }
}

fn joined(threads: &mut Vec<JoinHandle<CpuUse>>) -> CpuUse {
    let mut used = CpuUse::default();
    for thread in threads.drain(..) {
        // A panic goes on in ours.
        used += thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    used
}

impl Drop for Threads {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

fn run(stream: &Stream, p: &Parameters, payload: &Payload, progress: &RunProgress) -> CpuUse {
    let counters = &stream.counters;
    let result = match (&*stream.socket, stream.sends) {
        (Socket::Tcp(s), true) => tcp::send(p, payload, s, counters, progress),
        (Socket::Tcp(s), false) => tcp::receive(p, s, counters, progress),
        (Socket::Udp(s), true) => udp::send(p, s, counters, progress),
        (Socket::Udp(s), false) => udp::receive(p, s, counters, progress),
    };
    if let Err(error) = result {
        progress.fail(error);
    }
    if stream.sends {
        progress.sender_ended();
    }
    thread_cpu_use()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_without_2() {
        assert_eq!([0, 1, 2, 3].map(stream_id), [1, 3, 4, 5]);
    }
}
