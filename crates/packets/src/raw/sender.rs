//! Sending by packet sockets: an open loop, as the generator's.

use std::os::fd::OwnedFd;
use std::time::Duration;

use weir_netlink::Rtnetlink;
use weir_sys::SendBatch;
use weir_sys::clock::{NS_PER_S, now_ns, sleep_until};
use weir_sys::sched::{pin_current_thread, set_timer_slack_ns, thread_cpu_time};
use weir_wire::Ethernet;

use super::socket::{bind, failed, open, set};
use crate::Error;
use crate::flow_order::{Tuple, share};
use crate::frame::{CHECK_SEQUENCE, Marked, Tag, Template};
use crate::route::{self, Path};
use crate::shared::{WEIR_SEQ_BITS, WEIR_STREAMS};
use crate::transfer::{Engine, Inject, Link, Offer, Sending, Sent, Stop};

/// Most frames handed to the kernel with one call. More gains nothing: the call's own cost is shared by enough.
const BATCH: usize = 64;
/// Time between the order to send by a schedule and the first frame, in which the threads start, ns.
const LEAD_NS: u64 = 1_000_000;
/// By how much the last frames of a schedule may be late and still leave, ns.
const GRACE_NS: u64 = 100_000;
/// Waits shorter than this spin: a sleep costs about as much, and ends late.
const SPIN_NS: u64 = 20_000;
/// Longest sleep between two looks at the stop flag.
const NAP_NS: u64 = 10_000_000;
/// Pause after ENOBUFS: the driver's queue is full, and asking again at once only burns the CPU that empties it.
const FULL: Duration = Duration::from_micros(50);

/// How long a send may wait for room in the socket's buffer before the stop flag is looked at, us.
const PATIENCE_US: libc::suseconds_t = 10_000;

/// Sends for one endpoint.
#[derive(Debug)]
pub struct RawSender {
    link: Link,
}

/// The plan for all threads.
struct SendOrders<'a> {
    cookie: u32,
    sending: &'a Sending,
    template: Template,
    start_ns: u64,
    stop_ns: u64,
    /// Frames of all threads together.
    frames: u64,
    /// ns between two frames of all threads together; `None`: as fast as it goes.
    interval_ns: Option<f64>,
    threads: usize,
}

/// The results of one thread.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    frames: u64,
    refused: u64,
    /// Times of the first and the last frame, ns; 0: none left.
    first_ns: u64,
    last_ns: u64,
    /// When the last frame was handed to the kernel, which the schedule is compared with.
    last_begun_ns: u64,
    late_max_ns: u64,
    cpu: Duration,
}

impl RawSender {
    /// For a link; the interface is looked for when something is sent.
    pub fn new(link: &Link) -> Self {
        RawSender { link: link.clone() }
    }

    /// Opens a packet socket, to see whether this process may.
    ///
    /// # Errors
    /// [`Error::Missing`] without CAP_NET_RAW.
    pub fn probe(&self) -> Result<(), Error> {
        open().map(drop)
    }

    /// Sends what is asked for, flows in the order given and over and over, and returns when that is done, when its time is over
    /// or when `stop` is raised (within 10 ms). A frame that the own kernel refuses (its queue is full) is offered again.
    ///
    /// A stamped frame is the first of its batch, so that its time is that of its departure.
    ///
    /// # Errors
    /// [`Error::Missing`] without CAP_NET_RAW; [`Error::Unfit`] if it cannot be done at all: no flow, frames longer than the link
    /// carries, another way in than the link; the kernel's refusals.
    pub fn send(
        &mut self,
        cookie: u32,
        sending: &Sending,
        flows: &[(u32, Tuple)],
        stop: &Stop,
    ) -> Result<Sent, Error> {
        check(sending)?;
        if self.link.inject == Inject::Gateway {
            return Err(Error::Unfit(
                "packet sockets send by the link only; handing frames to the gateway's stack needs XDP"
                    .into(),
            ));
        }
        let Some((_, first)) = flows.first() else {
            return Err(Error::Unfit("no flow has come through: there is none to answer".into()));
        };
        let path = route::find(&self.link, first.destination)?;
        self.check_length(sending)?;
        let plan = self.plan(cookie, sending, &path, flows.len())?;
        // All sockets are opened before the first frame leaves.
        let sockets = (0..plan.threads).map(|_| socket(path.interface)).collect::<Result<Vec<_>, _>>()?;
        let parts = run_all(&plan, &self.link.cpus, flows, sockets, stop)?;
        Ok(plan.sum_up(&parts))
    }

