//! A gateway and a tester of known properties. Each of their actions follows from a formula, so the truth of every result is
//! known.

use std::collections::VecDeque;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_stats::Histogram;

use crate::pace::Pace;
use crate::testbed::{Testbed, TestbedError};
use crate::transfer::{Engine, Offer, Order, Received, Sending, Sent, Transfer, TransferOutcome, Way};

/// Time of a message to a host.
const MESSAGE: Duration = Duration::from_millis(30);

/// Delay of nearly all frames, and of two in every thousand, ns.
pub(super) const DELAY_NS: (u64, u64) = (20_000, 100_000);

/// Stands for a connection of others.
const OTHERS: u32 = u32::MAX;

/// The gateway, and the two ends of the tester.
pub(super) struct Simulated {
    /// Frames of existing connections that the gateway forwards a second, of both directions together.
    pub forwards_pps: f64,
    /// New connections that it makes a second.
    pub opens_per_s: f64,
    /// How it breaks down under overload: of k times its capacity it carries k^-collapse of the capacity.
    pub collapse: f64,
    /// Frames that wait while it is busy.
    pub buffer: f64,
    /// One of so many frames is lost whatever the load.
    pub loses_every: Option<u64>,
    /// Flows whose number is a multiple of this are refused: of each nothing comes through, ever.
    pub refuses_every: Option<u32>,
    /// It keeps a table of connections.
    pub has_table: bool,
    /// Entries that the table holds.
    pub holds: usize,
    /// A full table drops its oldest entry for a new one; otherwise the new connection's frame is dropped.
    pub evicts: bool,
    /// Entries that come back after a flush.
    pub sticky: usize,
    /// Time of a flush itself, and of each entry.
    pub flush: (Duration, Duration),
    /// The rate that the sender reaches without a set rate, and the greatest rate that it keeps up.
    pub unlimited_pps: f64,
    pub paced_pps: f64,
    /// Chance that a transfer's sender slips.
    pub slips: f64,
    /// How late the sender is at worst, ns.
    pub late_ns: u64,
    /// The measured pace of its core, if it has no schedule.
    pub pace: Option<Pace>,
    /// How long that measuring takes, ns, which is none of the transfer's time.
    pub elsewhere_ns: u64,

    /// All transfers so far.
    pub made: Vec<Transfer>,
    /// Simulated time.
    pub clock: Duration,
    /// A frame that was meant for an existing connection would have made one, or the other way round.
    pub mixed_up: bool,
    /// Its state.
    pub table: VecDeque<u32>,
    pub present: Vec<bool>,
    pub learnt: Vec<bool>,
    pub random: ChaCha8Rng,
}

impl Default for Simulated {
    fn default() -> Self {
        Simulated {
            forwards_pps: 1e6,
            opens_per_s: 400e3,
            collapse: 0.0,
            buffer: 0.0,
            loses_every: None,
            refuses_every: None,
            has_table: true,
            holds: usize::MAX,
            evicts: false,
            sticky: 0,
            flush: (Duration::from_millis(1), Duration::from_nanos(100)),
            unlimited_pps: 3e6,
            paced_pps: 3e6,
            slips: 0.0,
            late_ns: 0,
            pace: None,
            elsewhere_ns: 0,
            made: Vec::new(),
            clock: Duration::ZERO,
            mixed_up: false,
            table: VecDeque::new(),
            present: Vec::new(),
            learnt: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(1),
        }
    }
}

impl Testbed for Simulated {
    fn flush(&mut self) -> Result<(Duration, Option<(u64, u64)>), TestbedError> {
        self.clock += MESSAGE;
        let before = self.table.len();
        let took = self.flush.0 + self.flush.1 * before as u32;
        self.table.clear();
        self.present.clear();
        // Connections of others come back at once.
        self.table.extend((0..self.sticky).map(|_| OTHERS));
        self.clock += took;
        Ok((took, self.has_table.then_some((before as u64, self.table.len() as u64))))
    }

