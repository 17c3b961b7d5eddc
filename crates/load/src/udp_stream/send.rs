//! The sending end of one stream.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use weir_stats::Histogram;
use weir_sys::SendBatch;
use weir_sys::clock::now_ns;

use super::controls::Controls;
use super::datagram::{Flow, Header, header_time};
use super::receive::LOOK;
use super::{Batch, UdpStream};
use crate::Error;
use crate::observer::Flow as Told;
use crate::pace::{Ending, Schedule, Sleeping};
use crate::socket::{self, set_int, timed_out};
use crate::streams::by_path;
use crate::window::{CpuMeter, Phase, StepCounts, Window, nanos};

/// The sender goes on for this long after its window, so that the receiver's window, which began later by the path's
/// delay, ends while datagrams still come.
const MARGIN: Duration = Duration::from_millis(300);

/// Refusals for length after which they are a mistake of the own host: routers answer once a second to each source.
const MOST_TOO_BIG: u64 = 100_000;

/// Refusals for other reasons, by ICMP, one after the other: each tells of an earlier datagram, and the next one leaves. With more
/// than these the own host does not let anything leave.
const MOST_REFUSALS: u32 = 1000;

/// Pause after ENOBUFS: the queue below is full, and asking again at once only burns the CPU that empties it.
const FULL: Duration = Duration::from_micros(50);

/// The kernel reports ENOBUFS only to sockets with this option. Without it the kernel drops in its own queue and reports success.
const RECEIVE_ERRORS: [(i32, i32); 2] =
    [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];

/// The results of a stream's sending end.
#[derive(Debug)]
pub(super) struct Sent {
    /// Number of the flow in its direction.
    pub stream: u32,
    /// Datagrams that were due in the window before the flow's greeting was answered; only with a rate.
    pub missed: u64,
    /// Datagrams handed to the kernel, per step of the window.
    pub datagrams: StepCounts,
    /// Datagrams that the schedule wanted within the window; `None` without a rate.
    pub wanted: Option<f64>,
    /// Datagrams that leave together.
    pub batch: usize,
    /// How long after its time each left, ns, in the window; only with a rate.
    pub lateness: Histogram,
    /// Times that the kernel's queue below the socket was full (ENOBUFS), in the whole life. Each datagram was offered again.
    pub queue_full: u64,
    /// Times that the socket's send buffer was full for longer than [`LOOK`].
    pub blocked: u64,
    pub cpu_s: f64,
    /// The window was not over when the end came.
    pub cut_short: bool,
    /// Times that a router, by ICMP, or the own link said that datagrams are too long. Each was offered again.
    pub too_big: u64,
    /// Controls sent in addition to the data.
    pub controls: Controls,
}

struct Sender<'a> {
    socket: &'a UdpSocket,
    told: &'a Told,
    payload: usize,
    batch: SendBatch,
    kind: Batch,
    size: usize,
    mark: u32,
    number: u64,
    /// Refusals since a datagram left.
    refusals: u32,
    sent: Sent,
}

/// Send from now to the end of the window and a little longer; `late` if the window has begun without this flow.
pub(super) fn send(
    work: &UdpStream,
    socket: &UdpSocket,
    flow: Flow,
    late: bool,
    window: &Window,
    ending: &Ending,
    told: &Told,
) -> Result<Sent, Error> {
    let address = socket.peer_addr().map_err(Error::io("look up the far end"))?;
    let payload = work.payload(address);
    let size = work.batch_size(payload);
    prepare(work, socket, payload, address.is_ipv4())?;
    let error = Error::io("send controls");
    let mut controls = Controls::new(socket, payload, address.is_ipv6()).map_err(&error)?;
    controls.send(socket, flow, address.is_ipv6()).map_err(&error)?;
    let pps = work.stream_pps(payload);
    window.begin(now_ns());
    let start = now_ns();
    let missed = if late { work.missed(address, window) } else { 0 };
    let mut sender = Sender {
        socket,
        told,
        payload,
        batch: SendBatch::new((0..size * payload).map(|i| (i % 251) as u8).collect(), payload),
        kind: work.batch,
        size,
        mark: flow.mark(),
        number: 0,
        refusals: 0,
        sent: Sent {
            stream: flow.stream,
            missed,
            datagrams: StepCounts::new(window),
            wanted: pps.map(|pps| pps * window.seconds() - missed as f64),
            batch: size,
            lateness: Histogram::new(),
            queue_full: 0,
            blocked: 0,
            cpu_s: 0.0,
            cut_short: false,
            too_big: 0,
            controls,
        },
    };
    let until = window.end_ns().unwrap_or(start) + nanos(MARGIN);
    // Streams are out of step by a share of an interval, so that they do not send in the same instant.
    let schedule = pps.map(|pps| {
        let rate = pps / size as f64;
        let share = f64::from(flow.stream) / f64::from(work.streams);
        Schedule::new(start + (share * 1e9 / rate) as u64, rate)
    });
    match schedule {
        Some(schedule) => sender.paced(schedule, until, window, ending)?,
        None => sender.unlimited(until, window, ending)?,
    }
    if !ending.stop.raised() {
        sender.sent.controls.send(socket, flow, address.is_ipv6()).map_err(&error)?;
    }
    Ok(sender.sent)
}

