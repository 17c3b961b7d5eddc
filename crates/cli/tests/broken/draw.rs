//! Random combinations of workload and impairment, the same ones for the same seed.

use super::impairment::{self, Impairment};
use super::work::{WORKS, Work};

/// Impairments against one baseline in one run. Holm's correction lets eight valid rounds tell up to six variants apart.
pub(crate) const MOST: usize = 6;

/// One run: a workload on a good hop and on impaired ones.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    pub(crate) work: Work,
    pub(crate) impairments: Vec<Impairment>,
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}

/// Every pair of workload and impairment that is seen for certain.
pub(crate) fn pairs() -> Vec<(&'static Work, Impairment)> {
    let of = |work: &'static Work| {
        impairment::all().into_iter().filter(|i| i.harm(work).is_some()).map(move |i| (work, i))
    };
    WORKS.iter().flat_map(of).collect()
}

/// So many of these pairs (or all, if they are fewer), none of them twice, in as few runs as hold them.
pub(crate) fn draw(mut pairs: Vec<(&Work, Impairment)>, seed: u64, combinations: usize) -> Vec<Drawn> {
    Random(seed).shuffle(&mut pairs);
    let mut runs: Vec<Drawn> = Vec::new();
    for (work, impairment) in pairs.into_iter().take(combinations) {
        match runs.iter_mut().find(|r| r.work.name == work.name && r.impairments.len() < MOST) {
            Some(run) => run.impairments.push(impairment),
            None => runs.push(Drawn { work: *work, impairments: vec![impairment] }),
        }
    }
    runs
}

#[test]
fn a_seed_draws_the_same_combinations_and_none_twice() {
    let names = |seed| {
        let runs = draw(pairs(), seed, 200);
        let of = |r: &Drawn| r.impairments.iter().map(|i| (r.work.name, i.name())).collect::<Vec<_>>();
        runs.iter().flat_map(of).collect::<Vec<_>>()
    };
    let mut one = names(1);
    assert_eq!(one, names(1));
    assert_ne!(one, names(2));
    one.sort();
    one.dedup();
    assert_eq!(one.len(), 200);
    assert!(draw(pairs(), 1, 200).iter().all(|r| r.impairments.len() <= MOST));
}

#[test]
fn every_workload_and_every_way_take_part() {
    let pairs = pairs();
    for work in WORKS {
        assert!(pairs.iter().any(|(w, _)| w.name == work.name), "{}", work.name);
    }
    for impairment in impairment::all() {
        assert!(pairs.iter().any(|(_, i)| i.way == impairment.way), "{impairment:?}");
    }
}
