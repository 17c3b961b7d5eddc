//! How often a closed port answers: a host's limit of ICMP messages.

use std::time::{Duration, Instant};

/// Refusals that a host sends at once, and the time after which it sends one more, by Linux's default (icmp_ratelimit, and
/// XRLIM_BURST_FACTOR in net/ipv4/icmp.c). Further probes get no answer, which would look like loss.
const BURST: f64 = 6.0;
const EACH: Duration = Duration::from_millis(1050);

/// The part of this limit that is left for this prober.
#[derive(Debug)]
pub(super) struct Refusals {
    left: f64,
    at: Instant,
}

impl Refusals {
    /// After so many.
    pub(super) fn all_but(used: u32) -> Self {
        Refusals { left: BURST - f64::from(used), at: Instant::now() }
    }

    /// After too many.
    pub(super) fn none() -> Self {
        Refusals { left: 0.0, at: Instant::now() }
    }

    /// So many may be asked for now.
    pub(super) fn left(&mut self) -> usize {
        let now = Instant::now();
        self.left = (self.left + (now - self.at).as_secs_f64() / EACH.as_secs_f64()).min(BURST);
        self.at = now;
        self.left as usize
    }

    /// One came.
    pub(super) fn take(&mut self) {
        self.left -= 1.0;
    }
}
