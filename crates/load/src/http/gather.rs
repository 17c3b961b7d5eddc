//! Waking up for several responses at once.
//!
//! Where responses come faster than a thread goes to sleep and is woken, most of its time is sleeping and waking, and part of
//! the server's too, since whoever sends does the waking. A short nap lets some gather. In a closed loop against a busy
//! server that costs nothing: what waits here would have waited there, since the number on the way is fixed and the rate is
//! the server's (Little, Operations Research 9(3), 1961). Against a server with time to spare it would lower the rate. So it
//! is tried: for some time, stretches with and without take turns, and naps are kept up only if the rate bears them.

/// A nap is for at most this share of the connections: what they wait is at most this share of a response time.
const SHARE: f64 = 0.25;

/// Responses further apart than this are not gathered: there is time enough to sleep between them, ns.
const GREATEST_GAP_NS: f64 = 50_000.0;

/// Naps are at least so long, or the sleep itself would take longer, and at most so long, ns.
const NAP_NS: std::ops::RangeInclusive<f64> = 4_000.0..=100_000.0;

/// Length of a stretch with or without naps while they are tried, ns: many naps, and few enough of them to decide within a
/// warm-up.
const STRETCH_NS: u64 = 5_000_000;

/// Stretches of each kind in one trial of naps.
const STRETCHES: u32 = 8;

/// How long the decision holds, in stretches.
const HOLD: u32 = 80;

/// Naps must keep this share of the rate without them.
const KEEPS: f64 = 0.97;

/// Decides about naps.
#[derive(Debug)]
pub(super) struct Gather {
    /// Mean time between responses, ns.
    gap_ns: f64,
    last_ns: u64,
    stretch_began_ns: u64,
    /// Stretches since the trial began.
    stretch: u32,
    /// Responses in the stretches of the trial: without naps, with.
    tried: [u64; 2],
    naps: bool,
}

impl Gather {
    pub(super) fn new() -> Self {
        Gather {
            gap_ns: GREATEST_GAP_NS,
            last_ns: 0,
            stretch_began_ns: 0,
            stretch: 0,
            tried: [0; 2],
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
        self.count(events as u64, now_ns);
        let missing = connections as f64 * SHARE - events as f64;
        if !self.naps || missing <= 0.0 || self.gap_ns > GREATEST_GAP_NS {
            return 0;
        }
        let nap = (self.gap_ns * missing).min(*NAP_NS.end());
        if nap < *NAP_NS.start() { 0 } else { nap as u64 }
    }

    /// Count for the trial, and decide when it is over.
    fn count(&mut self, events: u64, now_ns: u64) {
        let is_trial = self.stretch < 2 * STRETCHES;
        if is_trial {
            self.tried[usize::from(self.naps)] += events;
        }
        if now_ns.saturating_sub(self.stretch_began_ns) < STRETCH_NS {
            return;
        }
        self.stretch_began_ns = now_ns;
        self.stretch += 1;
        if self.stretch < 2 * STRETCHES {
            self.naps = !self.naps;
        } else if self.stretch == 2 * STRETCHES {
            let [without, with] = self.tried;
            self.naps = with as f64 >= KEEPS * without as f64;
        } else if self.stretch > 2 * STRETCHES + HOLD {
            self.stretch = 0;
            self.tried = [0; 2];
            self.naps = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a second against a server that answers a request every `gap_ns` as long as it has one; `on_the_way_ns` is what a
    /// response takes besides. Returns the rate, and responses per look.
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
