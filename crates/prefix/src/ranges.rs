//! Sets of addresses, as ranges.

use std::fmt;

use crate::address::Address;

/// A set of addresses: ranges in order that neither overlap nor touch, both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges<A> {
    ranges: Vec<(A, A)>,
}

impl<A> Default for Ranges<A> {
    fn default() -> Self {
        Ranges { ranges: Vec::new() }
    }
}

/// A block of `2^(bits - length)` addresses, as routers and filters write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix<A> {
    /// First address.
    pub first: A,
    /// Bits that all its addresses share, 0 to 32 or 128.
    pub length: u8,
}

impl<A: Address> Prefix<A> {
    /// The block that an address lies in; bits of the address beyond `length` must be zero.
    pub fn new(first: A, length: u8) -> Option<Self> {
        (length <= A::BITS && first.trailing_zeros().saturating_add(length) >= A::BITS)
            .then_some(Prefix { first, length })
    }

    /// Its last address.
    pub fn last(self) -> A {
        self.first.block_end(A::BITS - self.length)
    }
}

/// An address alone is written without a length, as every reader of such lists understands.
impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == A::BITS {
            write!(f, "{}", self.first.text())
        } else {
            write!(f, "{}/{}", self.first.text(), self.length)
        }
    }
}

/// Difference between two sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<A> {
    /// In the new one only.
    pub added: Ranges<A>,
    /// In the old one only.
    pub removed: Ranges<A>,
}

impl<A: Address> Ranges<A> {
    /// The set of all addresses in these ranges, in whatever order they come and however they overlap.
    pub fn new(ranges: impl IntoIterator<Item = (A, A)>) -> Self {
        let mut ranges: Vec<(A, A)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        Ranges::in_order(ranges.into_iter())
    }

    /// As [`Ranges::new`], of ranges that come by their first addresses.
    fn in_order(ranges: impl Iterator<Item = (A, A)>) -> Self {
        let mut merged: Vec<(A, A)> = Vec::with_capacity(ranges.size_hint().0);
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if end.next().is_none_or(|next| first <= next) => *end = (*end).max(last),
                _ => merged.push((first, last)),
            }
        }
        Ranges { ranges: merged }
    }

    /// Every address.
    pub fn all() -> Self {
        Ranges { ranges: vec![(A::FIRST, A::LAST)] }
    }

    /// The ranges, in order.
    pub fn as_slice(&self) -> &[(A, A)] {
        &self.ranges
    }

    /// True if no address is in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many addresses are in it.
    pub fn addresses(&self) -> f64 {
        // Not `sum`, which is -0 of nothing.
        self.ranges.iter().fold(0.0, |sum, (first, last)| sum + first.distance(*last))
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: A) -> bool {
        let after = self.ranges.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).is_some_and(|i| address <= self.ranges[i].1)
    }

    /// Addresses in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (mut a, mut b) =
            (self.ranges.iter().copied().peekable(), other.ranges.iter().copied().peekable());
        let next = || match (a.peek(), b.peek()) {
            (Some(one), Some(another)) if another < one => b.next(),
            (None, _) => b.next(),
            _ => a.next(),
        };
        Ranges::in_order(std::iter::from_fn(next))
    }

    /// Addresses not in it.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        let mut from = Some(A::FIRST);
        for (first, last) in &self.ranges {
            if let (Some(from), Some(before)) = (from, first.previous())
                && from <= before
            {
                ranges.push((from, before));
            }
            from = last.next();
        }
        ranges.extend(from.map(|from| (from, A::LAST)));
        Ranges { ranges }
    }

    /// Addresses in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut a, mut b) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        let mut ranges = Vec::new();
        while let (Some((first, last)), Some((other_first, other_last))) = (a.peek(), b.peek()) {
            let common = (*first.max(other_first), *last.min(other_last));
            if common.0 <= common.1 {
                ranges.push(common);
            }
            if last < other_last {
                a.next()
            } else {
                b.next()
            };
        }
        Ranges { ranges }
    }

    /// Addresses in this and not in the other.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.intersection(&other.complement())
    }

    /// Returns the changes since an older set.
    pub fn since(&self, old: &Self) -> Difference<A> {
        Difference { added: self.minus(old), removed: old.minus(self) }
    }

    /// The fewest prefixes that make up the set, in order.
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix<A>> + '_ {
        self.ranges.iter().flat_map(|(first, last)| Blocks { next: Some(*first), last: *last })
    }

    /// The ranges as elements of an interval set of nftables, which keeps two ends for each: there are fewer of them than prefixes.
    pub fn elements(&self) -> impl Iterator<Item = Element<A>> + '_ {
        self.ranges.iter().map(|(first, last)| Element { first: *first, last: *last })
    }
}

/// `FIRST-LAST`, or an address alone.
#[derive(Debug, Clone, Copy)]
pub struct Element<A> {
    first: A,
    last: A,
}

