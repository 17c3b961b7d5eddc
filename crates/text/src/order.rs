//! Rows and maps in order, by one sort for all types.
//!
//! The standard library compiles a sort of several kilobytes for each type and each order. Most of weir's sorts order some dozen
//! rows for a table, so they share one here, which costs a call for each comparison. Sorts of millions of values use the
//! standard library's.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Sorts as [`slice::sort_by`] does: stable, so equal items keep their order.
pub fn by<T>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Ordering) {
    let sorted = sorted(items.len(), &mut |a, b| compare(&items[a], &items[b]));
    for (a, b) in swaps(sorted) {
        items.swap(a, b);
    }
}

/// Sorts as [`slice::sort_by_key`] does: stable, so items with equal keys keep their order.
pub fn by_key<T, K: Ord>(items: &mut [T], mut key: impl FnMut(&T) -> K) {
    by(items, |a, b| key(a).cmp(&key(b)));
}

/// A sorted map of these pairs; of pairs with equal keys the last one. `collect` would sort the pairs first, by code of its own for
/// every place where it is called.
pub fn map<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(pairs);
    map
}

/// The same of items, each of them once.
pub fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}

/// The places 0 to `len`, sorted by what they hold. Not inlined: it holds the only copy of the sort.
#[inline(never)]
fn sorted(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|a, b| compare(*a, *b));
    places
}

/// Pairs of places that have to be swapped, one after the other, so that each place gets what `from` says.
#[inline(never)]
fn swaps(mut from: Vec<usize>) -> Vec<(usize, usize)> {
    let mut swaps = Vec::new();
    for start in 0..from.len() {
        // Places that wait for each other are a circle: once around it.
        let mut place = start;
        loop {
            let next = std::mem::replace(&mut from[place], place);
            if next == start {
                break;
            }
            swaps.push((place, next));
            place = next;
        }
    }
    swaps
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library_does(keys in prop::collection::vec(0_u8..20, 0..200)) {
            // The second part tells equal keys apart.
            let rows: Vec<(u8, String)> = keys.iter().enumerate().map(|(n, key)| (*key, n.to_string())).collect();
            let (mut found, mut expected) = (rows.clone(), rows.clone());
            by(&mut found, |a, b| b.0.cmp(&a.0));
            expected.sort_by_key(|row| Reverse(row.0));
            prop_assert_eq!(&found, &expected);

            let (mut found, mut expected) = (rows.clone(), rows);
            by_key(&mut found, |row| Reverse(row.0 % 7));
            expected.sort_by_key(|row| Reverse(row.0 % 7));
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn maps_and_sets_are_the_collected_ones(pairs in prop::collection::vec((0_u8..20, any::<u8>()), 0..50)) {
            prop_assert_eq!(set(pairs.clone()), pairs.iter().copied().collect());
            prop_assert_eq!(map(pairs.clone()), pairs.into_iter().collect());
        }
    }
}
