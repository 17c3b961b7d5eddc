//! Which flows are tracked, as the programs in the kernel see it.

use std::hash::{BuildHasher, Hasher, RandomState};

use weir_bpf::Mapped;

use crate::shared::WeirSample;

/// Directions outside of the sample are forgotten after a time of so many bits of nanoseconds: 34 s.
const PERIOD_BITS: u32 = 35;
/// The share of a sample that all flows are in.
const ALL_FLOWS: u32 = u32::MAX;

/// A number that no sender of packets can know: the hash, under random keys of the system, of nothing.
pub(crate) fn secret() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The sample. The programs mark each direction outside of it, and look no further at packets with such a mark.
#[derive(Debug)]
pub(crate) struct Sample {
    shown: Mapped<WeirSample>,
    share: u32,
    is_ethernet: bool,
    /// The time that the marks are of, in units of 2^[`PERIOD_BITS`] ns.
    period: u64,
}

impl Sample {
    /// The one in that memory of the programs: empty at first.
    pub(crate) fn new(shown: Mapped<WeirSample>) -> Self {
        Sample { shown, share: 0, is_ethernet: false, period: 0 }
    }

    /// Flows whose draw is at most this are in it.
    pub(crate) fn share(&self) -> u32 {
        self.share
    }

    /// Sets the share of all flows, 0 to 1.
    pub(crate) fn set_share(&mut self, share: f64) {
        self.share = (share * f64::from(u32::MAX)) as u32;
        self.begin();
    }

    /// Without a header of Ethernet before each packet, all are looked at.
    pub(crate) fn set_ethernet(&mut self, is_ethernet: bool) {
        if is_ethernet != self.is_ethernet {
            self.is_ethernet = is_ethernet;
            self.begin();
        }
    }

    /// `now` is CLOCK_MONOTONIC, ns.
    pub(crate) fn at(&mut self, now: u64) {
        let period = now >> PERIOD_BITS;
        if period != self.period {
            self.period = period;
            self.begin();
        }
    }

    /// Forgets all marks. The share comes first: a packet in work that knows the one of before must leave no mark that stays valid.
    fn begin(&self) {
        let share = self.share;
        self.shown.set(0, WeirSample { share, ..self.shown.get(0) });
        let seed = if self.is_ethernet && share != ALL_FLOWS { secret() } else { 0 };
        self.shown.set(0, WeirSample { seed, share, unused: 0 });
    }
}

#[cfg(test)]
mod tests {
    use weir_sys::privilege::test_needs_root;

    use super::*;
    use crate::watch::load;

    #[test]
    fn root_marks_are_of_one_sample_and_one_half_minute() {
        if test_needs_root() {
            return;
        }
        let object = load(&crate::Options::default()).unwrap();
        let mut sample = Sample::new(object.map(".bss.sample").unwrap().share().unwrap());
        let mut shown = |change: &dyn Fn(&mut Sample)| {
            change(&mut sample);
            let WeirSample { seed, share, .. } = sample.shown.get(0);
            (seed, share)
        };
        let half = u32::MAX / 2;
        assert_eq!(shown(&|_| ()), (0, 0));
        assert_eq!(shown(&|s| s.set_share(0.5)), (0, half), "without Ethernet there are no marks");
        let first = shown(&|s| s.set_ethernet(true));
        assert!(first.0 != 0 && first.1 == half);
        assert_eq!(shown(&|s| s.set_ethernet(true)), first);
        assert_eq!(shown(&|s| s.at((1 << PERIOD_BITS) - 1)), first);
        let second = shown(&|s| s.at(1 << PERIOD_BITS));
        assert!(second.0 != 0 && second.0 != first.0 && second.1 == half);
        let third = shown(&|s| s.set_share(0.25));
        assert!(third.0 != 0 && third.0 != second.0 && third.1 == half / 2);
        assert_eq!(shown(&|s| s.set_share(1.0)), (0, ALL_FLOWS), "all flows are looked at");
        assert_eq!(shown(&|s| s.set_ethernet(false)), (0, ALL_FLOWS));
    }
}
