// The tables of drops.
#pragma once

#include "lost.h"

const volatile struct weir_watch watch;

// By core, so that cores do not wait for each other; preallocated, because drops happen where memory cannot be had.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct weir_group);
	__type(value, struct weir_sum);
} groups SEC(".maps");

// The group that came first to a place keeps it until the window ends. Most drops of a core are of a few groups, and are
// counted here for a fraction of what it costs to look one up in `groups`, where those are that found their place taken. So a
// core has each group in one of the two.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_front);
} front SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct weir_sample_key);
	__type(value, struct weir_sample);
} samples SEC(".maps");

// In a section of their own: the other one begins with the configuration.
static const struct weir_sum no_sum SEC(".rodata.zero");
static const struct weir_sample no_sample SEC(".rodata.zero");

// A group as numbers that are compared and mixed three times and not seven.
typedef __u64 __attribute__((may_alias)) word;
_Static_assert(sizeof(struct weir_group) == 3 * sizeof(word), "three words");

static __always_inline bool same(const word *a, const word *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}

// Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4): the high bits depend on all of the words. The odd
// numbers are fractions of the golden ratio and of roots.
static __always_inline __u32 place_of(const word *group)
{
	__u64 mixed = group[0] ^ group[1] * 0xbb67ae8584caa73bULL ^ group[2] * 0x3c6ef372fe94f82bULL;

	return (mixed * 0x9e3779b97f4a7c15ULL >> 32) * watch.places >> 32;
}

static __always_inline struct weir_sum *sum_in_front(const struct weir_group *group)
{
	__u32 place = place_of((const void *)group);
	struct weir_front *here = bpf_map_lookup_elem(&front, &place);

	if (!here)
		return 0;
	if (same((const void *)&here->group, (const void *)group))
		return &here->sum;
	if (here->sum.packets)
		return 0;
	here->group = *group;
	return &here->sum;
}

static __always_inline struct weir_sum *sum_of(const struct weir_group *group)
{
	struct weir_sum *sum = watch.places ? sum_in_front(group) : 0;

	if (sum)
		return sum;
	sum = bpf_map_lookup_elem(&groups, group);
	if (!sum) {
		// Another core may have been faster: then this fails, and the entry is still there.
		bpf_map_update_elem(&groups, group, &no_sum, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&groups, group);
	}
	return sum;
}

static __always_inline struct weir_sample *room_for(const struct weir_group *group, __u32 slot)
{
	struct weir_sample_key key = { .group = *group, .cpu = bpf_get_smp_processor_id(), .slot = slot };
	struct weir_sample *sample = bpf_map_lookup_elem(&samples, &key);

	if (!sample) {
		bpf_map_update_elem(&samples, &key, &no_sample, BPF_NOEXIST);
		sample = bpf_map_lookup_elem(&samples, &key);
	}
	return sample;
}

// The slot for the sample of the packet that was counted last, at its number `next`; else WEIR_NO_SLOT.
//
// Every packet is as likely to be among those kept at the end (Vitter 1985, algorithm R), but it is not drawn for each by itself.
// From a block of b packets after the n-th, one is kept, with probability samples * b / (n + b), in any of the slots. Then each
// of the block was kept with samples / (n + b), and each of those before is still there with n / (n + b), as it must be.
static __always_inline __u32 slot_of(struct weir_sum *sum)
{
	__u64 n = sum->packets, block, drawn;
	__u32 slot = n <= watch.samples ? n - 1 : sum->slot;

	if (n < watch.samples)
		return slot;
	sum->slot = WEIR_NO_SLOT;
	if (n < sum->end) {
		sum->next = sum->end;
		return slot;
	}
	// Small beside n, so that it matters little where in a block the window ends.
	block = n >= 64 ? n / 64 : 1;
	sum->end = n + block;
	sum->next = sum->end;
	drawn = ((__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32()) % sum->end;
	if (drawn < block * watch.samples) {
		sum->slot = drawn / block;
		sum->next = n + 1 + drawn % block;
	}
	return slot;
}

// Counts a packet. Room for a sample of it, if it is drawn.
static __always_inline struct weir_sample *count(const struct weir_group *group, __u32 bytes)
{
	struct weir_sum *sum = sum_of(group);
	struct weir_sample *sample;
	struct weir_lost *none;
	__u32 slot;

	if (sum) {
		sum->packets++;
		sum->bytes += bytes;
		if (!watch.samples || sum->packets < sum->next)
			return 0;
		slot = slot_of(sum);
		if (slot == WEIR_NO_SLOT)
			return 0;
		sample = room_for(group, slot);
		if (sample)
			return sample;
	}
	none = lost_here();
	if (!none)
		return 0;
	if (sum)
		none->samples++;
	else
		none->packets++;
	return 0;
}
