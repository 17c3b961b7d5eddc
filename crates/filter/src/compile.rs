//! Lists into tables. Pure.

use weir_prefix::Ranges;

use crate::shared::{WEIR_BUCKET_BITS, WEIR_BUCKETS, WEIR_CLASSES, WeirBoundary, WeirBucket};

/// How far back a row of blocks is tried to be laid into gaps that others left.
const LOOK_BACK: usize = 64;

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
    /// 2 bits: up to two lists, 8 MiB.
    Few,
    /// 8 bits: up to 254 lists, 32 MiB.
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
    pub const fn bits(self) -> u32 {
        match self {
            Width::Few => 2,
            Width::Many => 8,
        }
    }

    /// The number that stands for "look further".
    fn mixed(self) -> u64 {
        (1 << self.bits()) - 1
    }

    /// /24s that share an entry of the first table: its lower half is full of their classes.
    const fn per_entry(self) -> usize {
        (32 / self.bits()) as usize
    }

    /// Addresses in a word of a block.
    const fn per_word(self) -> usize {
        (64 / self.bits()) as usize
    }

    /// Words of the block of a /24.
    pub(crate) const fn block_words(self) -> usize {
        256 / self.per_word()
    }

    /// The class at that place of a word.
    fn class(self, word: u64, at: usize) -> u64 {
        word >> (at * self.bits() as usize) & self.mixed()
    }

    /// Puts a class there.
    fn put(self, word: &mut u64, at: usize, number: u64) {
        let shift = at * self.bits() as usize;
        *word = *word & !(self.mixed() << shift) | number << shift;
    }
}

/// Tables ready to be put into the kernel.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// How wide an entry is.
    pub width: Width,
    /// In each entry, classes of some /24s in its lower half, and where their blocks are in its upper one.
    pub(crate) level1: Vec<u64>,
    /// Of each /24 that is not all of one class, the class of each of its addresses: [`Width::block_words`] each.
    pub(crate) blocks: Vec<u64>,
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
        let (level1, blocks) = table4(width, &v4);
        let boundaries = boundaries(&v6);
        let buckets = buckets(&boundaries);
        Ok(Compiled { width, level1, blocks, buckets, boundaries })
    }

    /// The class of an IPv4 address, read from the tables as the program does it.
    pub fn class4(&self, address: u32) -> u32 {
        let (width, net, at) = (self.width, (address >> 8) as usize, (address & 0xff) as usize);
        let (entry, place) = (self.level1[net / width.per_entry()], net % width.per_entry());
        let number = width.class(entry, place);
        if number != width.mixed() {
            return number as u32;
        }
        let block = ((entry >> 32) as usize + place) * width.block_words();
        width.class(self.blocks[block + at / width.per_word()], at % width.per_word()) as u32
    }

    /// Bytes that the tables take in the kernel.
    pub fn bytes(&self) -> u64 {
        let v4 = size_of_val(&self.level1[..]) + size_of_val(&self.blocks[..]);
        (v4 + size_of_val(&self.buckets[..]) + size_of_val(&self.boundaries[..])) as u64
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

/// The blocks of /24s that are not all of one class, in the order in which those are met.
struct Blocks {
    width: Width,
    /// The /24 of the last one.
    last: Option<u32>,
    words: Vec<u64>,
}

impl Blocks {
    /// Writes a class into addresses of a /24, the same one as the last time or one behind it.
    fn put(&mut self, net: u32, addresses: std::ops::RangeInclusive<usize>, number: u64) {
        let length = self.width.block_words();
        if self.last != Some(net) {
            self.last = Some(net);
            self.words.resize(self.words.len() + length, 0);
        }
        let (begin, per_word) = (self.words.len() - length, self.width.per_word());
        for at in addresses {
            self.width.put(&mut self.words[begin + at / per_word], at % per_word, number);
        }
    }
}

fn table4(width: Width, segments: &[(u32, u32)]) -> (Vec<u64>, Vec<u64>) {
    let per_entry = width.per_entry();
    let mut entries = vec![0_u64; (1 << 24) / per_entry];
    let mut blocks = Blocks { width, last: None, words: Vec::new() };
    // One class in all of an entry.
    let spread =
        |number: u64| (0..per_entry).fold(0, |entry, at| entry | number << (at * width.bits() as usize));
    for (at, &(first, number)) in segments.iter().enumerate() {
        let last = segments.get(at + 1).map_or(u32::MAX, |next| next.0 - 1);
        let number = u64::from(number);
        let (first_net, last_net) = (first >> 8, last >> 8);
        let (low, high) = ((first & 0xff) as usize, (last & 0xff) as usize);
        let mut part = |net: u32, addresses| {
            width.put(&mut entries[net as usize / per_entry], net as usize % per_entry, width.mixed());
            blocks.put(net, addresses, number);
        };
        if first_net == last_net && (low != 0 || high != 0xff) {
            part(first_net, low..=high);
            continue;
        }
        if low != 0 {
            part(first_net, low..=0xff);
        }
        if high != 0xff {
            part(last_net, 0..=high);
        }
        let mut net = first_net as usize + usize::from(low != 0);
        // One more than the last whole one; it may be 2^24.
        let whole_to = last_net as usize + usize::from(high == 0xff);
        while net < whole_to {
            if net.is_multiple_of(per_entry) && net + per_entry <= whole_to {
                entries[net / per_entry] = spread(number);
                net += per_entry;
            } else {
                width.put(&mut entries[net / per_entry], net % per_entry, number);
                net += 1;
            }
        }
    }
    let blocks = laid_out(width, &mut entries, &blocks.words);
    (entries, blocks)
}

/// Lays the blocks of each entry out and writes into it where they are. The block of a /24 lies as far behind that as the /24 is in
/// the entry, so that the program need not count: rows with gaps are laid into each other's gaps.
fn laid_out(width: Width, entries: &mut [u64], blocks: &[u64]) -> Vec<u64> {
    let length = width.block_words();
    let mut in_order = blocks.chunks_exact(length);
    let mut laid = Vec::with_capacity(blocks.len());
    // A bit for each place that is taken from `from` on.
    let (mut from, mut taken) = (0_usize, 0_u128);
    for entry in entries {
        let places = (0..width.per_entry()).filter(|at| width.class(*entry, *at) == width.mixed());
        let row = places.fold(0_u128, |row, at| row | 1 << at);
        if row == 0 {
            continue;
        }
        // Behind all that is taken there is room at the latest.
        let shift = (0..LOOK_BACK).find(|shift| taken & row << shift == 0).unwrap_or(LOOK_BACK);
        let begin = from + shift;
        *entry |= (begin as u64) << 32;
        taken |= row << shift;
        for at in (0..width.per_entry()).filter(|at| row >> at & 1 == 1) {
            let end = (begin + at + 1) * length;
            laid.resize(laid.len().max(end), 0);
            laid[end - length..end].copy_from_slice(in_order.next().unwrap_or_default());
        }
        // Places that are left behind are not looked at again.
        let used = (u128::BITS - taken.leading_zeros()) as usize;
        let behind = used.saturating_sub(LOOK_BACK).max(taken.trailing_ones() as usize);
        (from, taken) = (from + behind, taken >> behind);
    }
    laid
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
        buckets[number] = match at.checked_sub(1) {
            // The boundary before the bucket holds for all of it.
            Some(last) if begin == at => WeirBucket { begin: boundaries[last].class_number as u32, end: 0 },
            _ => WeirBucket { begin: begin as u32, end: at as u32 },
        };
    }
    buckets
}
