/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The delay histogram, with 2^WEIR_DELAY_BITS buckets in each octave. */
#ifndef WEIR_DELAY_H
#define WEIR_DELAY_H

#include <bpf/bpf_helpers.h>
#include "mapped.h"
#include "shared.h"
#include "weir/octaves.h"

_Static_assert(WEIR_DELAY_BUCKETS == (32 - WEIR_DELAY_BITS + 1) << WEIR_DELAY_BITS, "octaves");

/* By core, and for each core by expectation (even or odd epoch). */
MAPPED_ARRAY(delays, 1, __u64);

/* `set` is that of the core's counters. */
static __always_inline void record_delay(__u32 set, __u32 ns)
{
	__u32 at = set * WEIR_DELAY_BUCKETS + octave_bucket(ns, WEIR_DELAY_BITS);
	__u64 *count = bpf_map_lookup_elem(&delays, &at);

	if (count)
		++*count;
}

#endif
