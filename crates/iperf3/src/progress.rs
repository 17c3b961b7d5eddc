//! The state that the threads of one test's streams share, and the counters of each thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::error::Error;

/// Counters of one stream. Its own thread is the only one that writes; everybody may read. On a cache line of its own, so that
/// no stream slows down another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    bytes: AtomicU64,
    packets: AtomicU64,
    lost: AtomicU64,
    out_of_order: AtomicU64,
    duplicates: AtomicU64,
    dropped_here: AtomicU64,
    jitter_bits: AtomicU64,
}

/// The values of the counters at one time, from the stream's beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counts {
    /// Payload bytes sent or received.
    pub(super) bytes: u64,
    /// Datagrams: sent, or the greatest number that came.
    pub(super) packets: u64,
    /// Numbers up to the greatest that did not come.
    pub(super) lost: u64,
    /// Came after a greater number.
    pub(super) out_of_order: u64,
    /// Came again.
    pub(super) duplicates: u64,
    /// Lost datagrams that the receiving socket's own full buffer dropped.
    pub(super) dropped_here: u64,
    /// Jitter of RFC 1889, seconds.
    pub(super) jitter_s: f64,
}

impl Counters {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            bytes: self.bytes.load(Relaxed),
            packets: self.packets.load(Relaxed),
            lost: self.lost.load(Relaxed),
            out_of_order: self.out_of_order.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            dropped_here: self.dropped_here.load(Relaxed),
            jitter_s: f64::from_bits(self.jitter_bits.load(Relaxed)),
        }
    }

    /// By the stream's own thread only.
    #[inline]
    pub(super) fn add_bytes(&self, n: u64) {
        self.bytes.store(self.bytes.load(Relaxed) + n, Relaxed);
    }

    /// By the stream's own thread only.
    #[inline]
    pub(super) fn set(&self, counts: Counts) {
        self.bytes.store(counts.bytes, Relaxed);
        self.packets.store(counts.packets, Relaxed);
        self.lost.store(counts.lost, Relaxed);
        self.out_of_order.store(counts.out_of_order, Relaxed);
        self.duplicates.store(counts.duplicates, Relaxed);
        self.dropped_here.store(counts.dropped_here, Relaxed);
        self.jitter_bits.store(counts.jitter_s.to_bits(), Relaxed);
    }
}

/// Bytes in one direction that end the test.
#[derive(Debug)]
struct Goal {
    bytes: u64,
    /// Taken so far; nothing counts before the omitted time is over.
    taken: AtomicU64,
    counting: AtomicBool,
}

/// One test, as the threads of its streams see it.
#[derive(Debug)]
pub(super) struct RunProgress {
    sent_enough: AtomicBool,
    ending: AtomicBool,
    sent: Option<Goal>,
    received: Option<Goal>,
    reached: AtomicBool,
    senders: AtomicUsize,
    bell: OwnedFd,
    failed: Mutex<Option<Error>>,
}

impl RunProgress {
    /// A test that `goal_bytes` end, in whichever direction they are there first, or someone else.
    pub(super) fn new(goal_bytes: Option<u64>, omits: bool) -> Result<RunProgress, Error> {
        let goal = || {
            goal_bytes.map(|bytes| Goal {
                bytes,
                taken: AtomicU64::new(0),
                counting: AtomicBool::new(!omits),
            })
        };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::Io { what: "make an eventfd", source: e.into() })?;
        Ok(RunProgress {
            sent_enough: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            sent: goal(),
            received: goal(),
            reached: AtomicBool::new(false),
            senders: AtomicUsize::new(0),
            bell,
            failed: Mutex::new(None),
        })
    }

    /// Rung when the goal is reached, or a stream failed.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell was heard: it is silent until it is rung again.
    pub(super) fn hear(&self) {
        // Nothing to read means that it was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn ring(&self) {
        // Only a full counter could fail, and then the bell is rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Ask the senders to end. Receivers go on, so that a far end that is in the middle of a write is not left hanging.
    pub(super) fn end_sending(&self) {
        self.sent_enough.store(true, Relaxed);
    }

    /// True if a sender is to end.
    #[inline]
    pub(super) fn sent_enough(&self) -> bool {
        self.sent_enough.load(Relaxed)
    }

    /// Ask every thread to end.
    pub(super) fn end(&self) {
        self.end_sending();
        self.ending.store(true, Relaxed);
    }

    #[inline]
    pub(super) fn ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    /// The bytes that end the test are there.
    pub(super) fn reached(&self) -> bool {
        self.reached.load(Relaxed)
    }

    /// From now on bytes count for the goal.
    pub(super) fn omitted(&self) {
        for goal in [&self.sent, &self.received].into_iter().flatten() {
            goal.counting.store(true, Relaxed);
        }
    }

    /// A sender asks for a write of `want` bytes; false: the goal is given out.
    #[inline]
    pub(super) fn claim(&self, want: u64) -> bool {
        let Some(goal) = self.sent.as_ref().filter(|g| g.counting.load(Relaxed)) else { return true };
        goal.taken.fetch_add(want, Relaxed) < goal.bytes
    }

    /// A receiver got so many.
    #[inline]
    pub(super) fn got(&self, bytes: u64) {
        let Some(goal) = self.received.as_ref().filter(|g| g.counting.load(Relaxed)) else { return };
        if goal.taken.fetch_add(bytes, Relaxed) + bytes >= goal.bytes && !self.reached.swap(true, Relaxed) {
            self.ring();
        }
    }

    /// A sender begins.
    pub(super) fn sender_begins(&self) {
        self.senders.fetch_add(1, Relaxed);
    }

    /// A sender has sent its part. The last one to do so ends a test that has a goal.
    pub(super) fn sender_ended(&self) {
        if self.senders.fetch_sub(1, Relaxed) == 1 && self.sent.is_some() {
            self.reached.store(true, Relaxed);
            self.ring();
        }
    }

    /// A stream cannot go on. The first such is kept.
    pub(super) fn fail(&self, error: Error) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.ring();
    }

    /// Returns the failure, once.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_given_the_goal_and_not_a_write_more() {
        let progress = RunProgress::new(Some(1200), false).unwrap();
        progress.sender_begins();
        assert_eq!([progress.claim(600), progress.claim(600), progress.claim(600)], [true, true, false]);
        assert!(!progress.reached());
        progress.sender_ended();
        assert!(progress.reached());
        let endless = RunProgress::new(None, false).unwrap();
        assert!(endless.claim(600));
        endless.got(u64::MAX / 2);
        endless.sender_begins();
        endless.sender_ended();
        assert!(!endless.reached());
    }

    #[test]
    fn receivers_reach_the_goal_and_what_is_omitted_does_not_count() {
        let progress = RunProgress::new(Some(1000), true).unwrap();
        progress.got(5000);
        assert!(progress.claim(5000));
        assert!(!progress.reached());
        progress.omitted();
        progress.got(999);
        assert!(!progress.reached());
        progress.got(1);
        assert!(progress.reached());
    }
}
