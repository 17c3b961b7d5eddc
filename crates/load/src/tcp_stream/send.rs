//! The sending end of one stream.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use weir_sys::clock::now_ns;

use super::TcpStreamWork;
use super::handshake::GREETING_BYTES;
use super::pattern::Pattern;
use crate::Error;
use crate::observer::Flow;
use crate::pace::Ending;
use crate::socket::{self, TcpInfo};
use crate::streams::by_path;
use crate::window::{CpuMeter, Mean, Phase, Window, nanos};

/// How long a call may block before the loop looks at the stop flag again.
pub(super) const LOOK: Duration = Duration::from_millis(40);

/// The receiver closes when its own window is over. This long after the sender's window the path is taken for dead.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The same once the runner says that the other end is done: how long its close may take to arrive.
const CLOSING: Duration = Duration::from_millis(500);

/// How a stream ended at this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// After the window.
    Complete,
    /// Someone raised stop, or the other end was done, before the window was over.
    Stopped,
    /// Closed or reset before the window was over.
    Closed,
    /// Nothing came of the other end any more: no close after its window, or no first byte.
    Abandoned,
}

/// The values of TCP_INFO over the window.
#[derive(Debug, Clone, Default)]
pub(super) struct InfoSamples {
    /// Smoothed RTT in ns, per step of the window.
    pub rtt: Vec<Mean>,
    /// Congestion window in segments, per step.
    pub cwnd: Vec<Mean>,
    /// Least RTT of the connection, ns.
    pub min_rtt_ns: Option<u64>,
    /// Segments retransmitted at the window's start and the latest count.
    retransmits: Option<(u32, u32)>,
    step: Option<usize>,
}

impl InfoSamples {
    pub(super) fn new(window: &Window) -> Self {
        let steps = window.steps();
        InfoSamples {
            rtt: vec![Mean::default(); steps],
            cwnd: vec![Mean::default(); steps],
            ..Self::default()
        }
    }

    /// Sample once per step. The count of retransmissions is taken at the window's two edges too.
    #[inline]
    pub(super) fn look(
        &mut self,
        phase: Phase,
        socket: impl AsFd,
        flow: &Flow,
        read: impl Fn(&TcpInfo) -> (u32, u32),
    ) {
        match phase {
            Phase::Within(step) if self.step != Some(step) => {
                self.step = Some(step);
                self.sample(Some(step), socket, flow, read);
            }
            Phase::After if self.step != Some(usize::MAX) => {
                self.step = Some(usize::MAX);
                self.sample(None, socket, flow, read);
            }
            _ => {}
        }
    }

    #[cold]
    fn sample(
        &mut self,
        step: Option<usize>,
        socket: impl AsFd,
        flow: &Flow,
        read: impl Fn(&TcpInfo) -> (u32, u32),
    ) {
        // A connection that was reset has no TCP_INFO; its end is reported by the loop that owns it.
        let Ok(info) = socket::tcp_info(socket) else { return };
        let from = self.retransmits.map_or(info.total_retrans, |(from, _)| from);
        self.retransmits = Some((from, info.total_retrans));
        let (rtt_us, min_us) = read(&info);
        flow.retransmits.set(info.total_retrans.into());
        flow.cwnd.set(info.snd_cwnd.into());
        flow.rtt_ns.set(u64::from(rtt_us) * 1000);
        if min_us != 0 && min_us != u32::MAX {
            let ns = u64::from(min_us) * 1000;
            self.min_rtt_ns = Some(self.min_rtt_ns.map_or(ns, |m| m.min(ns)));
        }
        if let Some(step) = step {
            if rtt_us != 0 {
                self.rtt[step].add(f64::from(rtt_us) * 1000.0);
            }
            self.cwnd[step].add(f64::from(info.snd_cwnd));
        }
    }

    /// Segments retransmitted in the window.
    pub(super) fn retransmits(&self) -> u64 {
        self.retransmits.map_or(0, |(from, to)| u64::from(to.wrapping_sub(from)))
    }
}