impl<A: Address> fmt::Display for Element<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first.text()),
            false => write!(f, "{}-{}", self.first.text(), self.last.text()),
        }
    }
}

/// The prefixes of one range: from its start, always the greatest block that begins there and fits.
struct Blocks<A> {
    next: Option<A>,
    last: A,
}

impl<A: Address> Iterator for Blocks<A> {
    type Item = Prefix<A>;

    fn next(&mut self) -> Option<Prefix<A>> {
        let first = self.next?;
        let mut bits = first.trailing_zeros();
        while first.block_end(bits) > self.last {
            bits -= 1;
        }
        let end = first.block_end(bits);
        self.next = end.next().filter(|next| *next <= self.last);
        Some(Prefix { first, length: A::BITS - bits })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn prefixes(ranges: &[(u32, u32)]) -> Vec<String> {
        Ranges::new(ranges.iter().copied()).prefixes().map(|p| p.to_string()).collect()
    }

    #[test]
    fn ranges_become_the_fewest_prefixes() {
        // 10.0.0.0 - 10.0.0.9, by hand: 8 + 2.
        assert_eq!(prefixes(&[(0x0a00_0000, 0x0a00_0009)]), ["10.0.0.0/29", "10.0.0.8/31"]);
        assert_eq!(prefixes(&[(0, u32::MAX)]), ["0.0.0.0/0"]);
        assert_eq!(prefixes(&[(1, u32::MAX - 1)]).len(), 62);
        assert_eq!(prefixes(&[(5, 5), (4, 4)]), ["0.0.0.4/31"]);
        assert_eq!(prefixes(&[(7, 3)]), [""; 0]);
        let all: Vec<String> = Ranges::<u128>::all().prefixes().map(|p| p.to_string()).collect();
        assert_eq!(all, ["::/0"]);
    }

    #[test]
    fn addresses_are_counted_with_both_ends() {
        assert_eq!(Ranges::new([(0u32, 9), (20, 20)]).addresses(), 11.0);
        assert_eq!(Ranges::<u32>::all().addresses(), 4_294_967_296.0);
        let none = Ranges::<u128>::default();
        assert!(none.is_empty() && none.addresses() == 0.0 && none.addresses().is_sign_positive());
    }

    #[test]
    fn a_prefix_has_no_bits_beyond_its_length() {
        assert!(Prefix::new(0x0a00_0001u32, 24).is_none());
        assert_eq!(Prefix::new(0x0a00_0000u32, 24).unwrap().last(), 0x0a00_00ff);
        assert_eq!(Prefix::new(0u32, 0).unwrap().last(), u32::MAX);
        assert!(Prefix::new(0u32, 33).is_none());
    }

    /// A small universe, in which sets can be written out.
    fn small() -> impl Strategy<Value = Vec<(u32, u32)>> {
        prop::collection::vec((0u32..200, 0u32..20), 0..12)
            .prop_map(|v| v.into_iter().map(|(a, n)| (a, a + n)).collect())
    }

    fn members(ranges: &Ranges<u32>) -> BTreeSet<u32> {
        ranges.as_slice().iter().flat_map(|(a, b)| *a..=(*b).min(300)).collect()
    }

    proptest! {
        #[test]
        fn sets_behave_as_sets(a in small(), b in small(), probe in 0u32..300) {
            let plain = |v: &[(u32, u32)]| v.iter().flat_map(|(a, b)| *a..=*b).collect::<BTreeSet<_>>();
            let (x, y) = (plain(&a), plain(&b));
            let (a, b) = (Ranges::new(a), Ranges::new(b));
            prop_assert_eq!(members(&a), x.clone());
            prop_assert_eq!(a.contains(probe), x.contains(&probe));
            prop_assert_eq!(members(&a.union(&b)), x.union(&y).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(members(&a.intersection(&b)), x.intersection(&y).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(members(&a.minus(&b)), x.difference(&y).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(a.complement().complement(), a.clone());
            let change = a.since(&b);
            prop_assert_eq!(b.minus(&change.removed).union(&change.added), a.clone());
            // Neither overlapping nor touching.
            prop_assert!(a.as_slice().windows(2).all(|w| w[0].1 + 1 < w[1].0));
            // The prefixes make up the same set, each on its own boundary.
            let again = Ranges::new(a.prefixes().map(|p| (p.first, p.last())));
            prop_assert_eq!(&again, &a);
            prop_assert!(a.prefixes().all(|p| Prefix::new(p.first, p.length) == Some(p)));
        }

        #[test]
        fn any_range_of_ipv6_comes_back(first: u128, last: u128) {
            let (first, last) = (first.min(last), first.max(last));
            let ranges = Ranges::new([(first, last)]);
            let again = Ranges::new(ranges.prefixes().map(|p| (p.first, p.last())));
            prop_assert_eq!(again, ranges);
        }
    }
}
