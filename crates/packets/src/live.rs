//! Sending by live frames: an XDP program makes each frame inside the kernel, which hands it to the driver as a redirected one
//! (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18; Documentation/bpf/bpf_prog_run.rst). No system call, no copy and no socket
//! buffer per frame: one core makes millions a second.
//!
//! Each sending thread runs its own copy of the program on its own core, in one call for the whole transfer, since a call
//! costs some 20 ms of waiting (see [`threads`]). All that matters for time is inside the program: the schedule, the
//! end of the transfer, the number of frames (`bpf/pace.h`).

mod program;
mod reference;
mod threads;

use std::time::Duration;

use weir_bpf::Plain;
use weir_netlink::{Interface, Rtnetlink};

pub use program::{Make, Program};

use crate::Error;
use crate::flow_order::{Tuple, share};
use crate::frame::Template;
use crate::pace::{self, Pace};
use crate::route::{self, Path};
use crate::schedule::{Schedule, ThreadWork, check_mtu, check_rate};
use crate::shared::{self, WeirSender};
use crate::transfer::{Engine, Inject, Link, Offer, Sending, Sent, Stop};
use reference::Reference;
use threads::{Part, run_all};

/// Runs in a batch when frames leave as fast as they can. Fewer cost more per frame (to a dropping receiver 240 ns with 1, 72 with
/// 16, 65.5 with 64), more save less than 2 ns, and 256 are all that a veth's ring holds.
const BATCH: u32 = 64;
/// Longest transfer: the schedule's fixed point has room for 4.8 hours.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// Sends for one endpoint.
#[derive(Debug)]
pub struct LiveSender {
    link: Link,
    /// The programs of the last transfer, for the next of the same kind.
    ready: Option<Ready>,
    /// The reference router, which measures the core's speed.
    reference: Option<Reference>,
}

/// Programs with the order of flows that they were loaded with.
#[derive(Debug)]
struct Ready {
    flows: Vec<(u32, Tuple)>,
    programs: Vec<Program>,
}

impl LiveSender {
    /// Longest frame, check sequence included: a page of 4096 bytes less the kernel's own structures (net/bpf/test_run.c,
    /// TEST_XDP_FRAME_SIZE), the headroom and `struct skb_shared_info`, which left 3412 on Linux 6.18; some less, since those grow.
    pub const LONGEST: u16 = 3400;

    /// For a link; the interface is looked for when something is sent.
    pub fn new(link: &Link) -> Self {
        LiveSender { link: link.clone(), ready: None, reference: None }
    }

    /// True if frames of that length fit. Longer ones are for packet sockets.
    pub fn carries(bytes: u16) -> bool {
        bytes <= LiveSender::LONGEST
    }

    /// Runs one live frame, which goes nowhere, to see whether this kernel has them and lets this process.
    ///
    /// # Errors
    /// The kernel's refusal, [`Error::is_missing`] where privilege or the feature is missing.
    pub fn probe(&self) -> Result<(), Error> {
        let frame = crate::Frame {
            family: crate::Family::Ipv4,
            protocol: crate::Protocol::Udp,
            bytes: crate::frame::LEAST_IPV4,
        };
        let template = Template::new(frame, [0; 6], [0; 6])?;
        let nowhere = std::net::Ipv4Addr::UNSPECIFIED.into();
        let tuple = Tuple { source: nowhere, source_port: 0, destination: nowhere, destination_port: 0 };
        // Index 0 is the loopback interface; a state of zeros allows no frame, so the verdict is XDP_DROP.
        let make =
            Make { template, interface: 0, inject: Inject::Wire, paced: false, batch: 1, reference: None };
        let program = Program::load(make, &[(0, tuple)])?;
        program.set_state(WeirSender::zeroed());
        program.run(1)?;
        if program::count(&program.state(), shared::WEIR_ALL_SENT) == 1 {
            return Ok(());
        }
        Err(Error::Missing("this kernel took a live frame and did not run its program".into()))
    }

