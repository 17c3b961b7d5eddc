/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The delay histogram: exact below 2^(WEIR_DELAY_BITS + 1), and with 2^WEIR_DELAY_BITS buckets in each octave above, which
 * is what HDR histograms do. */
#ifndef WEIR_DELAY_H
#define WEIR_DELAY_H

#include <bpf/bpf_helpers.h>
#include "mapped.h"
#include "shared.h"

_Static_assert(WEIR_DELAY_BUCKETS == (32 - WEIR_DELAY_BITS + 1) << WEIR_DELAY_BITS, "octaves");

/* By core, and for each core by expectation (even or odd epoch). */
MAPPED_ARRAY(delays, 1, __u64);

/* Number of the highest bit that is set; there is no instruction for it. */
static __always_inline __u32 log2_of(__u32 v)
{
	__u32 r = 0;

	if (v >> 16) {
		r = 16;
		v >>= 16;
	}
	if (v >> 8) {
		r += 8;
		v >>= 8;
	}
	if (v >> 4) {
		r += 4;
		v >>= 4;
	}
	if (v >> 2) {
		r += 2;
		v >>= 2;
	}
	return r + (v >> 1);
}

static __always_inline __u32 bucket_of(__u32 ns)
{
	__u32 shift;

	if (ns < 2U << WEIR_DELAY_BITS)
		return ns;
	shift = log2_of(ns) - WEIR_DELAY_BITS;
	return (shift << WEIR_DELAY_BITS) + (ns >> shift);
}

/* `set` is that of the core's counters. */
static __always_inline void record_delay(__u32 set, __u32 ns)
{
	__u32 at = set * WEIR_DELAY_BUCKETS + bucket_of(ns);
	__u64 *count = bpf_map_lookup_elem(&delays, &at);

	if (count)
		++*count;
}

#endif