    fn check_length(&self, sending: &Sending) -> Result<(), Error> {
        let mtu = Rtnetlink::open()?.interface(&self.link.interface)?.mtu;
        let payload = usize::from(sending.frame.bytes).saturating_sub(CHECK_SEQUENCE + Ethernet::LENGTH);
        if payload <= mtu as usize {
            return Ok(());
        }
        Err(Error::Unfit(format!(
            "frames of {} bytes need an MTU of {payload}; that of {} is {mtu}",
            sending.frame.bytes, self.link.interface
        )))
    }

    fn plan<'a>(
        &self,
        cookie: u32,
        sending: &'a Sending,
        path: &Path,
        flows: usize,
    ) -> Result<SendOrders<'a>, Error> {
        let template = Template::new(sending.frame, path.source, path.destination)?;
        let limit = sending.limit;
        // A thread without flows or frames would have nothing to do.
        let most = (flows as u64).min(limit.frames).min(WEIR_STREAMS) as usize;
        let threads = self.link.cpus.len().max(1).min(most);
        let now = now_ns();
        let duration = u64::try_from(limit.duration.as_nanos()).unwrap_or(u64::MAX / 4);
        let (start_ns, grace_ns, frames, interval_ns) = match sending.offer {
            Offer::Unlimited => (now, 0, limit.frames, None),
            Offer::Rate(rate) => {
                // Frames k with k / rate < duration.
                let planned = (rate * limit.duration.as_secs_f64()).ceil().max(1.0) as u64;
                (now + LEAD_NS, GRACE_NS, planned.min(limit.frames), Some(NS_PER_S as f64 / rate))
            }
        };
        let stop_ns = start_ns.saturating_add(duration).saturating_add(grace_ns);
        Ok(SendOrders { cookie, sending, template, start_ns, stop_ns, frames, interval_ns, threads })
    }
}

/// A socket that only sends.
fn socket(interface: u32) -> Result<OwnedFd, Error> {
    let socket = open()?;
    let on: libc::c_int = 1;
    // Straight to the driver: a queueing discipline would drop or delay frames on its own account.
    set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &on, "send past the queueing discipline")?;
    // A card that no longer sends keeps its frames, and the socket's buffer full.
    let patience = libc::timeval { tv_sec: 0, tv_usec: PATIENCE_US };
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience, "bound the time of a send")?;
    bind(&socket, interface, 0)?;
    Ok(socket)
}

/// Refuses what has no bound or no rate.
fn check(sending: &Sending) -> Result<(), Error> {
    if sending.limit.frames == 0 || sending.limit.duration.is_zero() {
        return Err(Error::Unfit("a transfer of no frames, or no time".into()));
    }
    match sending.offer {
        Offer::Rate(rate) if !(rate.is_finite() && (0.01..=1e9).contains(&rate)) => {
            Err(Error::Unfit(format!("a rate of {rate} frames a second")))
        }
        _ => Ok(()),
    }
}

/// One thread for each socket, and what each did.
fn run_all(
    plan: &SendOrders<'_>,
    cpus: &[usize],
    flows: &[(u32, Tuple)],
    sockets: Vec<OwnedFd>,
    stop: &Stop,
) -> Result<Vec<Part>, Error> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, socket) in sockets.into_iter().enumerate() {
            let (from, length) = share(flows.len() as u64, index, plan.threads);
            let part = &flows[from as usize..(from + length) as usize];
            let cpu = cpus.get(index).copied();
            let thread = std::thread::Builder::new()
                .name(format!("sender-{index}"))
                .spawn_scoped(scope, move || Worker::new(plan, index, part, socket).run(cpu, stop))
                .map_err(|e| failed("start a sending thread", e))?;
            threads.push(thread);
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// One sending thread.
struct Worker<'a> {
    plan: &'a SendOrders<'a>,
    socket: OwnedFd,
    batch: SendBatch,
    flows: &'a [(u32, Tuple)],
    index: usize,
    /// Frames that are its own.
    frames: u64,
    part: Part,
}

impl<'a> Worker<'a> {
    fn new(plan: &'a SendOrders<'a>, index: usize, flows: &'a [(u32, Tuple)], socket: OwnedFd) -> Self {
        let frame = plan.template.bytes();
        let batch = SendBatch::new(frame.repeat(BATCH), frame.len());
        let frames = share(plan.frames, index, plan.threads).1;
        Worker { plan, socket, batch, flows, index, frames, part: Part::default() }
    }

    fn run(mut self, cpu: Option<usize>, stop: &Stop) -> Result<Part, Error> {
        if let Some(cpu) = cpu {
            pin_current_thread(&[cpu])?;
        }
        // Sleeps between departures end on time.
        set_timer_slack_ns(1)?;
        let cpu_before = thread_cpu_time();
        while self.part.frames < self.frames && !stop.raised() {
            let due = self.due_ns(self.part.frames);
            let Some(now) = self.wait(due, stop) else { break };
            let size = self.fill(now);
            self.send(size, now, stop)?;
        }
        self.part.cpu = thread_cpu_time() - cpu_before;
        Ok(self.part)
    }

