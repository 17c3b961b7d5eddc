//! Lost, reordered and duplicated, told apart by sequence numbers.

/// Numbers that are remembered, a power of two: at a million datagrams a second those of the last four seconds.
const REMEMBERED: u64 = 1 << 22;

/// The class of an arriving number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Greater than all before it.
    InOrder,
    /// Smaller than one that came before it, and not seen yet (RFC 4737 section 3.3).
    Reordered,
    /// Seen already (RFC 5560).
    Duplicate,
    /// So far behind that nothing is known of it. It counts as lost.
    Forgotten,
}

/// The numbers seen so far.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Bit n % REMEMBERED: number n was seen, for next - REMEMBERED <= n < next.
    seen: Vec<u64>,
    next: u64,
}

impl Sequence {
    pub(super) fn new() -> Self {
        Sequence { seen: vec![0; (REMEMBERED / 64) as usize], next: 0 }
    }

    /// One more than the greatest number seen (RFC 4737 calls it NextExp).
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Take note of a number.
    #[inline]
    pub(super) fn arrive(&mut self, number: u64) -> Arrival {
        if number >= self.next {
            self.advance(number);
            return Arrival::InOrder;
        }
        if self.next - number > REMEMBERED {
            return Arrival::Forgotten;
        }
        let (word, bit) = place(number);
        if self.seen[word] & bit != 0 {
            return Arrival::Duplicate;
        }
        self.seen[word] |= bit;
        Arrival::Reordered
    }

    /// The numbers up to this one come into what is remembered, all but it unseen.
    #[inline]
    fn advance(&mut self, number: u64) {
        if number - self.next >= REMEMBERED {
            self.seen.fill(0);
        } else {
            for skipped in self.next..number {
                let (word, bit) = place(skipped);
                self.seen[word] &= !bit;
            }
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
        self.next = number + 1;
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    let index = number % REMEMBERED;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::Arrival::{Duplicate, Forgotten, InOrder, Reordered};
    use super::*;
    use std::collections::HashSet;

    fn arrivals(numbers: &[u64]) -> Vec<Arrival> {
        let mut s = Sequence::new();
        numbers.iter().map(|&n| s.arrive(n)).collect()
    }

    #[test]
    fn tells_the_kinds_apart() {
        assert_eq!(arrivals(&[0, 1, 2]), [InOrder, InOrder, InOrder]);
        // RFC 4737 section 7.3, example of the "spaced" kind: 2 and 3 arrive after 4.
        assert_eq!(arrivals(&[1, 4, 2, 3, 5]), [InOrder, InOrder, Reordered, Reordered, InOrder]);
        assert_eq!(
            arrivals(&[0, 0, 2, 1, 1, 2]),
            [InOrder, Duplicate, InOrder, Reordered, Duplicate, Duplicate]
        );
        let far = REMEMBERED + 10;
        assert_eq!(arrivals(&[5, far, 9, 10, 11]), [InOrder, InOrder, Forgotten, Forgotten, Reordered]);
    }

    #[test]
    fn agrees_with_a_set_of_all_numbers() {
        let mut random = 1u64;
        let mut sequence = Sequence::new();
        let (mut seen, mut greatest) = (HashSet::new(), 0);
        for step in 0..300_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Moves on by about 20 a step (so that the ring wraps), with jitter of 64 and gaps.
            let number = step * 20 + (random >> 58);
            let expected = match () {
                () if seen.contains(&number) => Duplicate,
                () if number < greatest => Reordered,
                () => InOrder,
            };
            assert_eq!(sequence.arrive(number), expected, "{number}");
            seen.insert(number);
            greatest = greatest.max(number + 1);
        }
        assert!(sequence.next() > REMEMBERED);
    }
}
