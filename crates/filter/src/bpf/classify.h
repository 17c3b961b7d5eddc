// Which class an address belongs to. BITS is how many bits a class has in the tables of IPv4: 2 or 8.
#pragma once

#define MIXED ((1u << BITS) - 1)
#define PER_WORD (64 / BITS)

#define GROUPS ((1 << 24) / PER_WORD / WEIR_GROUP_WORDS)

// What each address of a /24 belongs to.
struct block {
	__u64 words[256 / PER_WORD];
};

// Sizes instead of types: clang leaves the type of a map's map's values unfinished.
struct inner_level1 {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GROUPS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct weir_group));
};

// What each /24 belongs to.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_GENERATIONS);
	__type(key, __u32);
	__array(values, struct inner_level1);
} level1 SEC(".maps");

struct inner_blocks {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	// Of any length.
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct block));
};

// The /24s that are not all of one class.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_GENERATIONS);
	__type(key, __u32);
	__array(values, struct inner_blocks);
} blocks SEC(".maps");

struct inner_buckets {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_BUCKETS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct weir_bucket));
};

// Where the boundaries of a part of IPv6 are.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_GENERATIONS);
	__type(key, __u32);
	__array(values, struct inner_buckets);
} buckets SEC(".maps");

struct inner_boundaries {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	// Of any length.
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct weir_boundary));
};

// The boundaries, in order.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_GENERATIONS);
	__type(key, __u32);
	__array(values, struct inner_boundaries);
} boundaries SEC(".maps");

// How many entries of a word are MIXED, which has all bits set. BPF has no instruction that counts bits.
static __always_inline __u32 mixed_in(__u64 word)
{
#if BITS == 2
	word &= word >> 1;
	word &= 0x5555555555555555;
	word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
#else
	word &= word >> 4;
	word &= word >> 2;
	word &= word >> 1;
	word &= 0x0101010101010101;
#endif
	// The highest byte of the product is the sum of all bytes.
	return word * 0x0101010101010101 >> 56;
}

// Host order. Anything above the classes there are: no table.
static __always_inline __u32 class4(__u32 generation, __u32 address)
{
	__u32 net = address >> 8, at = net / PER_WORD / WEIR_GROUP_WORDS, shift = net % PER_WORD * BITS, number;
	void *inner = bpf_map_lookup_elem(&level1, &generation);
	struct weir_group *group;
	struct block *block;
	__u64 word;

	if (UNLIKELY(!inner))
		return WEIR_CLASSES;
	group = bpf_map_lookup_elem(inner, &at);
	if (UNLIKELY(!group))
		return WEIR_CLASSES;
	at = net / PER_WORD % WEIR_GROUP_WORDS;
	word = group->words[at];
	number = word >> shift & MIXED;
	if (number != MIXED)
		return number;
	at = group->base + group->ranks[at] + mixed_in(word & ((1ull << shift) - 1));
	inner = bpf_map_lookup_elem(&blocks, &generation);
	if (UNLIKELY(!inner))
		return WEIR_CLASSES;
	block = bpf_map_lookup_elem(inner, &at);
	if (UNLIKELY(!block))
		return WEIR_CLASSES;
	at = address & 0xff;
	return block->words[at / PER_WORD] >> (at % PER_WORD * BITS) & MIXED;
}

struct search {
	__u64 high;
	__u64 low;
	__u32 generation;
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
	void *inner = bpf_map_lookup_elem(&boundaries, &s->generation);
	struct weir_boundary *b;

	(void)number;
	if (!inner || s->begin >= s->end)
		return 1;
	b = bpf_map_lookup_elem(inner, &middle);
	if (!b)
		return 1;
	if (b->high < s->high || (b->high == s->high && b->low <= s->low)) {
		s->class_number = b->class_number;
		s->begin = middle + 1;
	} else {
		s->end = middle;
	}
	return s->begin >= s->end;
}

static __always_inline __u32 class6(__u32 generation, __u64 high, __u64 low)
{
	struct search s = { .high = high, .low = low, .generation = generation, .class_number = WEIR_CLASSES };
	void *inner = bpf_map_lookup_elem(&buckets, &generation);
	struct weir_bucket *bucket;
	__u32 at;

	if (!inner)
		return WEIR_CLASSES;
	if (high >> 61 == 1)
		at = (high >> (61 - WEIR_BUCKET_BITS)) & ((1 << WEIR_BUCKET_BITS) - 1);
	else
		at = (1 << WEIR_BUCKET_BITS) + (high >> 61 > 1);
	bucket = bpf_map_lookup_elem(inner, &at);
	if (!bucket)
		return WEIR_CLASSES;
	if (!bucket->end)
		return bucket->begin;
	// The boundary before the bucket's first one holds up to that.
	s.begin = bucket->begin ? bucket->begin - 1 : 0;
	s.end = bucket->end;
	bpf_loop(WEIR_SEARCH_STEPS, step, &s, 0);
	return s.class_number;
}