    /// Sends what is asked for, flows in the order given and over and over, and returns when that is done, when its time is over
    /// or when `stop` is raised (within about 5 ms).
    ///
    /// # Errors
    /// [`Error::Unfit`] if it cannot be done at all; the kernel's refusals.
    pub fn send(
        &mut self,
        cookie: u32,
        sending: &Sending,
        flows: Vec<(u32, Tuple)>,
        stop: &Stop,
    ) -> Result<Sent, Error> {
        check(sending)?;
        let path = route::of_flows(&self.link, &flows)?;
        let reference = self.reference(sending, &path);
        self.load(sending, path, reference, flows)?;
        // Only what goes there is asked for.
        let router = self.reference.as_ref().filter(|_| reference.is_some());
        let come_through = router.and_then(|r| r.come_through().ok());
        let Some(Ready { programs, .. }) = &self.ready else { unreachable!("it was just loaded") };
        let before = self.counters()?;
        check_mtu(&self.link, sending, before.mtu)?;
        let schedule = Schedule::of(sending);
        for (index, program) in programs.iter().enumerate() {
            let state = program.fresh(cookie);
            program.set_state(orders(&schedule, index, programs.len(), state, sending.stamp_every));
        }
        let parts = run_all(programs, &self.link.cpus, stop)?;
        let mut sent = sum_up(&schedule, &parts, sending);
        if let ([program], Some(router)) = (&programs[..], router) {
            let state = program.state();
            sent.spend_elsewhere(state.turns_ns);
            // Missing data about the router is no fault of the transfer: the transfer then has no pace.
            let referred = program::count(&state, shared::WEIR_REFERRED);
            if come_through.is_some_and(|before| router.took(referred, before).unwrap_or(false)) {
                sent.pace = Pace::of(&program.slices(), program.make().batch);
            }
        }
        if self.link.inject == Inject::Wire {
            sent.refused = refused(&before, || self.counters(), sent.frames)?;
            sent.frames -= sent.refused;
        }
        sent.bytes = sent.frames * u64::from(sending.frame.bytes);
        Ok(sent)
    }

    /// The interface of the reference router, where there is to be one: not with a schedule, and not with several threads, each of
    /// which would have its own pace and share the path with the others. Nor where the kernel lets none be made: frames go without.
    fn reference(&mut self, sending: &Sending, path: &Path) -> Option<u32> {
        if !self.link.reference || self.link.cpus.len() > 1 || sending.offer != Offer::Unlimited {
            return None;
        }
        let (mac, family) = (path.destination, sending.frame.family);
        if !self.reference.as_ref().is_some_and(|r| r.is(mac, family)) {
            // The old one's interface has the same name.
            self.reference = None;
            self.reference = Reference::build(mac, family).ok();
        }
        self.reference.as_ref().map(Reference::interface)
    }

    /// Loads one program for each core, unless the last transfer's do.
    fn load(
        &mut self,
        sending: &Sending,
        path: Path,
        reference: Option<u32>,
        flows: Vec<(u32, Tuple)>,
    ) -> Result<(), Error> {
        let paced = matches!(sending.offer, Offer::Rate(_));
        let make = Make {
            template: Template::new(sending.frame, path.source, path.destination)?,
            interface: path.interface,
            inject: self.link.inject,
            paced,
            batch: batch(sending.offer),
            reference,
        };
        // A thread without flows or frames would have nothing to do.
        let threads =
            (self.link.cpus.len() as u64).min(flows.len() as u64).min(sending.limit.frames) as usize;
        if let Some(ready) = &self.ready
            && ready.flows == flows
            && ready.programs.len() == threads
            && ready.programs.iter().all(|p| *p.make() == make)
        {
            return Ok(());
        }
        // The old decks go before the new ones come: they may be big.
        self.ready = None;
        let programs = (0..threads)
            .map(|index| {
                let (start, length) = share(flows.len() as u64, index, threads);
                Program::load(make.clone(), &flows[start as usize..(start + length) as usize])
            })
            .collect::<Result<_, _>>()?;
        self.ready = Some(Ready { flows, programs });
        Ok(())
    }

