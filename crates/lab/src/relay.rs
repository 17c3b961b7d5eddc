//! The thread that holds the packets of one direction: when each goes on, and in which order.
//!
//! A packet's wait counts from its arrival at the router, as the kernel noted it, not from when this thread heard of it. The
//! thread sleeps until shortly before the next packet is due and spins for the rest, within a share of the time that is
//! bounded, so that under load it takes little from what is measured.

use std::collections::{HashMap, VecDeque};
use std::io::PipeReader;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_netlink::nfqueue::{Packet, Queue};
use weir_stats::Histogram;
use weir_sys::clock::{Clocks, now_ns, sleep_until};
use weir_sys::{Error as SysError, sched};

use crate::header::{Datagram, Head};
use crate::link::{Choose, Reorder};

/// Longest wait of a packet that is held for reordering when no later ones come, ns.
const HELD_AT_MOST_NS: u64 = 100_000_000;
/// Longest wait of a first fragment for the last one of its datagram, ns.
const PARKED_AT_MOST_NS: u64 = 20_000_000;
/// Interval at which the thread checks for its end while packets wait, ns.
const LOOK_NS: u64 = 20_000_000;
/// How long before a packet is due the thread stops sleeping, ns: a wake-up takes some 50 us on an idle virtual machine.
const SPIN_AT_MOST_NS: u64 = 80_000;
const SPIN_AT_LEAST_NS: u64 = 3_000;
/// Spinning may take a fifth of each such span, ns.
const SPAN_NS: u64 = 100_000_000;
const SPIN_SHARE: u64 = 5;
/// Connections whose gateway is remembered.
const MOST_CONNECTIONS: usize = 1 << 20;

/// The treatment of the packets of one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// How long each packet waits.
    pub delay: Duration,
    /// How much less or more, uniformly drawn for each packet; at most the delay. Packets keep their order.
    pub jitter: Duration,
    /// Several gateways side by side: how long packets wait in each. Empty: one, with `delay`.
    pub delays: Vec<Duration>,
    /// How a connection's gateway is chosen.
    pub choose: Choose,
    /// Which packets are overtaken.
    pub reorder: Option<Reorder>,
    /// The first fragment of a datagram goes on after its last one, which it waits for 20 ms at most.
    pub first_fragments_last: bool,
}

impl Way {
    /// True if what happens to a packet depends on its headers.
    pub(crate) fn reads(&self) -> bool {
        self.first_fragments_last || self.delays.len() > 1
    }
}

/// The measured treatment of one direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Passed {
    /// Packets that went on.
    pub packets: u64,
    /// Packets of these that were overtaken on purpose.
    pub reordered: u64,
    /// How much later than due each packet was let go, ns.
    pub lateness: Histogram,
    /// Packets that the kernel dropped because this thread was too slow: a fault of the tester.
    pub overflows: u64,
    /// Packets that took each of the gateways.
    pub gateways: Vec<u64>,
}

/// A packet that waits: its number and when it is due, ns of CLOCK_MONOTONIC.
pub(crate) type Waiting = (u32, u64);

/// State shared by the two directions of a link.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// Ends the threads.
    pub(crate) stop: AtomicBool,
    /// Changes which gateway a connection takes.
    pub(crate) seed: AtomicU64,
    /// Gateways that connections take in turn.
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    known: HashMap<u64, usize>,
    next: usize,
}

impl Common {
    /// Draws anew which gateway a connection takes. Those in turn go on where they were.
    pub(crate) fn begin(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).known.clear();
    }

    /// The gateway of a packet, out of that many.
    fn gateway(&self, head: Option<Head>, choose: Choose, of: usize) -> usize {
        let Some(head) = head.filter(|_| of > 1) else { return 0 };
        let number = head.connection(self.seed.load(Ordering::Relaxed));
        if choose == Choose::Connection {
            return (number % of as u64) as usize;
        }
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = turns.known.get(&number) {
            return *known;
        }
        if turns.known.len() >= MOST_CONNECTIONS {
            turns.known.clear();
        }
        let chosen = turns.next % of;
        turns.next = (chosen + 1) % of;
        turns.known.insert(number, chosen);
        chosen
    }
}

/// The thread's state.
pub(crate) struct Relay {
    queue: Queue,
    /// Closing its other end stops the thread.
    bell: PipeReader,
    common: Arc<Common>,
    passed: Arc<Mutex<Passed>>,
    order: Order,
    spins: Spins,
}

impl Relay {
    pub(crate) fn new(
        queue: Queue,
        bell: PipeReader,
        way: Way,
        common: Arc<Common>,
        passed: Arc<Mutex<Passed>>,
    ) -> Self {
        Relay { queue, bell, common, passed, order: Order::new(way), spins: Spins::default() }
    }

