//! How often each of many keys was seen, in bounded memory: exact up to a number of distinct keys, from there on by
//! Space-Saving with the error of every count known.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT
//! 2005): a new key takes the place of the one with the lowest count and goes on from that count. A count is then never
//! too low, too high by at most the count it went on from, and that is at most the number of keys seen divided by the
//! places. Every key that was seen more often than that is among the places.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use weir_text::order;

/// A key with its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopEntry<K> {
    /// The counted key.
    pub key: K,
    /// How often it was seen, at most.
    pub count: u64,
    /// By how much the count may be too high.
    pub error: u64,
    /// Sum of what was added with it, since it has this place.
    pub bytes: u64,
}

/// Counts of keys.
#[derive(Debug)]
pub struct Top<K> {
    capacity: usize,
    index: HashMap<K, u32, RandomState>,
    places: Vec<TopEntry<K>>,
    /// Once there are more keys than places.
    ranks: Option<Ranks>,
}

/// Places in the order of their counts, so that the lowest is at hand and a count of one more is a single swap.
#[derive(Debug)]
struct Ranks {
    /// Places, the lowest count first.
    order: Vec<u32>,
    /// The position of each place in the order.
    rank: Vec<u32>,
    /// The position of the last place with each count.
    last: HashMap<u64, u32, RandomState>,
}

impl<K: Copy + Eq + Hash + Ord> Top<K> {
    /// With so many places, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, 1 << 24);
        Top { capacity, index: HashMap::default(), places: Vec::new(), ranks: None }
    }

    /// Counts the key once more.
    #[inline]
    pub fn add(&mut self, key: K, bytes: u64) {
        let place = match self.index.get(&key) {
            Some(place) => *place,
            None => self.place_for(key),
        };
        let entry = &mut self.places[place as usize];
        let before = entry.count;
        entry.count += 1;
        entry.bytes = entry.bytes.saturating_add(bytes);
        if let Some(ranks) = &mut self.ranks {
            ranks.raise(place, before, &self.places);
        }
    }

    /// A place of its own, or the one with the lowest count.
    #[cold]
    fn place_for(&mut self, key: K) -> u32 {
        if self.places.len() < self.capacity {
            let place = self.places.len() as u32;
            self.places.push(TopEntry { key, count: 0, error: 0, bytes: 0 });
            self.index.insert(key, place);
            return place;
        }
        let ranks = self.ranks.get_or_insert_with(|| Ranks::of(&self.places));
        let place = ranks.order[0];
        let entry = &mut self.places[place as usize];
        self.index.remove(&entry.key);
        self.index.insert(key, place);
        *entry = TopEntry { key, count: entry.count, error: entry.count, bytes: 0 };
        place
    }

    /// True as long as every count is exact and every key is there.
    pub fn is_exact(&self) -> bool {
        self.ranks.is_none()
    }

    /// Distinct keys, at least.
    pub fn distinct(&self) -> u64 {
        self.places.len() as u64
    }

    /// Returns the most by which a count can be too high. No missing key was seen more often than this.
    pub fn most_error(&self) -> u64 {
        self.ranks.as_ref().map_or(0, |r| self.places[r.order[0] as usize].count)
    }

    /// All places, in no order.
    pub fn places(&self) -> &[TopEntry<K>] {
        &self.places
    }

    /// The `n` most frequent, highest count first, equal ones by key.
    pub fn highest(&self, n: usize) -> Vec<TopEntry<K>> {
        let least = nth_highest(self.places.iter().map(|place| place.count).collect(), n);
        let mut all: Vec<&TopEntry<K>> = self.places.iter().filter(|place| place.count >= least).collect();
        order::by(&mut all, |a, b| b.count.cmp(&a.count).then(a.key.cmp(&b.key)));
        all.into_iter().take(n).copied().collect()
    }
}

/// The `n`th of the counts, the highest one first; 0 if there are fewer. For counts alone: one for every key would be compiled again.
fn nth_highest(mut counts: Vec<u64>, n: usize) -> u64 {
    match n.checked_sub(1).filter(|at| *at < counts.len()) {
        Some(at) => *counts.select_nth_unstable_by(at, |a, b| b.cmp(a)).1,
        None => 0,
    }
}