    fn counters(&self) -> Result<Interface, Error> {
        Ok(Rtnetlink::open()?.interface(&self.link.interface)?)
    }
}

/// Refuses what the program cannot keep to.
fn check(sending: &Sending) -> Result<(), Error> {
    let limit = sending.limit;
    if limit.frames == 0 || limit.duration.is_zero() || limit.duration > LONGEST {
        return Err(Error::Unfit(format!(
            "a limit of {} frames and {:?}: both must be above 0, and four hours are the longest",
            limit.frames, limit.duration
        )));
    }
    if !LiveSender::carries(sending.frame.bytes) {
        return Err(Error::Unfit(format!(
            "frames of {} bytes: live frames have at most {}",
            sending.frame.bytes,
            LiveSender::LONGEST
        )));
    }
    check_rate(sending.offer)
}

/// Runs in a batch: frames leave at its end, so it is short where there is a schedule to keep.
fn batch(offer: Offer) -> u32 {
    match offer {
        Offer::Unlimited => BATCH,
        Offer::Rate(rate) if rate < 200_000.0 => 1,
        Offer::Rate(_) => 16,
    }
}

/// The initial state of thread `index` of `count`: the threads take turns.
fn orders(
    schedule: &Schedule,
    index: usize,
    count: usize,
    mut state: WeirSender,
    stamp_every: u32,
) -> WeirSender {
    let one = (1u64 << shared::WEIR_INTERVAL_BITS) as f64;
    let interval = schedule.interval_ns.unwrap_or(0.0) * one;
    state.duration_ns = schedule.duration_ns;
    state.interval = (interval * count as f64).round() as u64;
    state.due = (interval * index as f64).round() as u64;
    state.frames = share(schedule.frames, index, count).1;
    state.stream = (index as u32) << shared::WEIR_SEQ_BITS;
    state.stamp_every = stamp_every;
    state.slice_length_ns = pace::slice_ns(schedule.duration_ns);
    state
}

fn sum_up(schedule: &Schedule, parts: &[Part], sending: &Sending) -> Sent {
    let work = |part: &Part| ThreadWork {
        frames: program::count(&part.state, shared::WEIR_SENT),
        refused: 0,
        first_ns: part.state.first_ns,
        last_ns: part.state.last_ns,
        last_begun_ns: part.state.last_ns,
        late_max_ns: part.state.late_max_ns,
        cpu: part.cpu,
    };
    let work: Vec<ThreadWork> = parts.iter().map(work).collect();
    // From the first run, not the first frame: a late first frame must not shorten the schedule.
    let start = parts.iter().map(|p| p.state.start_ns).min().unwrap_or(0);
    let time_up = parts.iter().any(|part| u64::from(part.state.closed) == shared::WEIR_TIME_UP);
    schedule.sum_up(sending, Engine::Xdp, start, &work, time_up)
}

/// Frames that the driver would not take, by the interface's own counters. A veth whose other end has neither GRO nor an XDP program
/// takes none, and counts none.
fn refused(
    before: &Interface,
    now: impl Fn() -> Result<Interface, Error>,
    frames: u64,
) -> Result<u64, Error> {
    /// How long the other end of a veth may take to look at its ring.
    const SETTLE: Duration = Duration::from_millis(50);
    let deadline = std::time::Instant::now() + SETTLE;
    loop {
        let after = now()?;
        let left = after.counters.tx_packets.saturating_sub(before.counters.tx_packets);
        if before.kind == "veth" && left == 0 && frames > 0 {
            if std::time::Instant::now() >= deadline {
                return Ok(frames);
            }
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let dropped = after.counters.tx_dropped.saturating_sub(before.counters.tx_dropped);
        return Ok(dropped.min(frames));
    }
}