    /// Relays until it is stopped; then everything that waits goes on.
    pub(crate) fn run(mut self) -> Result<(), SysError> {
        // Timers of an ordinary thread are up to 50 us late by design.
        sched::set_timer_slack_ns(1)?;
        // Without the privilege for this the thread runs later, and its lateness is measured.
        let _ = sched::go_first();
        loop {
            let ending = self.common.stop.load(Ordering::Relaxed);
            let wait = if ending { Some(Duration::ZERO) } else { self.sleep() };
            let (order, common) = (&mut self.order, &self.common);
            let bell = self.bell.as_fd();
            self.queue.receive(wait, bell, |packet| order.arrive(&packet, common))?;
            if !ending {
                self.spin();
            }
            self.release(ending)?;
            if ending {
                return Ok(());
            }
        }
    }

    /// Sleeps as long as neither a packet that waits nor one that comes meanwhile can be due, without being woken by those
    /// that come: the kernel notes when they did. How long to wait for packets then.
    fn sleep(&mut self) -> Option<Duration> {
        // A relay through which nothing passes costs nothing.
        let next = self.order.next_due()?;
        let now = now_ns();
        let early = if self.spins.may(now) { self.spins.early_ns() } else { 0 };
        let wake = next.saturating_sub(early).min(now + LOOK_NS);
        if self.order.least_delay_ns <= SPIN_AT_MOST_NS {
            // A new packet may be due at once.
            return Some(Duration::from_nanos(wake.saturating_sub(now)));
        }
        let wake = wake.min(now + self.order.least_delay_ns - early);
        if wake > now {
            let woken = sleep_until(wake, 0);
            self.spins.woken_late(woken - wake);
        }
        Some(Duration::ZERO)
    }

    /// Waits for the next packet without sleeping, if it is due soon.
    fn spin(&mut self) {
        let Some(next) = self.order.next_due() else { return };
        let start = now_ns();
        if next > start && next - start <= self.spins.early_ns() && self.spins.may(start) {
            self.spins.add(sleep_until(next, SPIN_AT_MOST_NS) - start);
        }
    }

    /// Lets go what is due.
    fn release(&mut self, all: bool) -> Result<(), SysError> {
        let now = now_ns();
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = self.order.due(now, all, &mut passed);
        drop(passed);
        let accepted = match numbers.last() {
            None => Ok(()),
            Some(last) if self.order.in_order => self.queue.accept_up_to(*last),
            Some(_) => self.queue.accept_each(&numbers),
        };
        accepted.map_err(|e| SysError::new("let packets go on", e))
    }
}

/// How long before its time a thread must stop sleeping, and what it spent on that.
#[derive(Debug, Default)]
struct Spins {
    since_ns: u64,
    spent_ns: u64,
    /// How late sleeps end, a mean that forgets; a core that idles deeply wakes late, a busy one at once.
    late_ns: u64,
}

impl Spins {
    fn may(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since_ns) > SPAN_NS {
            (self.since_ns, self.spent_ns) = (now, 0);
        }
        self.spent_ns < SPAN_NS / SPIN_SHARE
    }

    fn add(&mut self, ns: u64) {
        self.spent_ns += ns;
    }

    fn woken_late(&mut self, ns: u64) {
        self.late_ns = (7 * self.late_ns + ns.min(SPIN_AT_MOST_NS)) / 8;
    }

    fn early_ns(&self) -> u64 {
        (self.late_ns * 3 / 2 + SPIN_AT_LEAST_NS).min(SPIN_AT_MOST_NS)
    }
}

/// Which packets wait until when.
pub(crate) struct Order {
    way: Way,
    /// One per gateway, each in the order of arrival, which is that of the times when they are due.
    lines: Vec<VecDeque<Waiting>>,
    /// First fragments that wait for the last one of their datagram.
    parked: HashMap<Datagram, Waiting>,
    held: Option<Held>,
    random: u64,
    /// Packets that went on or are held.
    seen: u64,
    /// First fragments that went last since the counters were read.
    swapped: u64,
    /// Packets go on in the order of their numbers.
    in_order: bool,
    /// The least that any packet waits.
    least_delay_ns: u64,
    /// Packets that took each gateway since the counters were read.
    taken: Vec<u64>,
}

/// The packet that lets others overtake it.
struct Held {
    number: u32,
    /// Later packets that still have to pass.
    behind: u32,
    /// When it goes on in any case.
    until_ns: u64,
}

impl Order {
    pub(crate) fn new(way: Way) -> Self {
        let gateways = way.delays.len().max(1);
        let least = way.delays.iter().min().copied().unwrap_or(way.delay);
        Order {
            lines: vec![VecDeque::new(); gateways],
            parked: HashMap::new(),
            held: None,
            random: 0,
            seen: 0,
            swapped: 0,
            in_order: gateways == 1 && way.reorder.is_none() && !way.first_fragments_last,
            taken: vec![0; gateways],
            least_delay_ns: nanoseconds(least.saturating_sub(way.jitter)),
            way,
        }
    }

    /// When something has to be done next.
    fn next_due(&self) -> Option<u64> {
        let heads = self.lines.iter().filter_map(|line| line.front().map(|(_, due)| *due));
        let parked = self.parked.values().map(|(_, due)| due + PARKED_AT_MOST_NS);
        heads.chain(parked).chain(self.held.as_ref().map(|h| h.until_ns)).min()
    }