/// The results of a stream's sending end.
#[derive(Debug)]
pub(super) struct Sent {
    /// Number of the stream in its direction.
    pub stream: u32,
    pub info: InfoSamples,
    pub cpu_s: f64,
    pub end: End,
    /// Nothing of the stream was acknowledged before it ended early.
    pub stuck: bool,
    /// With MSG_ZEROCOPY the kernel reads it until the connection is closed: reused earlier, its memory would go out in a
    /// retransmission.
    _buffer: Pattern,
}

/// Send until the receiver closes.
pub(super) fn send(
    work: &TcpStreamWork,
    stream: u32,
    connection: &TcpStream,
    window: &Window,
    ending: &Ending,
    flow: &Flow,
) -> Result<Sent, Error> {
    prepare(work, connection).map_err(Error::io("prepare a sending stream"))?;
    let pattern = Pattern::new(work.buffer_bytes as usize);
    let flags = if work.zero_copy { libc::MSG_ZEROCOPY } else { 0 };
    let mut cpu = CpuMeter::default();
    let mut info = InfoSamples::new(window);
    let (mut position, mut far_done) = (0u64, None);
    window.begin(now_ns());
    let end = loop {
        // Unless the far end compares, the buffer always starts at the same, aligned place.
        let data = pattern.at(if work.verify { position } else { 0 });
        let result = socket::send(connection.as_fd(), data, flags);
        let phase = window.phase(now_ns());
        cpu.look(phase);
        info.look(phase, connection, flow, |i| (i.rtt_us, i.min_rtt_us));
        match result {
            Ok(n) => {
                position += n as u64;
                flow.bytes.add(n as u64);
            }
            Err(e) if socket::timed_out(&e) => {}
            // A dead path ends a connection with what ICMP said last.
            Err(e) if by_path(&e) => {
                break if phase == Phase::After { End::Complete } else { End::Closed };
            }
            // MSG_ZEROCOPY: too many notices are unread.
            Err(e) if work.zero_copy && e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(source) => return Err(Error::Io { what: "send on a stream", source }),
        }
        if work.zero_copy {
            drain(connection)?;
        }
        if ending.raised() && phase != Phase::After {
            break End::Stopped;
        }
        if ending.stop.raised() {
            break End::Complete;
        }
        if phase == Phase::After && silent_for_long(window, ending, &mut far_done) {
            break End::Abandoned;
        }
    };
    // One that ended before a full step is over has no sample of its end.
    if end != End::Complete {
        info.look(Phase::After, connection, flow, |i| (i.rtt_us, i.min_rtt_us));
    }
    let stuck = end != End::Complete && nothing_acknowledged(connection);
    Ok(Sent { stream, info, cpu_s: cpu.seconds(), end, stuck, _buffer: pattern })
}

/// True if the receiver would have closed by now: its close does not arrive.
fn silent_for_long(window: &Window, ending: &Ending, far_done: &mut Option<u64>) -> bool {
    let now = now_ns();
    let told = ending.done.raised().then(|| *far_done.get_or_insert(now));
    window.end_ns().is_some_and(|end| now > end + nanos(PATIENCE))
        || told.is_some_and(|since| now > since + nanos(CLOSING))
}

/// True if the greeting may have arrived, and nothing behind it. The kernel counts the SYN as a byte.
fn nothing_acknowledged(connection: &TcpStream) -> bool {
    socket::tcp_info(connection).is_ok_and(|info| info.bytes_acked <= 1 + GREETING_BYTES)
}

fn prepare(work: &TcpStreamWork, connection: &TcpStream) -> io::Result<()> {
    connection.set_write_timeout(Some(LOOK))?;
    // Data that is unsent at the end belongs to no window; sending it would disturb the next trial.
    socket::abort_on_close(connection)?;
    if work.zero_copy {
        socket::set_int(connection, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
    }
    Ok(())
}

fn drain(connection: &TcpStream) -> Result<(), Error> {
    while socket::drain_error_queue(connection.as_fd()).map_err(Error::io("read MSG_ZEROCOPY notices"))? {}
    Ok(())
}
