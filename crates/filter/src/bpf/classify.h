// Which class an address belongs to. BITS is how many bits a class has in the tables of IPv4: 2 or 8.
//
// The tables are sections of their own, whose place in memory is known when the programs are loaded: nothing is called and no map
// is looked up to read them. Other lists are other tables with other programs.
#pragma once

#define MIXED ((1u << BITS) - 1)
#define PER_ENTRY (32 / BITS)
#define PER_OCTET (8 / BITS)

// The constants. Volatile, or the compiler would take the zeros that stand here for what it will be.
const volatile struct weir_config config SEC(".rodata.config");

// The classes of some /24s in a row: in the lower half a class for each, from the lowest bits on; the highest number: look into its
// block. In the upper half the places of their blocks: that of each is as far behind as it is itself.
__u64 level1[(1 << 24) / PER_ENTRY] SEC(".bss.level1");

// The class of each address of a /24, from the lowest bits of an octet on.
struct block {
	__u8 octets[256 / PER_OCTET];
};

// The /24s that are not all of one class. Like those below of any length, which is set before the programs are loaded.
struct block blocks[1] SEC(".bss.blocks");

// The places of the boundaries of a part of IPv6.
struct weir_bucket buckets[WEIR_BUCKETS] SEC(".bss.buckets");

// The boundaries, in order.
struct weir_boundary boundaries[1] SEC(".bss.boundaries");

// The beginning of a section of any length, without what the compiler believes of its length.
#define FIRST_OF(section)                                   \
	({                                                  \
		typeof(section[0]) *first_ = section;       \
		asm volatile("" : "+r"(first_));            \
		first_;                                     \
	})

// Host order.
static __always_inline __u32 class4(__u32 address)
{
	__u32 net = address >> 8, at = address & 0xff, number;
	// The number of the /24 in its entry: its place times BITS, which is a power of two.
	__u32 shift = address >> (8 - __builtin_ctz(BITS)) & (PER_ENTRY - 1) * BITS;
	__u64 entry = level1[net / PER_ENTRY];

	number = entry >> shift & MIXED;
	if (number != MIXED)
		return number;
	number = (entry >> 32) + shift / BITS;
	// It never is; but the verifier cannot know.
	if (UNLIKELY(number >= config.blocks))
		return 0;
	return FIRST_OF(blocks)[number].octets[at / PER_OCTET] >> (at % PER_OCTET * BITS) & MIXED;
}

struct search {
	__u64 high;
	__u64 low;
	// The last boundary at or below the address is at `begin` or later, and before `end`.
	__u32 begin;
	__u32 end;
	__u32 class_number;
};

// One step, as a callback: unrolled, every step would double what the verifier looks at.
static long step(__u32 number, void *context)
{
	struct search *s = context;
	__u32 middle = s->begin + (s->end - s->begin) / 2;
	struct weir_boundary *b;

	(void)number;
	if (s->begin >= s->end || middle >= config.boundaries)
		return 1;
	b = &FIRST_OF(boundaries)[middle];
	if (b->high < s->high || (b->high == s->high && b->low <= s->low)) {
		s->class_number = b->class_number;
		s->begin = middle + 1;
	} else {
		s->end = middle;
	}
	return s->begin >= s->end;
}

static __always_inline __u32 class6(__u64 high, __u64 low)
{
	struct search s = { .high = high, .low = low };
	struct weir_bucket *bucket;
	__u32 at;

	if (high >> 61 == 1)
		at = (high >> (61 - WEIR_BUCKET_BITS)) & ((1 << WEIR_BUCKET_BITS) - 1);
	else
		at = (1 << WEIR_BUCKET_BITS) + (high >> 61 > 1);
	bucket = &buckets[at];
	if (!bucket->end)
		return bucket->begin;
	// The boundary before the bucket's first one holds up to that.
	s.begin = bucket->begin ? bucket->begin - 1 : 0;
	s.end = bucket->end;
	bpf_loop(WEIR_SEARCH_STEPS, step, &s, 0);
	return s.class_number;
}
