//! Monotonic time, and waiting for a point in it.

use std::time::{Duration, Instant};

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds per second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// How long before its time [`Monotonic::sleep_until`] stops sleeping and spins, ns. A sleep ends late by the
/// thread's timer slack (50 us unless changed, prctl(2) PR_SET_TIMERSLACK) plus the wake-up.
pub const SPIN_NS: u64 = 70_000;

/// A source of time, so that schedules can be tested without waiting.
pub trait Clock {
    /// Nanoseconds since a fixed point in the past. Never goes back.
    fn now_ns(&self) -> u64;

    /// Returns at `deadline_ns` or as soon as possible after it, and says what time it is then.
    fn sleep_until(&self, deadline_ns: u64) -> u64;
}

/// CLOCK_MONOTONIC: shared by all processes of a machine, so times taken in two namespaces may be subtracted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Monotonic;

impl Clock for Monotonic {
    #[inline]
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn sleep_until(&self, deadline_ns: u64) -> u64 {
        sleep_until(deadline_ns, SPIN_NS)
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    // Counts from boot, so it is not negative and fits for 584 years.
    t.tv_sec as u64 * NS_PER_S + t.tv_nsec as u64
}

/// Two clocks read together, to turn the kernel's times of arrival (CLOCK_REALTIME) into ours: read anew for every batch, a
/// clock that is set by someone is off only for what has not been read just then.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// CLOCK_MONOTONIC, ns.
    pub monotonic_ns: u64,
    real_ns: u64,
}

impl Clocks {
    /// Now.
    pub fn read() -> Self {
        /// Readings at most: a thread may be interrupted between them.
        const TRIES: u32 = 8;
        /// Longest time between readings that were not interrupted.
        const TOGETHER_NS: u64 = 1000;
        let mut tries = 0;
        loop {
            let before = now_ns();
            let real = clock_gettime(ClockId::Realtime);
            // Read last: times that are converted may come out too late, and never too early.
            let monotonic_ns = now_ns();
            tries += 1;
            if tries == TRIES || monotonic_ns - before <= TOGETHER_NS {
                // After 1970, as every machine's clock.
                return Clocks { monotonic_ns, real_ns: real.tv_sec as u64 * NS_PER_S + real.tv_nsec as u64 };
            }
        }
    }

    /// Converts a time of CLOCK_REALTIME to CLOCK_MONOTONIC, ns. Times after the reading of the clocks lie in the future.
    #[inline]
    pub fn monotonic(&self, real_ns: u64) -> u64 {
        (self.monotonic_ns + real_ns).saturating_sub(self.real_ns)
    }

    /// A time of CLOCK_MONOTONIC by CLOCK_REALTIME, ns since 1970.
    #[inline]
    pub fn real(&self, monotonic_ns: u64) -> u64 {
        (self.real_ns + monotonic_ns).saturating_sub(self.monotonic_ns)
    }
}

/// Sleeps until `spin_ns` before the deadline, then spins. `spin_ns` 0 sleeps all the way and burns no CPU.
/// Returns the time at return, ns, which is never before the deadline.
pub fn sleep_until(deadline_ns: u64, spin_ns: u64) -> u64 {
    let wake = deadline_ns.saturating_sub(spin_ns);
    if now_ns() < wake {
        let request = Timespec { tv_sec: (wake / NS_PER_S) as i64, tv_nsec: (wake % NS_PER_S) as i64 };
        // A signal ends the sleep early: go back to it. Other errors cannot happen with a valid request, and the
        // loop below waits for the deadline in any case.
        while clock_nanosleep_absolute(ClockId::Monotonic, &request) == Err(rustix::io::Errno::INTR) {}
    }
    loop {
        let now = now_ns();
        if now >= deadline_ns {
            return now;
        }
        std::hint::spin_loop();
    }
}

/// Sleeps for that time, but ends within 50 ms after `asked` answers true.
pub fn sleep_unless(asked: &dyn Fn() -> bool, time: Duration) {
    let end = Instant::now() + time;
    while !asked() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_wall_clock_are_as_far_from_now_as_they_were() {
        let clocks = Clocks { monotonic_ns: 5_000, real_ns: 1_000_000 };
        assert_eq!(clocks.monotonic(999_000), 4_000);
        assert_eq!(clocks.monotonic(1_000_200), 5_200);
        assert_eq!(clocks.monotonic(1), 0, "from before the machine's start");
        let real = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let (before, clocks) = (now_ns(), Clocks::read());
        assert!((before..=now_ns()).contains(&clocks.monotonic_ns));
        // Both were read within the test; a minute is for a clock that is set meanwhile.
        let away = clocks.monotonic(real.as_nanos() as u64).abs_diff(clocks.monotonic_ns);
        assert!(away < 60 * NS_PER_S, "{away}");
    }

    #[test]
    fn never_returns_early() {
        for spin in [0, SPIN_NS] {
            let deadline = now_ns() + 2_000_000;
            let end = sleep_until(deadline, spin);
            assert!(end >= deadline);
            assert!(now_ns() >= end);
        }
    }

    #[test]
    fn a_deadline_in_the_past_does_not_wait() {
        let start = now_ns();
        // An hour ago and the first nanosecond after boot.
        assert!(sleep_until(start.saturating_sub(3_600 * NS_PER_S), SPIN_NS) >= start);
        assert!(Monotonic.sleep_until(1) >= start);
    }
}
