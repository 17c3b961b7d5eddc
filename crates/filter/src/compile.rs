//! Lists into tables. Pure.

use std::collections::BTreeMap;

use weir_prefix::Ranges;

use crate::shared::{WEIR_BUCKET_BITS, WEIR_BUCKETS, WEIR_CLASSES, WeirBoundary, WeirBucket};

/// One list.
#[derive(Debug, Clone, Default)]
pub struct Class {
    /// Its IPv4 addresses.
    pub v4: Ranges<u32>,
    /// Its IPv6 addresses.
    pub v6: Ranges<u128>,
}

/// Bits that a class has in the tables of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 2 bits: up to two lists, 4 MiB.
    Few,
    /// 8 bits: up to 254 lists, 16 MiB.
    Many,
}

impl Width {
    /// The narrowest one that holds so many lists; `None` if none does.
    pub fn for_lists(lists: usize) -> Option<Self> {
        match lists {
            0..=2 => Some(Width::Few),
            3..=254 => Some(Width::Many),
            _ => None,
        }
    }

    /// Bits of an entry.
    pub fn bits(self) -> u32 {
        match self {
            Width::Few => 2,
            Width::Many => 8,
        }
    }

    /// The number that stands for "look further".
    fn mixed(self) -> u64 {
        (1 << self.bits()) - 1
    }

    /// Entries in 64 bits.
    fn per_word(self) -> usize {
        (64 / self.bits()) as usize
    }
}

/// Tables ready to be put into the kernel.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// How wide an entry is.
    pub width: Width,
    /// One entry for each /24.
    pub(crate) level1: Vec<u64>,
    /// Each /24 that is not all of one class, with an entry for each of its addresses.
    pub(crate) mixed: BTreeMap<u32, Vec<u64>>,
    /// One for each /23 of 2000::/3, then those below and above it.
    pub(crate) buckets: Vec<WeirBucket>,
    /// In order; the first one is `::`.
    pub(crate) boundaries: Vec<WeirBoundary>,
}

impl Compiled {
    /// Tables of these lists; the first that has an address wins, and what is in none is of class 0. List `n` is class `n + 1`.
    ///
    /// # Errors
    /// If there are more lists than classes.
    pub fn of(lists: &[Class]) -> Result<Self, String> {
        let width = Width::for_lists(lists.len())
            .ok_or_else(|| format!("{} lists: at most {} have room", lists.len(), WEIR_CLASSES - 1))?;
        let v4 = segments(lists.iter().map(|l| &l.v4));
        let v6 = segments(lists.iter().map(|l| &l.v6));
        let (level1, mixed) = table4(width, &v4);
        let boundaries = boundaries(&v6);
        let buckets = buckets(&boundaries);
        Ok(Compiled { width, level1, mixed, buckets, boundaries })
    }

    /// The class of an IPv4 address, read from the tables as the program does it.
    pub fn class4(&self, address: u32) -> u32 {
        let of = |words: &[u64], at: usize| {
            let per_word = self.width.per_word();
            words[at / per_word] >> (at % per_word * self.width.bits() as usize) & self.width.mixed()
        };
        let net = address >> 8;
        let number = of(&self.level1, net as usize);
        let number = match self.mixed.get(&net) {
            Some(low) if number == self.width.mixed() => of(low, (address & 0xff) as usize),
            _ => number,
        };
        number as u32
    }

    /// Bytes that the tables take in the kernel, about: a hash entry has some 48 bytes of its own (struct htab_elem).
    pub fn bytes(&self) -> u64 {
        let low = self.width.bits() as usize * 32 + 48;
        let arrays = self.level1.len() * 8 + self.buckets.len() * size_of::<WeirBucket>();
        (arrays + self.mixed.len() * low + self.boundaries.len() * size_of::<WeirBoundary>()) as u64
    }
}

