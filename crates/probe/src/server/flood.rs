//! Distinguishes a flood of unknown traffic from occasional strangers.

use std::time::{Duration, Instant};

/// Time over which is counted.
const SPAN: Duration = Duration::from_millis(100);

/// Counts unknown datagrams or connections.
#[derive(Debug)]
pub(super) struct Strangers {
    /// So many in [`SPAN`] are a flood.
    many: u32,
    seen: u32,
    since: Instant,
    /// Until the time before this one it was one.
    flooded: bool,
}

impl Strangers {
    /// `per_second` of them are a flood, from `now` on.
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        let many = (f64::from(per_second) * SPAN.as_secs_f64()).ceil() as u32;
        Strangers { many, seen: 0, since: now, flooded: false }
    }

    /// One more.
    pub(super) fn came(&mut self) {
        self.seen = self.seen.saturating_add(1);
    }

    /// Removes one from the count: it turned out to belong to a client.
    pub(super) fn known(&mut self) {
        self.seen = self.seen.saturating_sub(1);
    }

    /// True as soon as there are too many, and until they have become few again.
    pub(super) fn are_a_flood(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        if passed >= SPAN {
            // Who looks seldom has counted for longer.
            let spans = passed.as_secs_f64() / SPAN.as_secs_f64();
            self.flooded = f64::from(self.seen) >= f64::from(self.many) * spans;
            (self.seen, self.since) = (0, now);
        }
        self.flooded || self.seen >= self.many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is a flood at each look, with so many before it, at so many milliseconds.
    fn looks(steps: &[(u32, u64)]) -> Vec<bool> {
        let begun = Instant::now();
        let mut strangers = Strangers::new(1000, begun);
        let look = |&(n, ms): &(u32, u64)| {
            (0..n).for_each(|_| strangers.came());
            strangers.are_a_flood(begun + Duration::from_millis(ms))
        };
        steps.iter().map(look).collect()
    }

    #[test]
    fn a_flood_is_one_from_its_rate_on_and_until_it_is_over() {
        assert_eq!(looks(&[(99, 50)]), [false]);
        assert_eq!(looks(&[(99, 50), (1, 60)]), [false, true]);
        // It goes on over the end of the time, and ends one time after the last that had as many.
        assert_eq!(
            looks(&[(100, 50), (5, 101), (5, 105), (5, 199), (0, 202)]),
            [true, true, true, true, false]
        );
        // As many in a longer time are none.
        assert_eq!(looks(&[(150, 1000), (1, 1005)]), [false, false]);
    }

    #[test]
    fn who_is_known_after_all_is_none_of_them() {
        let begun = Instant::now();
        let mut strangers = Strangers::new(1000, begun);
        for _ in 0..1000 {
            strangers.came();
            strangers.known();
        }
        assert!(!strangers.are_a_flood(begun));
        strangers.known();
        assert!(!strangers.are_a_flood(begun));
    }
}