    fn arrive(&mut self, packet: &Packet<'_>, common: &Common) {
        // Read for each packet, because the clock may be set while no packet arrives.
        let clocks = Clocks::read();
        let now = clocks.monotonic_ns;
        // The kernel rounds down: the end of that microsecond, so that no packet is early.
        let arrived = packet.arrived_real_ns.map_or(now, |real| clocks.monotonic(real + 1000).min(now));
        let head = Head::read(packet.headers);
        let gateway = common.gateway(head, self.way.choose, self.lines.len());
        self.enter(packet.number, arrived, head, gateway);
    }

    /// A packet begins to wait.
    fn enter(&mut self, number: u32, arrived: u64, head: Option<Head>, gateway: usize) {
        let delay = self.way.delays.get(gateway).copied().unwrap_or(self.way.delay);
        let due = arrived.saturating_add(nanoseconds(delay)).saturating_add_signed(self.jitter());
        self.taken[gateway] += 1;
        let line = &mut self.lines[gateway];
        // None leaves before an earlier one of the same gateway.
        let due = due.max(line.back().map_or(0, |(_, earlier)| *earlier));
        let fragment = head.filter(|_| self.way.first_fragments_last).and_then(|h| Some((h, h.fragment?)));
        match fragment {
            Some((head, fragment)) if fragment.first && !fragment.last => {
                // One that was parked under that name before will never see the end of its datagram.
                line.extend(self.parked.insert(head.datagram(), (number, due)).map(|(old, _)| (old, due)));
            }
            Some((head, fragment)) if fragment.last => {
                line.push_back((number, due));
                if let Some((first, _)) = self.parked.remove(&head.datagram()) {
                    line.push_back((first, due));
                    self.swapped += 1;
                }
            }
            _ => line.push_back((number, due)),
        }
    }

    /// Uniform within the jitter to either side, ns.
    fn jitter(&mut self) -> i64 {
        let jitter = nanoseconds(self.way.jitter);
        if jitter == 0 {
            return 0;
        }
        let width = u128::from(2 * jitter + 1);
        let drawn = (u128::from(split_mix(&mut self.random)) * width) >> 64;
        // Both are below 2^63: a jitter is 10 s at most.
        drawn as i64 - jitter as i64
    }

    /// The packets that go on now, in their order; with `all` those that wait, too.
    fn due(&mut self, now: u64, all: bool, passed: &mut Passed) -> Vec<u32> {
        let late: Vec<Datagram> = self
            .parked
            .iter()
            .filter(|(_, (_, due))| all || due + PARKED_AT_MOST_NS <= now)
            .map(|(datagram, _)| *datagram)
            .collect();
        // They are not late: nothing came for which they waited.
        let waited = |(number, _)| (number, now);
        let mut release: Vec<Waiting> =
            late.iter().filter_map(|datagram| self.parked.remove(datagram).map(waited)).collect();
        while let Some(line) = self
            .lines
            .iter_mut()
            .filter(|line| line.front().is_some_and(|(_, due)| all || *due <= now))
            .min_by_key(|line| line.front().map(|(_, due)| *due))
        {
            release.extend(line.pop_front());
        }
        for (_, due) in &release {
            passed.lateness.record(now.saturating_sub(*due));
        }
        passed.packets += release.len() as u64;
        passed.gateways.resize(self.taken.len(), 0);
        for (total, taken) in passed.gateways.iter_mut().zip(&mut self.taken) {
            *total += std::mem::take(taken);
        }
        passed.reordered += std::mem::take(&mut self.swapped);
        if self.way.reorder.is_some() {
            return self.reordered(&release, passed, now, all);
        }
        release.into_iter().map(|(number, _)| number).collect()
    }

    /// The order in which due packets go on, given the one that is held; `all` lets that one go too.
    fn reordered(&mut self, release: &[Waiting], passed: &mut Passed, now: u64, all: bool) -> Vec<u32> {
        let Some(reorder) = self.way.reorder else { return release.iter().map(|(n, _)| *n).collect() };
        let held = &mut self.held;
        let mut order = Vec::with_capacity(release.len() + 1);
        for (number, _) in release {
            self.seen += 1;
            if held.is_none() && self.seen.is_multiple_of(reorder.every.into()) {
                *held =
                    Some(Held { number: *number, behind: reorder.behind, until_ns: now + HELD_AT_MOST_NS });
                continue;
            }
            order.push(*number);
            if let Some(h) = held.as_mut() {
                h.behind -= 1;
                if h.behind == 0 {
                    order.push(h.number);
                    passed.reordered += 1;
                    *held = None;
                }
            }
        }
        if let Some(h) = held.take_if(|h| all || h.until_ns <= now) {
            // It counts as overtaken if anything passed it.
            passed.reordered += u64::from(h.behind < reorder.behind);
            order.push(h.number);
        }
        order
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): even and fast, which is all that is asked for.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