fn prepare(work: &UdpStream, socket: &UdpSocket, payload: usize, ipv4: bool) -> Result<(), Error> {
    let set = || -> io::Result<()> {
        socket.set_write_timeout(Some(LOOK))?;
        let (level, name) = RECEIVE_ERRORS[usize::from(!ipv4)];
        set_int(socket, level, name, 1)?;
        if matches!(work.batch, Batch::Segment | Batch::Gso) {
            set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, payload as i32)?;
        }
        // Sleeps between departures end on time.
        socket::precise_sleeps()
    };
    set().map_err(Error::io("prepare a sending socket"))
}

impl Sender<'_> {
    fn unlimited(&mut self, until: u64, window: &Window, ending: &Ending) -> Result<(), Error> {
        let mut cpu = CpuMeter::default();
        loop {
            let now = now_ns();
            let phase = window.phase(now);
            cpu.look(phase);
            if now >= until || ending.raised() || !self.send_batch(now, phase, ending)? {
                self.end(&cpu, phase);
                return Ok(());
            }
        }
    }

    fn paced(
        &mut self,
        mut schedule: Schedule,
        until: u64,
        window: &Window,
        ending: &Ending,
    ) -> Result<(), Error> {
        let mut cpu = CpuMeter::default();
        loop {
            let due = schedule.due_ns();
            let Some(now) = schedule.wait(&Sleeping, until, || ending.raised()) else { break };
            // It belongs to the window in which it was due, however late it left.
            let phase = window.phase(due);
            cpu.look(window.phase(now));
            if matches!(phase, Phase::Within(_)) {
                schedule.left(due, now, self.size as u64);
            }
            if ending.raised() || !self.send_batch(now, phase, ending)? {
                break;
            }
        }
        self.end(&cpu, window.phase(now_ns()));
        self.sent.lateness = schedule.into_lateness();
        Ok(())
    }

    fn end(&mut self, cpu: &CpuMeter, phase: Phase) {
        self.sent.cpu_s = cpu.seconds();
        self.sent.cut_short = phase != Phase::After;
    }

    /// Send a batch. False if it was cut off by the end, or the receiver is gone after the window.
    #[inline]
    fn send_batch(&mut self, now: u64, phase: Phase, ending: &Ending) -> Result<bool, Error> {
        let time = header_time(now);
        for i in 0..self.size {
            let header = Header { mark: self.mark, time, number: self.number + i as u64 };
            header.write(self.batch.message(i));
        }
        let mut done = 0;
        while done < self.size {
            let result = match self.kind {
                Batch::Sendmmsg => self.batch.send(self.socket.as_fd(), done, self.size),
                _ => socket::send(self.socket.as_fd(), self.batch.bytes(self.size), 0).map(|_| self.size),
            };
            match result {
                Ok(n) => {
                    done += n;
                    self.refusals = 0;
                }
                Err(e) if !self.try_again(&e, phase)? || ending.raised() => break,
                Err(_) => {}
            }
        }
        self.number += done as u64;
        self.sent.datagrams.add(phase, done as u64);
        self.told.packets.add(done as u64);
        self.told.bytes.add((done * self.payload) as u64);
        Ok(done == self.size)
    }

    /// Classifies an error: true to offer the same datagrams again, false if the other end is gone.
    #[cold]
    fn try_again(&mut self, error: &io::Error, phase: Phase) -> Result<bool, Error> {
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => {
                self.sent.queue_full += 1;
                std::thread::sleep(FULL);
                Ok(true)
            }
            // After its own window the receiver may go before us.
            Some(libc::ECONNREFUSED) if phase == Phase::After => Ok(false),
            // ICMP's too-big about an earlier datagram: from now on the kernel splits them to fit. If the kernel does not send a
            // datagram at all, it refuses it every time.
            Some(libc::EMSGSIZE) if self.sent.too_big < MOST_TOO_BIG => {
                self.sent.too_big += 1;
                Ok(true)
            }
            Some(libc::EINTR) => Ok(true),
            _ if timed_out(error) => {
                self.sent.blocked += 1;
                Ok(true)
            }
            // ICMP about an earlier datagram, which is lost. This one may pass.
            _ if by_path(error) && self.refusals < MOST_REFUSALS => {
                self.refusals += 1;
                Ok(true)
            }
            Some(code) => {
                Err(Error::Io { what: "send datagrams", source: io::Error::from_raw_os_error(code) })
            }
            None => Err(Error::Io { what: "send datagrams", source: io::Error::from(error.kind()) }),
        }
    }
}
