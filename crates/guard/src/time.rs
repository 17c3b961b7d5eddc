//! The two clocks of a journal.

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_BOOTTIME, ns: goes on while the machine sleeps, and cannot be set.
pub(crate) fn boot_ns() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    // Counts from boot, so it is not negative and fits for 584 years.
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Seconds since 1970; 0 on a machine that believes to be before.
pub fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
