//! Figures of an end so far, for a watcher while it runs.
//!
//! Each stream's thread is the only writer of its own counters, with plain stores. The hot path computes nothing for a watcher:
//! an unwatched observer costs a store where one is already made to count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

use crate::Direction;

/// Times that are kept for a watcher who does not take them: 8 MiB.
const MOST_TIMES: usize = 1 << 20;

/// Times for which there is room without more memory: those of 50 ms at the highest rates that loopback has.
const ROOM: usize = 16 << 10;

/// Times that a thread keeps to itself before it hands them over, and for how long, ns.
const BATCH: usize = 256;
const BATCH_NS: u64 = 100_000_000;

/// Collects what the threads of one end tell. The default one is not watched.
#[derive(Debug, Clone, Default)]
pub struct Observer(Option<Arc<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    flows: Mutex<Vec<Arc<Flow>>>,
    times: Mutex<Vec<u64>>,
}

/// One stream's counters at this end, or those of all operations of a thread.
#[derive(Debug)]
pub(crate) struct Flow {
    way: Direction,
    number: u32,
    sends: bool,
    pub(crate) bytes: Counter,
    pub(crate) packets: Counter,
    pub(crate) lost: Counter,
    pub(crate) reordered: Counter,
    pub(crate) jitter_ns: Counter,
    pub(crate) retransmits: Counter,
    pub(crate) rtt_ns: Counter,
    pub(crate) cwnd: Counter,
    pub(crate) ok: Counter,
    pub(crate) failed: Counter,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Count more.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        // One writer: no locked instruction is needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replace the count.
    #[inline]
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One stream's counters, since its beginning and with its warm-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowFigures {
    /// Which way its data goes.
    pub way: Direction,
    /// Number of the stream in its direction, from 0.
    pub number: u32,
    /// This end sends it.
    pub sends: bool,
    /// Payload bytes sent or received.
    pub bytes: u64,
    /// Datagrams sent or received, without further copies.
    pub packets: u64,
    /// Datagrams that are missing so far among those that came (receiver).
    pub lost: u64,
    /// Datagrams that came after one with a greater number (receiver).
    pub reordered: u64,
    /// The estimator of RFC 3550 section 6.4.1, ns (receiver).
    pub jitter_ns: u64,
    /// Segments sent again, since the connection began (sender; updated ten times a second).
    pub retransmits: u64,
    /// Smoothed RTT, ns; 0 if not known (updated ten times a second).
    pub rtt_ns: u64,
    /// Congestion window, segments (sender; updated ten times a second).
    pub cwnd: u64,
    /// Operations that were completed in the measuring window.
    pub ok: u64,
    /// Operations that failed in the measuring window.
    pub failed: u64,
}

impl Observer {
    /// One that is watched.
    pub fn watched() -> Self {
        Observer(Some(Arc::default()))
    }

    /// True if it is watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.is_some()
    }

    /// Counters for a stream.
    pub(crate) fn flow(&self, way: Direction, number: u32, sends: bool) -> Arc<Flow> {
        let flow = Arc::new(Flow {
            way,
            number,
            sends,
            bytes: Counter::default(),
            packets: Counter::default(),
            lost: Counter::default(),
            reordered: Counter::default(),
            jitter_ns: Counter::default(),
            retransmits: Counter::default(),
            rtt_ns: Counter::default(),
            cwnd: Counter::default(),
            ok: Counter::default(),
            failed: Counter::default(),
        });
        if let Some(shared) = &self.0 {
            lock(&shared.flows).push(flow.clone());
        }
        flow
    }

    /// The counters of all streams so far, in order of direction and number.
    pub fn flows(&self) -> Vec<FlowFigures> {
        let Some(shared) = &self.0 else { return Vec::new() };
        let mut all: Vec<FlowFigures> = lock(&shared.flows).iter().map(|f| f.figures()).collect();
        order::by_key(&mut all, |f| (f.way == Direction::Ingress, f.number));
        all
    }

    /// The times of operations in ns, round trips or connects, that came since the last call, in order of their coming.
    pub fn take_times(&self) -> Vec<u64> {
        let Some(shared) = &self.0 else { return Vec::new() };
        // Made before the lock is taken, so that those who measure find room without asking for memory.
        let room = Vec::with_capacity(ROOM);
        std::mem::replace(&mut *lock(&shared.times), room)
    }

    fn add_times(&self, new: &mut Vec<u64>) {
        if let Some(shared) = &self.0 {
            let mut times = lock(&shared.times);
            // A watcher that does not read the times has no use for more.
            let room = MOST_TIMES.saturating_sub(times.len());
            new.truncate(room);
            times.append(new);
        }
        new.clear();
    }
}

