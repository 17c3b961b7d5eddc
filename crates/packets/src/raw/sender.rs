//! Sending by packet sockets: an open loop, as the generator's.

use std::os::fd::OwnedFd;
use std::time::Duration;

use weir_netlink::Rtnetlink;
use weir_sys::SendBatch;
use weir_sys::clock::{now_ns, sleep_until};
use weir_sys::sched::{pin_current_thread, set_timer_slack_ns, thread_cpu_time};

use super::socket::{bind, failed, open, set};
use crate::Error;
use crate::flow_order::{Tuple, share};
use crate::frame::{Marked, Tag, Template};
use crate::route::{self, Path};
use crate::schedule::{Schedule, ThreadWork, check_mtu, check_rate};
use crate::shared::{WEIR_SEQ_BITS, WEIR_STREAMS};
use crate::transfer::{Engine, Inject, Link, Sending, Sent, Stop};

/// Most frames handed to the kernel with one call. More gains nothing: the call's own cost is shared by enough.
const BATCH: usize = 64;
/// Time between the order to send by a schedule and the first frame, in which the threads start, ns.
const LEAD_NS: u64 = 1_000_000;
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
    schedule: Schedule,
    start_ns: u64,
    stop_ns: u64,
    threads: usize,
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
        let path = route::of_flows(&self.link, flows)?;
        check_mtu(&self.link, sending, Rtnetlink::open()?.interface(&self.link.interface)?.mtu)?;
        let plan = self.plan(cookie, sending, &path, flows.len())?;
        // All sockets are opened before the first frame leaves.
        let sockets = (0..plan.threads).map(|_| socket(path.interface)).collect::<Result<Vec<_>, _>>()?;
        let parts = run_all(&plan, &self.link.cpus, flows, sockets, stop)?;
        Ok(plan.schedule.sum_up(sending, Engine::AfPacket, plan.start_ns, &parts, false))
    }

    fn plan<'a>(
        &self,
        cookie: u32,
        sending: &'a Sending,
        path: &Path,
        flows: usize,
    ) -> Result<SendOrders<'a>, Error> {
        let template = Template::new(sending.frame, path.source, path.destination)?;
        // A thread without flows or frames would have nothing to do.
        let most = (flows as u64).min(sending.limit.frames).min(WEIR_STREAMS) as usize;
        let threads = self.link.cpus.len().max(1).min(most);
        let schedule = Schedule::of(sending);
        let start_ns = now_ns() + if schedule.interval_ns.is_some() { LEAD_NS } else { 0 };
        let stop_ns = start_ns.saturating_add(schedule.duration_ns);
        Ok(SendOrders { cookie, sending, template, schedule, start_ns, stop_ns, threads })
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
    check_rate(sending.offer)
}

/// One thread for each socket, and what each did.
fn run_all(
    plan: &SendOrders<'_>,
    cpus: &[usize],
    flows: &[(u32, Tuple)],
    sockets: Vec<OwnedFd>,
    stop: &Stop,
) -> Result<Vec<ThreadWork>, Error> {
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
    part: ThreadWork,
}

impl<'a> Worker<'a> {
    fn new(plan: &'a SendOrders<'a>, index: usize, flows: &'a [(u32, Tuple)], socket: OwnedFd) -> Self {
        let frame = plan.template.bytes();
        let batch = SendBatch::new(frame.repeat(BATCH), frame.len());
        let frames = share(plan.schedule.frames, index, plan.threads).1;
        Worker { plan, socket, batch, flows, index, frames, part: ThreadWork::default() }
    }

    fn run(mut self, cpu: Option<usize>, stop: &Stop) -> Result<ThreadWork, Error> {
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
        let after = self.plan.schedule.interval_ns.map_or(0.0, |interval| turn as f64 * interval);
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
            if self.plan.schedule.interval_ns.is_some() {
                // The first of a batch has waited longest.
                let due = self.due_ns(self.part.frames);
                self.part.late_max_ns = self.part.late_max_ns.max(now.saturating_sub(due));
            }
        }
        self.part.frames += done as u64;
        Ok(())
    }
}
