//! The time of a frame relative to the speed of the core that sends and forwards it.
//!
//! A core is not always equally fast: its clock changes, another virtual machine works on the other hyperthread, other tasks take its
//! time. So the sender's program cuts a transfer into slices of two milliseconds, and after each lets some of the same frames go through
//! a router that only forwards (`bpf/slice.h`, `live/reference.rs`). Both become slower together; their ratio hardly
//! changes.

use serde::{Deserialize, Serialize};

use crate::shared::{self, WeirSlice};

/// Time of a frame through the reference router, its making included, on the core that adjusted rates refer to, ns. It is about
/// the time on an otherwise idle core of a cloud machine of 2023 (Intel Sapphire Rapids).
pub const STANDARD_FRAME_NS: f64 = 400.0;

/// Fewer slices than this (0.1 s of traffic) give no pace.
const LEAST: usize = 50;

/// How long a slice lasts at least, ns. The router's turns, two batches of 64, then take 2.5 % of the time, which is not counted as the
/// transfer's.
const SLICE_NS: u64 = 2_000_000;

/// The time of a frame relative to the speed of its sender's core, and that speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Time between two frames by the time that a frame takes through the reference router: median of the slices, each by the mean of
    /// the batches before and after it.
    pub frame_ratio: f64,
    /// Time of a frame through the reference router, median, ns.
    pub reference_ns: f64,
    /// Number of slices from which that was taken.
    pub slices: u64,
}

impl Pace {
    /// From a transfer's slices in their order, of which somewhat less than half may have been interrupted by other work, and the
    /// number of frames in a batch; `None` if there are too few.
    pub fn of(slices: &[WeirSlice], batch: u32) -> Option<Pace> {
        let reference_ns = |slice: &WeirSlice| f64::from(slice.reference_ns) / f64::from(batch);
        let whole = |slice: &WeirSlice| slice.frames > 0 && slice.ns > 0;
        let pairs =
            slices.windows(2).filter(|pair| whole(&pair[1]) && pair.iter().all(|s| s.reference_ns > 0));
        // A core that became faster or slower in between is met by the mean if it did so in the middle.
        let ratios: Vec<f64> = pairs
            .map(|pair| {
                let frame_ns = f64::from(pair[1].ns) / f64::from(pair[1].frames);
                frame_ns * 2.0 / (reference_ns(&pair[0]) + reference_ns(&pair[1]))
            })
            .collect();
        if ratios.len() < LEAST {
            return None;
        }
        let times = slices.iter().filter(|slice| slice.reference_ns > 0).map(reference_ns).collect();
        let slices = ratios.len() as u64;
        Some(Pace { frame_ratio: median(ratios), reference_ns: median(times), slices })
    }

    /// Frames a second on a core on which the reference router takes [`STANDARD_FRAME_NS`] for a frame.
    pub fn frames_per_second(&self) -> f64 {
        1e9 / (self.frame_ratio * STANDARD_FRAME_NS)
    }

    /// How fast the core was, by that core.
    pub fn core_speed(&self) -> f64 {
        STANDARD_FRAME_NS / self.reference_ns
    }
}

/// The least value that half of them do not exceed (RFC 2330 section 11.3). There is at least one.
fn median(mut values: Vec<f64>) -> f64 {
    let at = values.len().div_ceil(2).max(1) - 1;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// How long a slice lasts at least, so that those that there is room for last for all of the transfer, ns.
pub(crate) fn slice_ns(duration_ns: u64) -> u64 {
    SLICE_NS.max(duration_ns.div_ceil(shared::WEIR_SLICES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u32 = 64;

    /// `count` slices of a path that takes 1.25 times what the reference router does, on a core that is as slow as `slow` says.
    fn slices(count: usize, slow: impl Fn(usize) -> f64) -> Vec<WeirSlice> {
        let slice = |index| {
            let reference_ns = (25_600.0 * slow(index)).round();
            // 2 ms at the standard pace and longer at a slower one.
            let frames = 4000u32;
            let ns = f64::from(frames) * 1.25 * reference_ns / f64::from(BATCH);
            WeirSlice { frames, ns: ns.round() as u32, reference_ns: reference_ns as u32, pad: 0 }
        };
        (0..count).map(slice).collect()
    }

    fn near(got: f64, truth: f64) {
        assert!((got / truth - 1.0).abs() < 1e-4, "{got} for {truth}");
    }

    /// 1e9 / (1.25 * 400 ns).
    const TRUTH: f64 = 2e6;

    #[test]
    fn fast_and_slow_slices_give_the_same_rate() {
        for slow in [1.0, 1.3, 2.0] {
            let pace = Pace::of(&slices(250, |_| slow), BATCH).unwrap();
            near(pace.frames_per_second(), TRUTH);
            near(pace.core_speed(), 1.0 / slow);
            assert_eq!(pace.slices, 249, "the first has no batch before it");
        }
        // It becomes slower, and faster again, while it is measured.
        let pace = Pace::of(&slices(250, |i| if (i / 40) % 2 == 0 { 1.0 } else { 1.9 }), BATCH).unwrap();
        near(pace.frames_per_second(), TRUTH);
    }

    #[test]
    fn a_core_that_is_faster_and_slower_in_turns_is_met_on_average() {
        // A swing of 12 slices, between the batches at the slices' ends. A slice itself has the mean of its ends.
        let swing =
            |i: usize| 1.0 + 0.02 * [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0][i % 12];
        let mut slices = slices(301, swing);
        for (i, slice) in slices.iter_mut().enumerate().skip(1) {
            slice.ns = (f64::from(slice.frames) * 500.0 * (swing(i - 1) + swing(i)) / 2.0) as u32;
        }
        near(Pace::of(&slices, BATCH).unwrap().frames_per_second(), TRUTH);
    }

    #[test]
    fn slices_that_were_interrupted_do_not_count() {
        let mut slices = slices(1000, |_| 1.0);
        // 20 ms of another task in two of ten slices, and in one of ten the reference batch, which two slices are measured by.
        for (index, slice) in slices.iter_mut().enumerate() {
            match index % 10 {
                0 | 3 => slice.ns += 20_000_000,
                6 => slice.reference_ns += 20_000_000,
                _ => {}
            }
        }
        near(Pace::of(&slices, BATCH).unwrap().frames_per_second(), TRUTH);
    }

    #[test]
    fn without_slices_there_is_no_pace() {
        assert_eq!(Pace::of(&[], BATCH), None);
        // The first has none before it.
        assert_eq!(Pace::of(&slices(LEAST, |_| 1.0), BATCH), None);
        assert!(Pace::of(&slices(LEAST + 1, |_| 1.0), BATCH).is_some());
        let empty = WeirSlice { frames: 0, ns: 2_000_000, reference_ns: 25_600, pad: 0 };
        assert_eq!(Pace::of(&vec![empty; 1000], BATCH), None);
        let unreferred = WeirSlice { frames: 4000, ns: 2_000_000, reference_ns: 0, pad: 0 };
        assert_eq!(Pace::of(&vec![unreferred; 1000], BATCH), None);
    }

    #[test]
    fn slices_last_for_the_whole_transfer() {
        assert_eq!(slice_ns(1_000_000_000), SLICE_NS);
        for seconds in [2u64, 60, 4 * 3600] {
            let duration = seconds * 1_000_000_000;
            assert!(slice_ns(duration) * shared::WEIR_SLICES >= duration, "{seconds} s");
        }
        assert!(slice_ns(4 * 3600 * 1_000_000_000) < u64::from(u32::MAX), "a slice's time has 32 bits");
    }
}
