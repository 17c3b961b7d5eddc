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

    /// Writes a class into places from `from` to before `to`; `per_word` of them fit into a word, from its lowest bits on. It
    /// fills a word at a time, because most ranges are long.
    fn fill(self, words: &mut [u64], per_word: usize, from: usize, to: usize, number: u64) {
        let bits = self.bits() as usize;
        // The number in every place of a word.
        let spread = number * (u64::MAX / self.mixed());
        let mut at = from;
        while at < to {
            let (place, word) = (at % per_word, &mut words[at / per_word]);
            let count = (per_word - place).min(to - at);
            let mask = u64::MAX >> (64 - count * bits) << (place * bits);
            *word = *word & !mask | spread & mask;
            at += count;
        }
    }
}

/// Tables ready to be put into the kernel.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// How wide an entry is.
    pub width: Width,
    /// In each entry, classes of some /24s in its lower half, and where their blocks are in its upper one.
    pub(crate) level1: Vec<u64>,
    /// For each /24 with more than one class, the class of each of its addresses: [`Width::block_words`] each.
    pub(crate) blocks: Vec<u64>,
    /// One for each /23 of 2000::/3, then those below and above it.
    pub(crate) buckets: Vec<WeirBucket>,
    /// In order; the first one is `::`.
    pub(crate) boundaries: Vec<WeirBoundary>,
}

impl Compiled {
    /// Builds the tables of these lists. The first list that has an address wins; an address in no list has class 0. List `n` is
    /// class `n + 1`.
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
    // Each list is in order already, and this sort makes use of that.
    pieces.sort_by_key(|piece| piece.0);
    let mut segments: Vec<(A, u32)> = pieces.into_iter().map(|(first, _, number)| (first, number)).collect();
    segments.dedup_by_key(|segment| segment.1);
    segments
}

/// The blocks of /24s that are not all of one class, in the order in which those are met.
struct Blocks {
    width: Width,
    /// Their /24s.
    nets: Vec<u32>,
    words: Vec<u64>,
}

impl Blocks {
    /// Writes a class into addresses of a /24, from `low` to `high`: the same one as the last time or one behind it.
    fn put(&mut self, net: u32, low: usize, high: usize, number: u64) {
        let length = self.width.block_words();
        if self.nets.last() != Some(&net) {
            self.nets.push(net);
            self.words.resize(self.words.len() + length, 0);
        }
        let begin = self.words.len() - length;
        self.width.fill(&mut self.words[begin..], self.width.per_word(), low, high + 1, number);
    }
}

fn table4(width: Width, segments: &[(u32, u32)]) -> (Vec<u64>, Vec<u64>) {
    let per_entry = width.per_entry();
    let mut entries = vec![0_u64; (1 << 24) / per_entry];
    let mut blocks = Blocks { width, nets: Vec::new(), words: Vec::new() };
    for (at, &(first, number)) in segments.iter().enumerate() {
        let last = segments.get(at + 1).map_or(u32::MAX, |next| next.0 - 1);
        let number = u64::from(number);
        let (first_net, last_net) = (first >> 8, last >> 8);
        let (low, high) = ((first & 0xff) as usize, (last & 0xff) as usize);
        if first_net == last_net && (low != 0 || high != 0xff) {
            blocks.put(first_net, low, high, number);
            continue;
        }
        if low != 0 {
            blocks.put(first_net, low, 0xff, number);
        }
        // One more than the last whole one; it may be 2^24.
        let whole = first_net as usize + usize::from(low != 0)..last_net as usize + usize::from(high == 0xff);
        // Zero is there already, and most of the table is never written to.
        if number != 0 {
            width.fill(&mut entries, per_entry, whole.start, whole.end, number);
        }
        if high != 0xff {
            blocks.put(last_net, 0, high, number);
        }
    }
    let blocks = laid_out(&mut entries, &blocks);
    (entries, blocks)
}

/// Lays the blocks of each entry out and writes into it which of its /24s have one, and where they are. The block of a /24 lies as far
/// behind that as the /24 is in the entry, so that the program need not count: rows with gaps are laid into each other's gaps.
fn laid_out(entries: &mut [u64], blocks: &Blocks) -> Vec<u64> {
    let (width, length) = (blocks.width, blocks.width.block_words());
    let per_entry = width.per_entry();
    let mut in_order = blocks.words.chunks_exact(length);
    let mut laid = Vec::with_capacity(blocks.words.len());
    // A bit for each place that is taken from `from` on.
    let (mut from, mut taken) = (0_usize, 0_u128);
    for nets in blocks.nets.chunk_by(|a, b| *a as usize / per_entry == *b as usize / per_entry) {
        let entry = &mut entries[nets[0] as usize / per_entry..][..1];
        let places = nets.iter().map(|net| *net as usize % per_entry);
        let row = places.clone().fold(0_u128, |row, at| row | 1 << at);
        // Behind all that is taken there is room at the latest.
        let shift = (0..LOOK_BACK).find(|shift| taken & row << shift == 0).unwrap_or(LOOK_BACK);
        let begin = from + shift;
        taken |= row << shift;
        for at in places {
            width.fill(entry, per_entry, at, at + 1, width.mixed());
            let end = (begin + at + 1) * length;
            laid.resize(laid.len().max(end), 0);
            laid[end - length..end].copy_from_slice(in_order.next().unwrap_or_default());
        }
        entry[0] |= (begin as u64) << 32;
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

/// Returns the position of an address's bucket in the order of addresses, by the address's upper half: below 2000::/3, within it,
/// above it.
fn position(high: u64) -> usize {
    let middle = 1 << WEIR_BUCKET_BITS;
    match high >> 61 {
        0 => 0,
        1 => 1 + ((high >> (61 - WEIR_BUCKET_BITS)) as usize & (middle - 1)),
        _ => middle + 1,
    }
}

fn buckets(boundaries: &[WeirBoundary]) -> Vec<WeirBucket> {
    let middle = 1_usize << WEIR_BUCKET_BITS;
    let mut buckets = vec![WeirBucket { begin: 0, end: 0 }; WEIR_BUCKETS as usize];
    // In the table those of 2000::/3 come first.
    let mut put = |position: usize, bucket| {
        let at = if position == 0 { middle } else { position - usize::from(position <= middle) };
        buckets[at] = bucket;
    };
    let (mut next, mut at, mut class) = (0, 0, 0);
    let same = |a: &WeirBoundary, b: &WeirBoundary| position(a.high) == position(b.high);
    for own in boundaries.chunk_by(same) {
        let position = position(own[0].high);
        // The boundary before holds for all of the buckets between; those of class 0 are there already.
        (next..position).filter(|_| class != 0).for_each(|p| put(p, WeirBucket { begin: class, end: 0 }));
        put(position, WeirBucket { begin: at, end: at + own.len() as u32 });
        (next, at) = (position + 1, at + own.len() as u32);
        class = own[own.len() - 1].class_number as u32;
    }
    (next..middle + 2).filter(|_| class != 0).for_each(|p| put(p, WeirBucket { begin: class, end: 0 }));
    buckets
}
