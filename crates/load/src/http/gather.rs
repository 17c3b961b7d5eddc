//! Waking up for several responses at once.
//!
//! If responses come faster than a thread goes to sleep and is woken, it spends most of its time on sleeping and waking. The
//! server spends part of its time on it too, since the sender does the waking. During a short nap several responses gather. In a
//! closed loop against a busy server a nap costs nothing: a response that waits here would have waited there, since the number on
//! the way is fixed and the rate is the server's (Little, Operations Research 9(3), 1961). Against a server with time to spare,
//! naps would lower the rate. So weir tries it: for some time, stretches with and without naps take turns, and naps are kept up
//! only if they do not lower the rate.

/// A nap is for at most this share of the connections: what they wait is at most this share of a response time.
const SHARE: f64 = 0.3;

/// Responses further apart than this are not gathered: there is time enough to sleep between them, ns.
const GREATEST_GAP_NS: f64 = 50_000.0;

/// Naps are at least so long, or the sleep itself would take longer, and at most so long, ns.
const NAP_NS: std::ops::RangeInclusive<f64> = 4_000.0..=100_000.0;

/// Length of a stretch with or without naps while they are tried, ns: many naps, and few enough of them to decide within a
/// warm-up.
const STRETCH_NS: u64 = 5_000_000;

/// Pairs of a stretch without and one with naps in one trial of naps.
const PAIRS: u32 = 8;

/// How long the decision holds, in stretches.
const HOLD: u32 = 144;

/// A stretch with naps that keeps less than this share of its neighbour's responses speaks against them.
const KEEPS: f64 = 0.98;

/// So many pairs must speak against naps: by chance alone that is so once in 28 trials (sign test, 7 or 8 of 8). Means would
/// be decided by the one stretch in which another process had the core.
const AGAINST: u32 = 7;

/// Decides about naps.
#[derive(Debug)]
pub(super) struct Gather {
    /// Mean time between responses, ns.
    gap_ns: f64,
    last_ns: u64,
    stretch_began_ns: u64,
    /// Stretches since the trial of naps began.
    stretch: u32,
    /// Responses in this stretch, and in the one before.
    counted: u64,
    before: u64,
    /// Pairs that speak against naps.
    against: u32,
    naps: bool,
}

impl Gather {
    pub(super) fn new() -> Self {
        Gather {
            gap_ns: GREATEST_GAP_NS,
            last_ns: 0,
            stretch_began_ns: 0,
            stretch: 0,
            counted: 0,
            before: 0,
            against: 0,
            naps: false,
        }
    }

    /// So many events were taken at `now_ns`, out of `connections`. How long to nap before the next look, ns; 0 for not at all.
    pub(super) fn took(&mut self, events: usize, connections: usize, now_ns: u64) -> u64 {
        if events == 0 {
            return 0;
        }
        let gap = now_ns.saturating_sub(self.last_ns) as f64 / events as f64;
        self.last_ns = now_ns;
        // A pause of the whole is no gap between responses.
        self.gap_ns += (gap.min(4.0 * GREATEST_GAP_NS) - self.gap_ns) / 16.0;
        self.counted += events as u64;
        if now_ns.saturating_sub(self.stretch_began_ns) >= STRETCH_NS {
            self.end_stretch(now_ns);
        }
        let missing = connections as f64 * SHARE - events as f64;
        if !self.naps || missing <= 0.0 || self.gap_ns > GREATEST_GAP_NS {
            return 0;
        }
        let nap = (self.gap_ns * missing).min(*NAP_NS.end());
        if nap < *NAP_NS.start() { 0 } else { nap as u64 }
    }

    /// Go on with the trial of naps: stretches without and with them take turns, then the decision holds for a while.
    fn end_stretch(&mut self, now_ns: u64) {
        let length_ns = now_ns.saturating_sub(self.stretch_began_ns).max(1);
        // By their true lengths, which a preempted thread does not choose.
        let rate = self.counted.saturating_mul(1_000_000_000) / length_ns;
        if self.stretch < 2 * PAIRS {
            if self.naps {
                self.against += u32::from((rate as f64) < KEEPS * self.before as f64);
            }
            self.before = rate;
        }
        self.stretch_began_ns = now_ns;
        self.counted = 0;
        self.stretch += 1;
        match self.stretch {
            n if n < 2 * PAIRS => self.naps = !self.naps,
            n if n == 2 * PAIRS => self.naps = self.against < AGAINST,
            n if n > 2 * PAIRS + HOLD => {
                (self.stretch, self.against, self.naps) = (0, 0, false);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a second against a server that answers a request every `gap_ns` as long as it has one; `on_the_way_ns` is the time that a
    /// response takes in addition. Returns the rate, and responses per look.
    fn run(connections: usize, gap_ns: u64, on_the_way_ns: u64, gathering: bool) -> (f64, f64) {
        let mut gather = Gather::new();
        let (mut now, mut free_at, mut done, mut looks) = (0u64, 0u64, 0u64, 0u64);
        let mut arrivals: std::collections::VecDeque<u64> = vec![0; connections].into();
        while now < 1_000_000_000 {
            let mut events = 0;
            while arrivals.front().is_some_and(|&at| at <= now) {
                arrivals.pop_front();
                events += 1;
                // Asked again at once: the server begins when it is free.
                free_at = free_at.max(now) + gap_ns;
                arrivals.push_back(free_at + on_the_way_ns);
            }
            done += events;
            looks += 1;
            let nap = gather.took(events as usize, connections, now);
            now += if gathering && nap > 0 { nap } else { 1_000 };
            if let Some(&next) = arrivals.front() {
                now = now.max(next);
            }
        }
        (done as f64, done as f64 / looks as f64)
    }

    #[test]
    fn a_busy_server_is_asked_in_batches_and_answers_as_many() {
        // 10 and 100 connections to a server that answers every 8 us and is never idle.
        for (connections, least) in [(10, 1.2), (100, 4.0)] {
            let (plain, single) = run(connections, 8_000, 20_000, false);
            let (gathered, batch) = run(connections, 8_000, 20_000, true);
            assert!((plain - 125_000.0).abs() < 100.0, "{plain}");
            assert!(gathered > 0.995 * plain, "{gathered}");
            assert!(single < 1.01 && batch > least, "{batch} {single}");
        }
    }

    #[test]
    fn a_server_with_time_to_spare_is_not_kept_waiting() {
        // Each response takes 200 us of travel, and the server 1 us: 10 connections make 50,000 a second.
        let (plain, _) = run(10, 1_000, 200_000, false);
        let (gathered, _) = run(10, 1_000, 200_000, true);
        assert!(gathered > 0.97 * plain, "{gathered} {plain}");
    }

    #[test]
    fn slow_responses_are_taken_one_by_one() {
        let mut gather = Gather::new();
        let naps = (1..10_000).filter(|k| gather.took(1, 10, k * 100_000) > 0).count();
        assert_eq!(naps, 0);
    }
}
