//! What a frame takes by the measure of the core that sends and forwards it.
//!
//! A core is not always equally fast: its clock changes, another virtual machine works on the other hyperthread, other tasks take its
//! time. So the sender's program cuts a transfer into slices of a tenth of a millisecond, and at the end of each takes the time of a
//! fixed piece of work on the same core (`bpf/slice.h`). Both become slower together; their ratio hardly changes.

use serde::{Deserialize, Serialize};

use crate::shared::{self, WeirSlice};

/// What a round of the reference work takes on the core that adjusted rates are told for, ns, with its share of reading the clock
/// twice: about what it takes on a core of a cloud machine of 2023 (Intel Sapphire Rapids) that nobody else uses.
pub const STANDARD_ROUND_NS: f64 = 1.6;

/// Fewer slices than this (some 5 ms of traffic) give no pace.
const LEAST: usize = 50;

/// By how much the reference work may take longer or shorter at the end of a slice than before it.
const SAME_PACE: f64 = 0.05;

/// Time that is sampled of a transfer at most, ns: as many slices as there is room for, less some that last longer.
const SAMPLED_NS: u64 = 100_000 * shared::WEIR_SLICES;

/// What a frame took by the measure of its sender's core, and how fast that was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Time between two frames by the time of a round of the reference work: lower quartile of the slices through which the core was
    /// equally fast, since what interrupts a slice only makes it longer.
    pub rounds_per_frame: f64,
    /// Time of a round of the reference work, median, ns.
    pub round_ns: f64,
    /// How many slices there were of which that was taken.
    pub slices: u64,
}

impl Pace {
    /// From a transfer's slices in their order, of which up to two thirds may have been interrupted by other work; `None` if there are
    /// too few.
    pub fn of(slices: &[WeirSlice]) -> Option<Pace> {
        let whole: Vec<&WeirSlice> = slices
            .iter()
            .filter(|slice| slice.frames > 0 && slice.ns > 0 && slice.reference_ns > 0)
            .collect();
        let round_ns =
            |slice: &WeirSlice| f64::from(slice.reference_ns) / shared::WEIR_REFERENCE_ROUNDS as f64;
        // A core that became faster or slower meanwhile did so somewhere in the slice: its frames belong to neither pace.
        let ratios: Vec<f64> = whole
            .windows(2)
            .filter_map(|pair| {
                let (before, after) = (round_ns(pair[0]), round_ns(pair[1]));
                let frame_ns = f64::from(pair[1].ns) / f64::from(pair[1].frames);
                ((before - after).abs() <= SAME_PACE * before).then(|| frame_ns / after)
            })
            .collect();
        if ratios.len() < LEAST {
            return None;
        }
        let slices = ratios.len() as u64;
        let times = whole.into_iter().map(round_ns).collect();
        Some(Pace { rounds_per_frame: quantile(ratios, 0.25), round_ns: quantile(times, 0.5), slices })
    }

    /// Frames a second on a core on which a round takes [`STANDARD_ROUND_NS`] and that nothing interrupts.
    pub fn frames_per_second(&self) -> f64 {
        1e9 / (self.rounds_per_frame * STANDARD_ROUND_NS)
    }

    /// How fast the core was, by that core.
    pub fn core_speed(&self) -> f64 {
        STANDARD_ROUND_NS / self.round_ns
    }
}

/// The least value that the share `q` of them does not exceed (RFC 2330 section 11.3). There is at least one.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    let at = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// How long nothing is sampled between two slices of a transfer, so that those that there is room for last for all of it, ns.
pub(crate) fn pause_ns(duration_ns: u64) -> u64 {
    duration_ns.saturating_sub(SAMPLED_NS) / shared::WEIR_SLICES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` slices of a path that takes 300 rounds for a frame, on a core that is as slow as `slow` says.
    fn slices(count: usize, slow: impl Fn(usize) -> f64) -> Vec<WeirSlice> {
        let slice = |index| {
            let reference_ns = (400.0 * slow(index)).round();
            // 200 us at the standard pace and longer at a slower one.
            let frames = 500u32;
            let ns = f64::from(frames) * 300.0 * reference_ns / shared::WEIR_REFERENCE_ROUNDS as f64;
            WeirSlice { frames, ns: ns.round() as u32, reference_ns: reference_ns as u32, pad: 0 }
        };
        (0..count).map(slice).collect()
    }

    fn near(got: f64, truth: f64) {
        assert!((got / truth - 1.0).abs() < 1e-4, "{got} for {truth}");
    }

    #[test]
    fn fast_and_slow_slices_give_the_same_rate() {
        // 1e9 / (300 * 1.6 ns).
        let truth = 1e9 / 480.0;
        for slow in [1.0, 1.3, 2.0] {
            let pace = Pace::of(&slices(1000, |_| slow)).unwrap();
            near(pace.frames_per_second(), truth);
            near(pace.core_speed(), 1.6 * 256.0 / (400.0 * slow));
        }
        // It becomes slower, and faster again, while it is measured.
        let pace = Pace::of(&slices(5000, |i| if (i / 700) % 2 == 0 { 1.0 } else { 1.9 })).unwrap();
        near(pace.frames_per_second(), truth);
        // All but the first, and those in which it changed.
        assert_eq!(pace.slices, 5000 - 1 - 7);
    }

    #[test]
    fn a_slice_in_which_the_core_became_slower_counts_for_neither_pace() {
        // Frames at full speed and then the reference work at half of it, in one slice of three: with them, the lower quartile would
        // be one of theirs.
        let mut slices = slices(3000, |_| 1.0);
        for (index, slice) in slices.iter_mut().enumerate() {
            if index % 3 == 1 {
                slice.reference_ns *= 2;
            }
        }
        near(Pace::of(&slices).unwrap().frames_per_second(), 1e9 / 480.0);
    }

    #[test]
    fn slices_that_were_interrupted_do_not_count() {
        let mut slices = slices(1000, |i| 1.0 + 0.001 * (i % 10) as f64);
        // 4 ms of another task, in three of five slices, and in one of ten the reference work.
        for (index, slice) in slices.iter_mut().enumerate() {
            match index % 10 {
                0..6 => slice.ns += 4_000_000,
                6 => slice.reference_ns += 4_000_000,
                _ => {}
            }
        }
        near(Pace::of(&slices).unwrap().frames_per_second(), 1e9 / 480.0);
    }

    #[test]
    fn without_slices_there_is_no_pace() {
        assert_eq!(Pace::of(&[]), None);
        assert_eq!(Pace::of(&slices(LEAST - 1, |_| 1.0)), None);
        // The first has none before it.
        assert_eq!(Pace::of(&slices(LEAST, |_| 1.0)), None);
        assert!(Pace::of(&slices(LEAST + 1, |_| 1.0)).is_some());
        let empty = WeirSlice { frames: 0, ns: 200_000, reference_ns: 400, pad: 0 };
        assert_eq!(Pace::of(&vec![empty; 1000]), None);
    }

    #[test]
    fn slices_last_for_the_whole_transfer() {
        assert_eq!(pause_ns(1_000_000_000), 0);
        for seconds in [2u64, 60, 4 * 3600] {
            let duration = seconds * 1_000_000_000;
            // Slices are never shorter than 100 us.
            let lasts = (pause_ns(duration) + 100_000) * shared::WEIR_SLICES;
            assert!(lasts + shared::WEIR_SLICES >= duration, "{seconds} s: {lasts}");
        }
    }
}
