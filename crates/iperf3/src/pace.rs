//! When the next write or datagram is due.

use weir_sys::clock::{NS_PER_S, now_ns, sleep_until};

/// Longest sleep between two looks whether the test is over.
const NAP_NS: u64 = 20_000_000;

/// A schedule that does not drift: what a stall delayed is made up for, as in iperf3.
#[derive(Debug)]
pub(super) struct Pace {
    start_ns: u64,
    /// Between two departures; 0 for as fast as it goes.
    interval_ns: f64,
    /// Units in each departure.
    each: u64,
    sent: u64,
}

impl Pace {
    /// Units of `bytes` at `rate_bps` (0 for none), `burst` at a time (0 for one).
    pub(super) fn new(rate_bps: u64, bytes: u64, burst: u32, start_ns: u64) -> Pace {
        let each = u64::from(burst.max(1));
        let interval_ns =
            if rate_bps == 0 { 0.0 } else { (each * bytes) as f64 * 8.0 * NS_PER_S as f64 / rate_bps as f64 };
        Pace { start_ns, interval_ns, each, sent: 0 }
    }

    /// Units that may have been sent by `now_ns`.
    fn allowed(&self, now_ns: u64) -> u64 {
        if self.interval_ns == 0.0 {
            return u64::MAX;
        }
        let departures = now_ns.saturating_sub(self.start_ns) as f64 / self.interval_ns;
        (departures as u64 + 1).saturating_mul(self.each)
    }

    /// Units that are due now.
    #[inline]
    pub(super) fn due(&self) -> u64 {
        if self.interval_ns == 0.0 { u64::MAX } else { self.allowed(now_ns()).saturating_sub(self.sent) }
    }

    /// Wait until something is due. False once it is over.
    pub(super) fn wait(&self, over: impl Fn() -> bool) -> bool {
        if over() {
            return false;
        }
        if self.interval_ns == 0.0 {
            return true;
        }
        loop {
            let now = now_ns();
            if self.allowed(now) > self.sent {
                return true;
            }
            let at = self.start_ns + ((self.sent / self.each) as f64 * self.interval_ns).ceil() as u64;
            sleep_until(at.min(now + NAP_NS), 0);
            if over() {
                return false;
            }
        }
    }

    /// So many units were sent.
    #[inline]
    pub(super) fn sent(&mut self, units: u64) {
        self.sent += units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_with_and_without_bursts() {
        // 8 Mbit/s in units of 1,000 bytes: one each millisecond, the first at once.
        let pace = Pace::new(8_000_000, 1000, 0, 1_000_000);
        assert_eq!(
            [1_000_000, 1_999_999, 2_000_000, 1_001_000_000].map(|t| pace.allowed(t)),
            [1, 1, 2, 1001]
        );
        let bursts = Pace::new(8_000_000, 1000, 10, 0);
        assert_eq!([0, 9_999_999, 10_000_000].map(|t| bursts.allowed(t)), [10, 10, 20]);
        assert_eq!(Pace::new(0, 1000, 0, 0).allowed(0), u64::MAX);
    }

    #[test]
    fn it_waits_for_what_is_due_and_ends_when_it_is_over() {
        let begun = now_ns();
        let mut pace = Pace::new(8_000_000, 1000, 0, begun);
        pace.sent(5);
        assert!(pace.wait(|| false));
        assert!(now_ns() - begun >= 5_000_000);
        let late = Pace::new(8, 1_000_000, 0, begun);
        assert!(late.wait(|| false), "the first is due at once");
        let mut late = late;
        late.sent(1);
        let looks = std::cell::Cell::new(0);
        let over = || {
            looks.set(looks.get() + 1);
            looks.get() > 2
        };
        assert!(!late.wait(over));
    }
}