    fn tracked(&mut self) -> Result<Option<u64>, TestbedError> {
        self.clock += MESSAGE;
        Ok(self.has_table.then_some(self.table.len() as u64))
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<TransferOutcome, TestbedError> {
        self.made.push(transfer.clone());
        if transfer.forget {
            self.learnt.clear();
        }
        let ways = 1.0 + f64::from(transfer.egress.is_some() && transfer.ingress.is_some());
        let egress = transfer.egress.as_ref().map(|s| self.one_way(s, Way::Egress, ways));
        let ingress = transfer.ingress.as_ref().map(|s| self.one_way(s, Way::Ingress, ways));
        let lasted = [&egress, &ingress].into_iter().flatten().map(|(sent, _)| sent.duration_ns).max();
        self.clock += Duration::from_nanos(lasted.unwrap_or(0)) + transfer.drain + MESSAGE;
        Ok(TransferOutcome { egress, ingress })
    }
}

impl Simulated {
    fn one_way(&mut self, sending: &Sending, way: Way, ways: f64) -> (Sent, Received) {
        let (offered, slip_ratio) = self.pace(sending);
        let sent = self.sent(sending, offered, slip_ratio);
        let (capacity, arrived) = match (sending.tuples.order, way) {
            (Order::Permutation, Way::Egress) => (self.opens_per_s, self.open(sending, sent.frames, offered)),
            (Order::Permutation, Way::Ingress) => {
                let back = |flow: usize| self.learnt[flow] && (!self.has_table || self.present[flow]);
                (self.forwards_pps, (0..self.learnt.len()).filter(|f| back(*f)).count() as u64)
            }
            (Order::Random, _) => {
                let open = self.learnt.iter().filter(|l| **l).count();
                let refused = self.refuses_every.map_or(0, |n| sending.tuples.flows.div_ceil(n));
                self.mixed_up |= open < (sending.tuples.flows - refused) as usize;
                let capacity = self.under(self.forwards_pps / ways, offered);
                let carried = through(capacity, self.buffer / ways, sent.frames, offered);
                // Evenly drawn, so as many of the frames are of open flows.
                (capacity, carried * open as u64 / u64::from(sending.tuples.flows))
            }
        };
        let arrived = arrived
            - self.loses_every.filter(|_| sending.tuples.order == Order::Random).map_or(0, |n| arrived / n);
        let out = offered.min(capacity);
        let received = Received {
            frames: arrived,
            flows: self.learnt.iter().filter(|l| **l).count() as u64,
            duration_ns: (arrived.saturating_sub(1) as f64 / out * 1e9).round() as u64 + sent.elsewhere_ns,
            delay: delay(arrived, sending.stamp_every),
            ..Received::default()
        };
        (sent, received)
    }

    /// Returns the rest of a capacity under a load.
    fn under(&self, capacity: f64, offered: f64) -> f64 {
        if offered > capacity { capacity * (capacity / offered).powf(self.collapse) } else { capacity }
    }

    /// The rate that the sender reaches, and its slip.
    fn pace(&mut self, sending: &Sending) -> (f64, f64) {
        match sending.offer {
            Offer::Unlimited => (self.unlimited_pps, 0.0),
            Offer::Rate(rate) if rate > self.paced_pps * (1.0 + 1e-9) => {
                (self.paced_pps, rate / self.paced_pps - 1.0)
            }
            Offer::Rate(rate) if self.random.random::<f64>() < self.slips => (rate / 1.01, 0.01),
            Offer::Rate(rate) => (rate, 0.0),
        }
    }

    fn sent(&self, sending: &Sending, rate: f64, slip_ratio: f64) -> Sent {
        let within = (rate * sending.limit.duration.as_secs_f64()) as u64;
        let frames = sending.limit.frames.min(within);
        Sent {
            frames,
            stamped: sending.stamped(frames),
            bytes: frames * u64::from(sending.frame.bytes),
            duration_ns: (frames.saturating_sub(1) as f64 / rate * 1e9).round() as u64,
            elsewhere_ns: if sending.offer == Offer::Unlimited { self.elsewhere_ns } else { 0 },
            late_max_ns: if sending.offer == Offer::Unlimited { 0 } else { self.late_ns },
            slip_ratio,
            refused: 0,
            cpu_s: frames as f64 * 100e-9,
            engine: Engine::Xdp,
            pace: self.pace.filter(|_| sending.offer == Offer::Unlimited),
        }
    }

    /// New connections, in the order of their numbers.
    fn open(&mut self, sending: &Sending, frames: u64, offered: f64) -> u64 {
        let all = sending.tuples.flows as usize;
        // Another turn of a fill meets what earlier turns opened, and nothing else.
        let met = if self.learnt.len() == all { self.learnt.iter().filter(|l| **l).count() } else { 0 };
        self.mixed_up |= self.table.len() > self.sticky + met || frames > u64::from(sending.tuples.flows);
        self.learnt.resize(all, false);
        self.present.resize(all, false);
        let mut arrived = 0;
        for flow in 0..through(self.under(self.opens_per_s, offered), self.buffer, frames, offered) as u32 {
            if self.present[flow as usize] {
                arrived += 1;
                continue;
            }
            if self.refuses_every.is_some_and(|n| flow.is_multiple_of(n)) {
                continue;
            }
            if self.table.len() >= self.holds {
                if !self.evicts {
                    continue;
                }
                let oldest = self.table.pop_front().expect("a full table is not empty");
                self.present[oldest as usize] = false;
            }
            if self.has_table {
                self.table.push_back(flow);
                self.present[flow as usize] = true;
            }
            self.learnt[flow as usize] = true;
            arrived += 1;
        }
        arrived
    }
}

/// Returns how many of so many evenly offered frames pass a capacity and a buffer.
fn through(capacity: f64, buffer: f64, frames: u64, offered: f64) -> u64 {
    // A rate that equals the capacity is carried whole, rounding or not.
    let carried = capacity / offered * frames as f64 + buffer;
    frames.min((carried * (1.0 + 1e-9)) as u64)
}

fn delay(frames: u64, stamp_every: u32) -> Histogram {
    let mut delay = Histogram::new();
    if let Some(stamped) = frames.checked_div(stamp_every.into()) {
        let slow = stamped / 500;
        delay.record_n(DELAY_NS.0, stamped - slow);
        delay.record_n(DELAY_NS.1, slow);
    }
    delay
}