    /// When the thread's frame of that number is due: threads take turns.
    fn due_ns(&self, number: u64) -> u64 {
        let turn = number * self.plan.threads as u64 + self.index as u64;
        // Exact to a nanosecond for 2^53 ns, 104 days.
        let after = self.plan.interval_ns.map_or(0.0, |interval| turn as f64 * interval);
        self.plan.start_ns + after as u64
    }

    /// Waits until a frame is due. Returns the time; `None` when the end has come, or someone wants it to.
    fn wait(&self, due: u64, stop: &Stop) -> Option<u64> {
        let mut now = now_ns();
        while now < due && now < self.plan.stop_ns {
            if stop.raised() {
                return None;
            }
            if due - now > SPIN_NS {
                now = sleep_until((due - SPIN_NS / 2).min(now + NAP_NS), 0);
            } else {
                std::hint::spin_loop();
                now = now_ns();
            }
        }
        (now < self.plan.stop_ns).then_some(now)
    }

    /// Writes the frames that are due. Returns how many, at least one.
    fn fill(&mut self, now: u64) -> usize {
        let most = (self.frames - self.part.frames).min(BATCH as u64) as usize;
        let mut size = 0;
        while size < most {
            let number = self.part.frames + size as u64;
            let stamped = number.checked_rem(u64::from(self.plan.sending.stamp_every)) == Some(0);
            if size > 0 && (stamped || self.due_ns(number) > now) {
                break;
            }
            let (flow, tuple) = self.flows[(number % self.flows.len() as u64) as usize];
            let stream = (self.index as u32) << WEIR_SEQ_BITS;
            let mark = Marked {
                tag: Tag {
                    cookie: self.plan.cookie,
                    seq: stream | number as u32 & ((1 << WEIR_SEQ_BITS) - 1),
                    flow,
                    // 0 would say that there is no stamp.
                    sent_ns: if stamped { (now_ns() as u32).max(1) } else { 0 },
                },
                protocol: self.plan.sending.frame.protocol,
                source: tuple.source,
                source_port: tuple.source_port,
                destination: tuple.destination,
                destination_port: tuple.destination_port,
            };
            self.plan.template.mark(self.batch.message(size), &mark);
            size += 1;
        }
        size
    }

    /// Sends what was filled in at `now`; less where the end comes while the kernel refuses it.
    fn send(&mut self, size: usize, now: u64, stop: &Stop) -> Result<(), Error> {
        let mut done = 0;
        while done < size {
            match self.batch.send(&self.socket, done, size) {
                Ok(n) => done += n,
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {
                    self.part.refused += 1;
                    std::thread::sleep(FULL);
                    if stop.raised() || now_ns() >= self.plan.stop_ns {
                        break;
                    }
                }
                Err(e) => return Err(failed("send frames by a packet socket", e)),
            }
        }
        if done > 0 {
            let part = &mut self.part;
            if part.frames == 0 {
                part.first_ns = now;
            }
            part.last_begun_ns = now;
            part.last_ns = now_ns();
            if self.plan.interval_ns.is_some() {
                // The first of a batch has waited longest.
                let due = self.due_ns(self.part.frames);
                self.part.late_max_ns = self.part.late_max_ns.max(now.saturating_sub(due));
            }
        }
        self.part.frames += done as u64;
        Ok(())
    }
}

impl SendOrders<'_> {
    fn sum_up(&self, parts: &[Part]) -> Sent {
        let sent = |part: &&Part| part.frames > 0;
        let frames: u64 = parts.iter().map(|p| p.frames).sum();
        let first = parts.iter().filter(sent).map(|p| p.first_ns).min().unwrap_or(0);
        let last = parts.iter().map(|p| p.last_ns).max().unwrap_or(0);
        let last_begun = parts.iter().map(|p| p.last_begun_ns).max().unwrap_or(0);
        let slip_ratio = match self.interval_ns {
            Some(interval) if frames > 1 => {
                let planned = (frames - 1) as f64 * interval;
                (last_begun.saturating_sub(self.start_ns) as f64 / planned - 1.0).max(0.0)
            }
            _ => 0.0,
        };
        Sent {
            frames,
            stamped: parts.iter().map(|p| self.sending.stamped(p.frames)).sum(),
            bytes: frames * u64::from(self.sending.frame.bytes),
            duration_ns: last.saturating_sub(first),
            elsewhere_ns: 0,
            late_max_ns: parts.iter().map(|p| p.late_max_ns).max().unwrap_or(0),
            slip_ratio,
            refused: parts.iter().map(|p| p.refused).sum(),
            cpu_s: parts.iter().map(|p| p.cpu.as_secs_f64()).sum(),
            engine: Engine::AfPacket,
            pace: None,
        }
    }
}
