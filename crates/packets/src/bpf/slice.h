// SPDX-License-Identifier: GPL-2.0 OR MIT
// How fast this core is just now: a transfer without a schedule is cut into slices, and after each two batches of frames like its own
// go through a router of our own, which does nothing but forward. If the sender's core forwards, both are the same work in the
// same kernel functions, and are slowed down by the same things: a neighbour on the core's other hyperthread, its clock rate.
#pragma once

#include "mapped.h"

// By number, from the first; `WEIR_SLICES` are kept.
MAPPED_ARRAY(slices, WEIR_SLICES, struct weir_slice);

static __always_inline __u32 up_to_32_bits(__u64 ns)
{
	return ns >> 32 ? 0xffffffff : ns;
}

// The way of each frame: true if to the reference router. All of a batch go one way. The kernel has forwarded a batch when the next one
// begins, so that the time between two beginnings is the batch's. In each of the router's turns the second batch is timed: the
// first brings into the caches what the gateway has driven out, more of it or less.
static __always_inline bool is_referred(struct weir_sender *s)
{
	struct weir_slice *slice;
	__u64 now;
	__u32 at;

	// A transfer that is closed has no frames left.
	if (s->run || s->counts[WEIR_SENT] >= s->frames)
		return s->turn_ns;
	now = bpf_ktime_get_ns();
	if (s->slice_ns && !s->turn_ns && now - s->slice_ns < s->slice_length_ns)
		return false;
	if (s->turn_ns && !s->timed_ns) {
		s->timed_ns = now;
		return true;
	}
	at = s->slices;
	slice = bpf_map_lookup_elem(&slices, &at);
	if (!slice)
		return false;
	if (s->slice_ns && !s->turn_ns) {
		slice->frames = s->counts[WEIR_SENT] - s->slice_sent;
		slice->ns = up_to_32_bits(now - s->slice_ns);
		s->turn_ns = now;
		s->timed_ns = 0;
		return true;
	}
	if (s->turn_ns) {
		slice->reference_ns = up_to_32_bits(now - s->timed_ns);
		s->slices = at + 1;
		s->turns_ns += now - s->turn_ns;
		s->turn_ns = 0;
	}
	s->slice_ns = now;
	s->slice_sent = s->counts[WEIR_SENT];
	return false;
}