/// An address space cut where the class changes: (first address, class), in order, beginning with the lowest address.
fn segments<'a, A>(lists: impl DoubleEndedIterator<Item = &'a Ranges<A>> + ExactSizeIterator) -> Vec<(A, u32)>
where
    A: weir_prefix::Address + Ord + 'a,
{
    let mut taken = Ranges::default();
    let mut pieces: Vec<(A, A, u32)> = Vec::new();
    for (number, list) in (1_u32..).zip(lists) {
        let own = list.minus(&taken);
        pieces.extend(own.as_slice().iter().map(|(first, last)| (*first, *last, number)));
        taken = taken.union(list);
    }
    pieces.extend(taken.complement().as_slice().iter().map(|(first, last)| (*first, *last, 0)));
    pieces.sort_unstable_by_key(|piece| piece.0);
    let mut segments: Vec<(A, u32)> = pieces.into_iter().map(|(first, _, number)| (first, number)).collect();
    segments.dedup_by_key(|segment| segment.1);
    segments
}

fn table4(width: Width, segments: &[(u32, u32)]) -> (Vec<u64>, BTreeMap<u32, Vec<u64>>) {
    let per_word = width.per_word();
    let bits = width.bits() as usize;
    let mut level1 = vec![0_u64; (1 << 24) / per_word];
    let mut mixed: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let put = |words: &mut [u64], at: usize, number: u64| {
        let shift = at % per_word * bits;
        let word = &mut words[at / per_word];
        *word = *word & !(width.mixed() << shift) | number << shift;
    };
    // One class in all entries of a word.
    let spread = |number: u64| (0..per_word).fold(0, |word, at| word | number << (at * bits));
    for (at, &(first, number)) in segments.iter().enumerate() {
        let last = segments.get(at + 1).map_or(u32::MAX, |next| next.0 - 1);
        let number = u64::from(number);
        let (first_net, last_net) = (first >> 8, last >> 8);
        let whole_from = first_net + u32::from(first & 0xff != 0);
        // One more than the last whole one; it may be 2^24.
        let whole_to = last_net + u32::from(last & 0xff == 0xff);
        let mut net = whole_from as usize;
        while net < whole_to as usize {
            if net.is_multiple_of(per_word) && net + per_word <= whole_to as usize {
                level1[net / per_word] = spread(number);
                net += per_word;
            } else {
                put(&mut level1, net, number);
                net += 1;
            }
        }
        let mut part = |net: u32, from: usize, to: usize| {
            put(&mut level1, net as usize, width.mixed());
            let low = mixed.entry(net).or_insert_with(|| vec![0; 256 / per_word]);
            (from..=to).for_each(|at| put(low, at, number));
        };
        let (low, high) = ((first & 0xff) as usize, (last & 0xff) as usize);
        match (low != 0, high != 0xff) {
            _ if first_net == last_net && (low != 0 || high != 0xff) => part(first_net, low, high),
            (begins, ends) => {
                if begins {
                    part(first_net, low, 0xff);
                }
                if ends {
                    part(last_net, 0, high);
                }
            }
        }
    }
    (level1, mixed)
}

fn boundaries(segments: &[(u128, u32)]) -> Vec<WeirBoundary> {
    let boundary = |&(first, number): &(u128, u32)| WeirBoundary {
        high: (first >> 64) as u64,
        low: first as u64,
        class_number: u64::from(number),
    };
    segments.iter().map(boundary).collect()
}

/// The bucket of an address, by its upper half.
fn bucket(high: u64) -> usize {
    let middle = 1 << WEIR_BUCKET_BITS;
    match high >> 61 {
        0 => middle,
        1 => (high >> (61 - WEIR_BUCKET_BITS)) as usize & (middle - 1),
        _ => middle + 1,
    }
}

fn buckets(boundaries: &[WeirBoundary]) -> Vec<WeirBucket> {
    // In the order of addresses: below 2000::/3, the buckets of it, above.
    let middle = 1_usize << WEIR_BUCKET_BITS;
    let order = std::iter::once(middle).chain(0..middle).chain(std::iter::once(middle + 1));
    let mut buckets = vec![WeirBucket { begin: 0, end: 0 }; WEIR_BUCKETS as usize];
    let mut at = 0;
    for number in order {
        let begin = at;
        while at < boundaries.len() && bucket(boundaries[at].high) == number {
            at += 1;
        }
        buckets[number] = WeirBucket { begin: begin as u32, end: at as u32 };
    }
    buckets
}
