//! How many entries have how long to live, or have lived how long.

use schemars::JsonSchema;
use serde::Serialize;

/// Upper bounds of the classes, s; the last class has none. The kernel's default timeouts
/// (net/netfilter/nf_conntrack_proto_*.c) each fall into a class of their own kind: 10 and 30 s, 60, 120, 300, 600 s, 5 days.
const BOUNDS: [u64; 10] = [10, 30, 60, 120, 300, 600, 3600, 21_600, 86_400, 432_000];

/// Counts of entries by a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    counts: [u64; BOUNDS.len() + 1],
}

/// One class of a distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Class {
    /// Entries of this class have less than this, s, and no less than the bound before. `None` in the last class.
    pub below_s: Option<u64>,
    /// How many.
    pub entries: u64,
}

impl Spread {
    #[inline]
    pub(crate) fn add(&mut self, seconds: u64) {
        self.counts[BOUNDS.partition_point(|bound| *bound <= seconds)] += 1;
    }

    pub(crate) fn classes(&self) -> Vec<Class> {
        let bounds = BOUNDS.iter().map(|b| Some(*b)).chain([None]);
        bounds.zip(self.counts).map(|(below_s, entries)| Class { below_s, entries }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_class_above_it() {
        let mut spread = Spread::default();
        for seconds in [0, 9, 10, 29, 431_999, 432_000, u64::MAX] {
            spread.add(seconds);
        }
        let of = |below| spread.classes().iter().find(|c| c.below_s == below).unwrap().entries;
        assert_eq!((of(Some(10)), of(Some(30)), of(Some(432_000)), of(None)), (2, 2, 1, 2));
        assert_eq!(spread.classes().iter().map(|c| c.entries).sum::<u64>(), 7);
    }
}
