//! Open-loop schedules: what is due when, and how late it left.
//!
//! The k-th departure is due at start + k x interval whatever happened to those before it, so a stall is made up for and
//! shows as lateness instead of as a lower rate (no coordinated omission).

use weir_stats::Histogram;
use weir_sys::clock::{Clock, NS_PER_S};

use crate::Stop;

/// Waits shorter than this spin: a sleep costs about as much (two context switches and a timer interrupt).
const SPIN_NS: u64 = 20_000;

/// Longest sleep between two looks at the stop flag.
const NAP_NS: u64 = 20_000_000;

/// Departures at a fixed rate.
#[derive(Debug)]
pub(crate) struct Schedule {
    start_ns: u64,
    interval_ns: f64,
    next: u64,
    lateness: Histogram,
}

impl Schedule {
    /// `rate` departures per second, the first at `start_ns`.
    pub(crate) fn new(start_ns: u64, rate: f64) -> Self {
        Schedule { start_ns, interval_ns: NS_PER_S as f64 / rate, next: 0, lateness: Histogram::new() }
    }

    /// When the next departure is due, ns.
    pub(crate) fn due_ns(&self) -> u64 {
        // Exact to a nanosecond for 2^53 ns, 104 days.
        self.start_ns + (self.next as f64 * self.interval_ns).round() as u64
    }

    /// Wait for the next departure and take it; `None` if `stop` was raised meanwhile or it is due at `until_ns` or
    /// later. Returns the time.
    pub(crate) fn wait(&mut self, clock: &impl Clock, until_ns: u64, stop: impl Fn() -> bool) -> Option<u64> {
        let due = self.due_ns();
        if due >= until_ns {
            return None;
        }
        let mut now = clock.now_ns();
        while now < due {
            if stop() {
                return None;
            }
            let left = due - now;
            if left > SPIN_NS {
                now = clock.sleep_until(now + (left - SPIN_NS / 2).min(NAP_NS));
            } else {
                std::hint::spin_loop();
                now = clock.now_ns();
            }
        }
        self.next += 1;
        Some(now)
    }

    /// Note that a departure that was due at `due_ns` left at `now_ns`, and stood for `n` datagrams.
    pub(crate) fn left(&mut self, due_ns: u64, now_ns: u64, n: u64) {
        self.lateness.record_n(now_ns.saturating_sub(due_ns), n);
    }

    /// How late the departures noted were, ns.
    pub(crate) fn into_lateness(self) -> Histogram {
        self.lateness
    }
}

/// A clock whose sleeps do not spin: with [`crate::socket::precise_sleeps`] they end within some microseconds, and a
/// spinning sender would take the CPU that the path under test needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sleeping;

impl Clock for Sleeping {
    #[inline]
    fn now_ns(&self) -> u64 {
        weir_sys::clock::now_ns()
    }

    fn sleep_until(&self, deadline_ns: u64) -> u64 {
        weir_sys::clock::sleep_until(deadline_ns, 0)
    }
}

/// Two reasons to end, looked at together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    /// The trial's.
    pub stop: Stop,
    /// This end's own: the runner said that the other end is done.
    pub done: Stop,
}

impl Ending {
    /// True if either was raised.
    #[inline]
    pub(crate) fn raised(&self) -> bool {
        self.stop.raised() || self.done.raised()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A clock that moves only when it is slept on or looked at.
    struct Fake(Cell<u64>);

    impl Clock for Fake {
        fn now_ns(&self) -> u64 {
            self.0.set(self.0.get() + 100);
            self.0.get()
        }
        fn sleep_until(&self, deadline_ns: u64) -> u64 {
            self.0.set(deadline_ns + 5_000);
            self.0.get()
        }
    }

    #[test]
    fn keeps_the_rate_and_does_not_drift() {
        let clock = Fake(Cell::new(0));
        // 3,000 a second: the interval is not a whole number of nanoseconds.
        let mut schedule = Schedule::new(1_000_000, 3000.0);
        let mut last = 0;
        let mut n = 0u64;
        while let Some(now) = schedule.wait(&clock, 10_001_000_000, || false) {
            last = now;
            n += 1;
        }
        assert_eq!(n, 30_000);
        assert!((10_000_666_667..10_000_700_000).contains(&last), "{last}");
    }

    #[test]
    fn a_stall_is_made_up_for_and_seen() {
        let clock = Fake(Cell::new(0));
        let mut schedule = Schedule::new(0, 1000.0);
        let mut late = 0;
        for k in 0..100u64 {
            let due = schedule.due_ns();
            let now = schedule.wait(&clock, u64::MAX, || false).unwrap();
            schedule.left(due, now, 1);
            if k == 49 {
                clock.0.set(clock.0.get() + 20_000_000);
            }
            late += u64::from(now - due > 1_000_000);
        }
        // The 20 ms stall after departure 49 makes 50..=68 late by more than 1 ms, as a formula says.
        assert_eq!(late, 19);
        assert!(schedule.into_lateness().max() > 18_000_000);
    }

    #[test]
    fn ends_when_stopped() {
        let clock = Fake(Cell::new(0));
        let mut schedule = Schedule::new(1_000_000_000, 1.0);
        assert_eq!(schedule.wait(&clock, u64::MAX, || true), None);
    }
}
