//! An agent's clock against this machine's, from signs of life.
//!
//! A rate is counted by the clock of the host that counts. One that runs slow would see the same packets in less time, and name
//! its hop faster for it. Each sign of life carries the agent's own clock, and was written after it was asked for and before
//! it arrived; so two of them bound how much time passed here while the agent's clock moved on by what it says.

use std::collections::VecDeque;

/// Two clocks that differ by more than this share are not the same clock. Clocks that are kept by NTP differ by at most 0.05 %
/// (adjtimex(2): 500 parts per million).
const MOST_DRIFT: f64 = 0.01;

/// Two signs of life are far enough apart when the ways there and back are less than this share of the time between them.
const PRECISION: f64 = 0.005;

/// Signs of life that are kept: two minutes of them.
const KEPT: usize = 120;

/// One sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Beat {
    asked_ns: u64,
    theirs_ns: u64,
    heard_ns: u64,
}

/// The signs of life of one agent.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// When those that are on their way were asked for. They are answered in order.
    asked_ns: VecDeque<u64>,
    beats: VecDeque<Beat>,
}

impl Pulse {
    /// A sign of life is asked for.
    pub(super) fn ask(&mut self, now_ns: u64) {
        self.asked_ns.push_back(now_ns);
    }

    /// It is here, written at `theirs_ns` by the agent's clock.
    pub(super) fn hear(&mut self, theirs_ns: u64, now_ns: u64) {
        let Some(asked_ns) = self.asked_ns.pop_front() else { return };
        if self.beats.len() == KEPT {
            self.beats.pop_front();
        }
        self.beats.push_back(Beat { asked_ns, theirs_ns, heard_ns: now_ns });
    }

    /// How fast the agent's clock runs, 0.5 for half as fast as this machine's, if it is for certain another clock. It is
    /// looked at from the last sign of life before `since_ns` on. If that does not tell, because the time is too short or a sign
    /// was long on its way, all the others are used: the latest that is known counts.
    pub(super) fn drift(&self, since_ns: u64) -> Option<f64> {
        for (n, last) in self.beats.iter().rev().enumerate() {
            let earlier = || self.beats.iter().rev().skip(n + 1);
            let before = earlier().filter(|b| b.heard_ns <= since_ns);
            let within = earlier().filter(|b| b.heard_ns > since_ns);
            for first in before.chain(within) {
                match Speed::between(first, last) {
                    Speed::Wrong(ratio) => return Some(ratio),
                    Speed::Right => return None,
                    Speed::Unknown => {}
                }
            }
        }
        None
    }
}

/// The speed of a clock between two signs of life.
enum Speed {
    /// Another one than this machine's for certain, with their ratio.
    Wrong(f64),
    /// The same within [`PRECISION`] and [`MOST_DRIFT`].
    Right,
    /// The signs were on their way for too great a part of the time.
    Unknown,
}

impl Speed {
    fn between(first: &Beat, last: &Beat) -> Speed {
        // Both were written between these.
        let least = last.asked_ns.saturating_sub(first.heard_ns) as f64;
        let most = (last.heard_ns - first.asked_ns) as f64;
        let theirs = last.theirs_ns.saturating_sub(first.theirs_ns) as f64;
        if theirs < least * (1.0 - MOST_DRIFT) || theirs > most * (1.0 + MOST_DRIFT) {
            Speed::Wrong(theirs / least.midpoint(most))
        } else if most - least < PRECISION * least {
            Speed::Right
        } else {
            Speed::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// A sign of life every second for `seconds`, each `way_ns` on its way there and back, of a clock that runs at `speed` and
    /// began at another time.
    fn pulse(seconds: u64, way_ns: u64, speed: f64) -> Pulse {
        let mut pulse = Pulse::default();
        for n in 0..=seconds {
            pulse.ask(n * S);
            let written = n * S + way_ns;
            pulse.hear(77 * S + (written as f64 * speed) as u64, written + way_ns);
        }
        pulse
    }

    #[test]
    fn a_clock_that_is_right_has_no_drift() {
        for way in [0, MS / 10, MS, 50 * MS] {
            assert_eq!(pulse(60, way, 1.0).drift(30 * S), None, "{way}");
            // The most that NTP may do.
            assert_eq!(pulse(60, way, 0.9995).drift(30 * S), None, "{way}");
        }
    }

    #[test]
    fn a_slow_and_a_fast_clock_are_told_with_their_speed() {
        for speed in [0.5, 0.9, 0.98, 1.02, 1.5] {
            let found = pulse(60, MS / 10, speed).drift(58 * S).unwrap();
            assert!((found / speed - 1.0).abs() < 0.001, "{found} of {speed}");
        }
        // A clock that stands still.
        assert_eq!(pulse(10, MS / 10, 0.0).drift(5 * S), Some(0.0));
    }

    #[test]
    fn a_long_way_takes_a_longer_look() {
        // There and back is 100 ms of uncertainty: more than 2 % of 4 s.
        assert_eq!(pulse(4, 50 * MS, 0.97).drift(3 * S), None);
        for (seconds, speed) in [(50, 0.97), (50, 0.9), (30, 0.9)] {
            let found = pulse(seconds, 50 * MS, speed).drift((seconds - 1) * S).unwrap();
            assert!((found / speed - 1.0).abs() < 0.005, "{found} of {speed}");
        }
    }

    #[test]
    fn a_sign_that_was_long_on_its_way_hides_nothing() {
        let mut pulse = pulse(6, MS / 10, 0.97);
        pulse.ask(7 * S);
        pulse.hear(77 * S + 7 * S * 97 / 100, 8 * S);
        assert!(pulse.drift(6 * S + S / 2).is_some());
    }

    #[test]
    fn what_is_long_past_is_not_held_against_a_clock() {
        let mut pulse = pulse(5, MS / 10, 0.5);
        let (mine, theirs) = (5 * S, 77 * S + 5 * S / 2);
        for n in 1..=5 {
            pulse.ask(mine + n * S);
            pulse.hear(theirs + n * S, mine + n * S + MS / 10);
        }
        assert!(pulse.drift(4 * S).is_some());
        assert_eq!(pulse.drift(8 * S), None);
    }

    #[test]
    fn too_few_signs_of_life_tell_nothing() {
        assert_eq!(Pulse::default().drift(S), None);
        assert_eq!(pulse(0, MS, 0.5).drift(S), None);
        assert_eq!(pulse(1, 500 * MS, 0.9).drift(S), None);
        // None before the time that is asked about: those within it tell.
        let found = pulse(10, MS, 0.5).drift(0).unwrap();
        assert!((found / 0.5 - 1.0).abs() < 0.005, "{found}");
        let mut silent = Pulse::default();
        silent.hear(1, 2);
        assert_eq!(silent.beats.len(), 0, "without a question");
    }

    #[test]
    fn two_minutes_are_kept() {
        let long = pulse(1000, MS / 10, 0.9);
        assert_eq!((long.beats.len(), long.asked_ns.len()), (KEPT, 0));
        assert!(long.drift(999 * S).is_some());
    }
}