/// The places of the counts, the lowest one first.
fn ascending(counts: &[u64]) -> Vec<u32> {
    let mut places: Vec<u32> = (0..counts.len() as u32).collect();
    places.sort_unstable_by_key(|place| counts[*place as usize]);
    places
}

impl Ranks {
    fn of<K>(places: &[TopEntry<K>]) -> Self {
        let order = ascending(&places.iter().map(|place| place.count).collect::<Vec<_>>());
        let mut rank = vec![0; places.len()];
        let mut last = HashMap::default();
        for (at, place) in order.iter().enumerate() {
            rank[*place as usize] = at as u32;
            last.insert(places[*place as usize].count, at as u32);
        }
        Ranks { order, rank, last }
    }

    /// The place's count was `before` and is one more now.
    fn raise<K>(&mut self, place: u32, before: u64, places: &[TopEntry<K>]) {
        let at = self.rank[place as usize];
        let end = self.last.get(&before).copied().unwrap_or(at);
        // To the end of those with the old count; from there on it is the first of those with the new one.
        let other = self.order[end as usize];
        self.order.swap(at as usize, end as usize);
        self.rank[place as usize] = end;
        self.rank[other as usize] = at;
        let left = end.checked_sub(1).filter(|at| places[self.order[*at as usize] as usize].count == before);
        match left {
            Some(at) => self.last.insert(before, at),
            None => self.last.remove(&before),
        };
        self.last.entry(before + 1).or_insert(end);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn counted(keys: &[u16], capacity: usize) -> Top<u16> {
        let mut top = Top::new(capacity);
        for key in keys {
            top.add(*key, 3);
        }
        top
    }

    fn truth(keys: &[u16]) -> BTreeMap<u16, u64> {
        let mut truth = BTreeMap::new();
        for key in keys {
            *truth.entry(*key).or_insert(0) += 1;
        }
        truth
    }

    proptest! {
        #[test]
        fn up_to_its_places_it_is_exact(keys in prop::collection::vec(0_u16..40, 0..500)) {
            let top = counted(&keys, 40);
            let truth = truth(&keys);
            prop_assert!(top.is_exact());
            prop_assert_eq!(top.distinct(), truth.len() as u64);
            let mut expected: Vec<(u64, u16)> = truth.iter().map(|(k, n)| (*n, *k)).collect();
            expected.sort_by_key(|(n, k)| (std::cmp::Reverse(*n), *k));
            let found: Vec<(u64, u16)> = top.highest(40).iter().map(|p| (p.count, p.key)).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(top.places().iter().all(|p| p.error == 0 && p.bytes == 3 * p.count));
        }

        /// The paper's lemmas: the counts add up to the number of keys seen; no count is too low, or too high by more than
        /// its error; no error is more than n / places; every key above that has a place.
        #[test]
        fn beyond_its_places_the_error_is_known(keys in prop::collection::vec(0_u16..300, 0..2000), capacity in 1_usize..40) {
            let top = counted(&keys, capacity);
            let truth = truth(&keys);
            prop_assert_eq!(top.places().iter().map(|p| p.count).sum::<u64>(), keys.len() as u64);
            for place in top.places() {
                let real = truth[&place.key];
                prop_assert!(place.count >= real && place.count - place.error <= real);
                prop_assert!(place.error <= top.most_error());
            }
            prop_assert!(top.most_error() <= keys.len() as u64 / capacity as u64);
            for (key, real) in truth {
                let kept = top.places().iter().any(|p| p.key == key);
                prop_assert!(kept || real <= top.most_error());
            }
            // The order that it keeps is the one that sorting gives.
            if let Some(ranks) = &top.ranks {
                let counts: Vec<u64> = ranks.order.iter().map(|p| top.places()[*p as usize].count).collect();
                prop_assert!(counts.is_sorted());
                for (count, at) in &ranks.last {
                    prop_assert_eq!(counts.iter().rposition(|c| c == count), Some(*at as usize));
                }
            }
        }
    }
}