impl Flow {
    fn figures(&self) -> FlowFigures {
        FlowFigures {
            way: self.way,
            number: self.number,
            sends: self.sends,
            bytes: self.bytes.get(),
            packets: self.packets.get(),
            lost: self.lost.get(),
            reordered: self.reordered.get(),
            jitter_ns: self.jitter_ns.get(),
            retransmits: self.retransmits.get(),
            rtt_ns: self.rtt_ns.get(),
            cwnd: self.cwnd.get(),
            ok: self.ok.get(),
            failed: self.failed.get(),
        }
    }
}

/// One thread's times of operations on their way to the watcher.
#[derive(Debug)]
pub(crate) struct Times {
    observer: Observer,
    batch: Vec<u64>,
    since_ns: u64,
}

impl Times {
    pub(crate) fn new(observer: &Observer) -> Self {
        let batch = Vec::with_capacity(if observer.is_watched() { BATCH } else { 0 });
        Times { observer: observer.clone(), batch, since_ns: 0 }
    }

    /// An operation that was over at about `now_ns` took `took_ns`.
    #[inline]
    pub(crate) fn push(&mut self, now_ns: u64, took_ns: u64) {
        if self.observer.is_watched() {
            self.batch.push(took_ns);
            if self.batch.len() == BATCH || now_ns.wrapping_sub(self.since_ns) >= BATCH_NS {
                self.since_ns = now_ns;
                self.observer.add_times(&mut self.batch);
            }
        }
    }
}

impl Drop for Times {
    fn drop(&mut self) {
        self.observer.add_times(&mut self.batch);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds the lock can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_seen_while_they_grow() {
        let observer = Observer::watched();
        let back = observer.flow(Direction::Ingress, 0, false);
        let flow = observer.flow(Direction::Egress, 1, true);
        flow.bytes.add(5);
        flow.bytes.add(7);
        back.lost.set(3);
        let seen = observer.flows();
        assert_eq!((seen[0].number, seen[0].bytes, seen[0].sends), (1, 12, true));
        assert_eq!((seen[1].way, seen[1].lost), (Direction::Ingress, 3));
    }

    #[test]
    fn times_come_in_batches_and_all_of_them() {
        let observer = Observer::watched();
        let mut times = Times::new(&observer);
        for i in 0..600u64 {
            times.push(1_000_000_000, i);
        }
        let first = observer.take_times();
        assert!(first.len() >= 512 && first.len() < 600, "{}", first.len());
        drop(times);
        let rest = observer.take_times();
        assert_eq!([first, rest].concat(), (0..600).collect::<Vec<u64>>());
    }

    #[test]
    fn who_is_not_watched_keeps_nothing_and_who_is_forgotten_not_much() {
        let silent = Observer::default();
        silent.flow(Direction::Egress, 0, true).bytes.add(1);
        let mut times = Times::new(&silent);
        times.push(1, 1);
        assert_eq!(times.batch.capacity(), 0);
        assert!(silent.flows().is_empty() && silent.take_times().is_empty());
        let forgotten = Observer::watched();
        let mut times = Times::new(&forgotten);
        for i in 0..(MOST_TIMES as u64 + 1000) {
            times.push(0, i);
        }
        assert_eq!(forgotten.take_times().len(), MOST_TIMES);
    }
}
