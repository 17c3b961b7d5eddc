//! The time that packets take from one end of the host to the other, by either way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{WEIR_CARRIED_WAY, WEIR_KERNELS_WAY, WEIR_TIME_BITS, WEIR_TIME_BUCKETS, WeirTimes};

/// Timed packets of each way below which a median is left out: it would be one of chance.
const LEAST: u64 = 30;

/// The median time of a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Median {
    /// Packets that were timed.
    pub packets: u64,
    /// Their median, ns.
    pub ns: f64,
    /// Its 95 % interval, ns: by rank (binomial).
    pub interval_ns: (f64, f64),
}

/// The time that carrying saves: the median times of both ways since the programs were loaded. Each has the costs of the clock in it. The time of
/// a carried packet includes the program; that of the kernel's way does not. Packets of XDP are not timed, and saved more than these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    /// From the program of the interface where it came in to the one where it left, by the kernel's way. `None` while too few were timed.
    pub kernels_way: Option<Median>,
    /// The same of those that were carried.
    pub carried: Option<Median>,
    /// The difference, ns for each packet; below 0 carrying took longer.
    pub saved_ns: Option<f64>,
    /// Its interval, ns: the ends of both intervals that are farthest from each other, so at least 95 %.
    pub saved_interval_ns: Option<(f64, f64)>,
    /// Time of a core that the packets carried at tc have saved until now, s.
    pub saved_s: Option<f64>,
}

impl Times {
    /// `by_core` has the counts of each way; `at_tc`: packets that were carried there.
    pub(crate) fn of(by_core: &[(u32, Vec<WeirTimes>)], at_tc: u64) -> Self {
        let of = |way: u64| median(&sum(by_core.iter().filter(|(key, _)| u64::from(*key) == way)));
        let (kernels_way, carried) = (of(WEIR_KERNELS_WAY), of(WEIR_CARRIED_WAY));
        let both = kernels_way.zip(carried);
        let saved_ns = both.map(|(kernel, carried)| kernel.ns - carried.ns);
        Times {
            kernels_way,
            carried,
            saved_ns,
            saved_interval_ns: both.map(|(kernel, carried)| {
                let ((low, high), (least, most)) = (kernel.interval_ns, carried.interval_ns);
                (low - most, high - least)
            }),
            saved_s: saved_ns.map(|ns| ns * at_tc as f64 / 1e9),
        }
    }
}

/// Counts by bucket, of all cores.
fn sum<'a>(ways: impl Iterator<Item = &'a (u32, Vec<WeirTimes>)>) -> Vec<u64> {
    let mut counts = vec![0; WEIR_TIME_BUCKETS as usize];
    for core in ways.flat_map(|(_, by_core)| by_core) {
        counts.iter_mut().zip(core.buckets).for_each(|(sum, count)| *sum += u64::from(count));
    }
    counts
}

/// `None` of too few, and where it lies beyond the longest time.
fn median(counts: &[u64]) -> Option<Median> {
    let packets: u64 = counts.iter().sum();
    let at = |rank: f64| value(counts, rank.clamp(0.0, packets as f64));
    let (middle, apart) = (packets as f64 / 2.0, 0.98 * (packets as f64).sqrt());
    let found =
        || Some(Median { packets, ns: at(middle)?, interval_ns: (at(middle - apart)?, at(middle + apart)?) });
    if packets >= LEAST { found() } else { None }
}

/// The value below which so many lie, as if those of a bucket were spread evenly in it, ns.
fn value(counts: &[u64], rank: f64) -> Option<f64> {
    let mut below = 0.0;
    // The last bucket has no upper end.
    let (_, counts) = counts.split_last()?;
    for (at, count) in counts.iter().map(|&count| count as f64).enumerate() {
        if count > 0.0 && below + count >= rank {
            let (low, width) = bucket(at as u32);
            return Some(low + width * (rank - below) / count);
        }
        below += count;
    }
    None
}

/// Its least time and its width, ns: the inverse of `octave_bucket` in `weir/octaves.h`.
fn bucket(at: u32) -> (f64, f64) {
    let shift = (at >> WEIR_TIME_BITS).saturating_sub(1);
    (f64::from((at - (shift << WEIR_TIME_BITS)) << shift), f64::from(1_u32 << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `octave_bucket`.
    fn of_time(ns: u32) -> usize {
        if ns < 2 << WEIR_TIME_BITS {
            return ns as usize;
        }
        let shift = ns.ilog2() - WEIR_TIME_BITS as u32;
        ((shift << WEIR_TIME_BITS) + (ns >> shift)) as usize
    }

    fn times(kernels_way: impl IntoIterator<Item = u32>, carried: impl IntoIterator<Item = u32>) -> Times {
        let of = |times: &mut dyn Iterator<Item = u32>| {
            let mut counts = [0; WEIR_TIME_BUCKETS as usize];
            times.for_each(|ns| counts[of_time(ns).min(counts.len() - 1)] += 1);
            // Two cores have seen the same.
            vec![WeirTimes { buckets: counts }, WeirTimes { buckets: counts }]
        };
        Times::of(&[(0, of(&mut kernels_way.into_iter())), (1, of(&mut carried.into_iter()))], 1_000_000)
    }

    #[test]
    fn buckets_lie_end_to_end() {
        let mut end = 0.0;
        for at in 0..WEIR_TIME_BUCKETS as u32 {
            let (low, width) = bucket(at);
            assert_eq!(low, end, "{at}");
            assert_eq!(of_time(low as u32), at as usize);
            end = low + width;
        }
        assert_eq!(end, f64::from(1 << 20));
    }

    #[test]
    fn what_is_saved_is_the_difference_of_the_medians() {
        let times = times(400..601, 100..301);
        let saved = times.saved_ns.unwrap();
        assert!((saved - 300.0).abs() < 10.0, "{times:?}");
        let (low, high) = times.saved_interval_ns.unwrap();
        assert!(low > 250.0 && high < 350.0 && low < saved && saved < high, "{times:?}");
        assert!((times.saved_s.unwrap() - saved / 1000.0).abs() < 1e-9);
        assert_eq!(times.carried.unwrap().packets, 402);
    }

    #[test]
    fn few_packets_and_times_beyond_the_scale_say_nothing() {
        let few = times(400..414, 100..300);
        assert_eq!((few.kernels_way, few.saved_ns, few.saved_s), (None, None, None));
        assert!(few.carried.is_some());
        assert_eq!(times([1 << 20; 100], 100..300).kernels_way, None);
    }
}
