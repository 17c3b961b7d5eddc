//! Lists into tables. Pure.

use weir_prefix::Ranges;

use crate::shared::{
    WEIR_BUCKET_BITS, WEIR_BUCKETS, WEIR_CLASSES, WEIR_GROUP_WORDS, WeirBoundary, WeirBucket, WeirGroup,
};

/// Words of a group.
const GROUP_WORDS: usize = WEIR_GROUP_WORDS as usize;

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
    /// 2 bits: up to two lists, 5 MiB.
    Few,
    /// 8 bits: up to 254 lists, 20 MiB.
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

    /// Entries in 64 bits.
    const fn per_word(self) -> usize {
        (64 / self.bits()) as usize
    }

    /// Words of the block of a /24.
    pub(crate) const fn block_words(self) -> usize {
        256 / self.per_word()
    }

    /// The entry at that place of words.
    fn entry(self, words: &[u64], at: usize) -> u64 {
        words[at / self.per_word()] >> (at % self.per_word() * self.bits() as usize) & self.mixed()
    }

    /// How many of the first entries of a word stand for "look further", which has all bits set.
    fn mixed_before(self, word: u64, entries: usize) -> usize {
        let first = match entries * self.bits() as usize {
            64 => word,
            bits => word & ((1 << bits) - 1),
        };
        // The lowest bit of an entry stays set if all of its bits are.
        let all = match self {
            Width::Few => first & first >> 1 & 0x5555_5555_5555_5555,
            Width::Many => {
                let of_four = first & first >> 1 & first >> 2 & first >> 3;
                of_four & of_four >> 4 & 0x0101_0101_0101_0101
            }
        };
        all.count_ones() as usize
    }
}

/// Tables ready to be put into the kernel.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// How wide an entry is.
    pub width: Width,
    /// One entry for each /24, and where the blocks are.
    pub(crate) level1: Vec<WeirGroup>,
    /// Of each /24 that is not all of one class, in order, an entry for each of its addresses: [`Width::block_words`] each.
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
        let (width, net) = (self.width, (address >> 8) as usize);
        let (word, at) = (net / width.per_word(), net % width.per_word());
        let group = &self.level1[word / GROUP_WORDS];
        let word = word % GROUP_WORDS;
        let number = width.entry(&group.words[word..], at);
        if number != width.mixed() {
            return number as u32;
        }
        let before = usize::from(group.ranks[word]) + width.mixed_before(group.words[word], at);
        let begin = (group.base as usize + before) * width.block_words();
        width.entry(&self.blocks[begin..], (address & 0xff) as usize) as u32
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

/// Puts an entry into words.
fn put(width: Width, words: &mut [u64], at: usize, number: u64) {
    let shift = at % width.per_word() * width.bits() as usize;
    let word = &mut words[at / width.per_word()];
    *word = *word & !(width.mixed() << shift) | number << shift;
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
        let begin = self.words.len() - length;
        addresses.for_each(|at| put(self.width, &mut self.words[begin..], at, number));
    }
}

fn table4(width: Width, segments: &[(u32, u32)]) -> (Vec<WeirGroup>, Vec<u64>) {
    let per_word = width.per_word();
    let mut words = vec![0_u64; (1 << 24) / per_word];
    let mut blocks = Blocks { width, last: None, words: Vec::new() };
    // One class in all entries of a word.
    let spread =
        |number: u64| (0..per_word).fold(0, |word, at| word | number << (at * width.bits() as usize));
    for (at, &(first, number)) in segments.iter().enumerate() {
        let last = segments.get(at + 1).map_or(u32::MAX, |next| next.0 - 1);
        let number = u64::from(number);
        let (first_net, last_net) = (first >> 8, last >> 8);
        let (low, high) = ((first & 0xff) as usize, (last & 0xff) as usize);
        let mut part = |net: u32, addresses| {
            put(width, &mut words, net as usize, width.mixed());
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
            if net.is_multiple_of(per_word) && net + per_word <= whole_to {
                words[net / per_word] = spread(number);
                net += per_word;
            } else {
                put(width, &mut words, net, number);
                net += 1;
            }
        }
    }
    (groups(width, &words), blocks.words)
}

/// Words with the numbers of the blocks that they lead to.
fn groups(width: Width, words: &[u64]) -> Vec<WeirGroup> {
    let mut base = 0;
    let (groups, _) = words.as_chunks::<GROUP_WORDS>();
    let group = |words: &[u64; GROUP_WORDS]| {
        let mut group = WeirGroup { words: *words, base, ranks: [0; GROUP_WORDS] };
        let mut before = 0;
        for (rank, word) in group.ranks.iter_mut().zip(words) {
            *rank = before as u8;
            before += width.mixed_before(*word, width.per_word());
        }
        base += before as u32;
        group
    };
    groups.iter().map(group).collect()
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
