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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct weir_sample_key);
	__type(value, struct weir_sample);
} samples SEC(".maps");

// In a section of their own: the other one begins with the configuration.
static const struct weir_sum no_sum SEC(".rodata.zero");
static const struct weir_sample no_sample SEC(".rodata.zero");

static __always_inline struct weir_sum *sum_of(const struct weir_group *group)
{
	struct weir_sum *sum = bpf_map_lookup_elem(&groups, group);

	if (!sum) {
		// Another core may have been faster: then this fails, and the entry is there all the same.
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

// Counts a packet. Room for a sample of it, if it is drawn: every packet of the window is as likely to be among those kept
// at its end (Vitter 1985, algorithm R).
static __always_inline struct weir_sample *count(const struct weir_group *group, __u32 bytes)
{
	struct weir_sum *sum = sum_of(group);
	struct weir_sample *sample;
	struct weir_lost *none;
	__u64 slot;

	if (sum) {
		sum->packets++;
		sum->bytes += bytes;
		slot = sum->packets - 1;
		if (slot >= watch.samples)
			slot = ((__u64)bpf_get_prandom_u32() * (sum->packets & 0xffffffff)) >> 32;
		if (slot >= watch.samples)
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
