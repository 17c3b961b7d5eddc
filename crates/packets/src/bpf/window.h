/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Whether a frame came before, and whether a later one did: a window over each stream's sequence numbers, shared by all
 * cores without a lock.
 *
 * A block is 32 frames. Each slot of the window holds the frames seen of one block, in the lower half of a word, and
 * in the upper half of which block: the epoch of the expectation, and how often the stream had gone round the window. So
 * nothing has to be cleared, neither between transfers nor as a stream goes round. Numbers are compared as RFC 1982 does:
 * of two laps, the one that is less than half of the circle ahead is the later. */
#ifndef WEIR_WINDOW_H
#define WEIR_WINDOW_H

#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"

#define FRAME_BITS 5
#define BLOCK_BITS (WEIR_SEQ_BITS - FRAME_BITS)
_Static_assert(WEIR_WINDOW_SLOTS == 1 << WEIR_WINDOW_BITS, "slots");
_Static_assert(WEIR_WINDOW_BITS + WEIR_LAP_BITS == BLOCK_BITS, "what is left of a block's number is the lap");
_Static_assert(WEIR_STREAMS == 1U << (32 - WEIR_SEQ_BITS), "streams");

/* A core that loses this many races in a row against others on one word is not going to happen: each lost race is another's
 * frame in the same block of 32. */
#define TRIES 32

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_STREAMS * WEIR_WINDOW_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} window SEC(".maps");

/* True if `block` is ahead of every earlier one, which it then is itself no more. */
static __always_inline bool is_ahead(__u32 block, __u32 than)
{
	__u32 distance = (block - than) & ((1U << BLOCK_BITS) - 1);

	return distance && distance < 1U << (BLOCK_BITS - 1);
}

/* Sets the stream's greatest block, and says whether one was there that is ahead of this. */
static __always_inline bool is_behind(struct weir_highest *highest, __u32 epoch, __u32 block)
{
	__u64 mine = (__u64)epoch << 32 | block;
	__u64 old = *(volatile __u64 *)&highest->block;

	for (int i = 0; i < TRIES; i++) {
		__u64 seen;

		if (old >> 32 == epoch && !is_ahead(block, (__u32)old))
			return (__u32)old != block;
		seen = __sync_val_compare_and_swap(&highest->block, old, mine);
		if (seen == old)
			break;
		old = seen;
	}
	return false;
}

/* Takes a frame in: WEIR_COUNTED with `reordered` set as RFC 4737 has it, WEIR_DUPLICATED or WEIR_LATE. */
static __always_inline __u32 take_in(struct weir_progress *p, __u32 epoch, __u32 seq, bool *reordered)
{
	__u32 stream = seq >> WEIR_SEQ_BITS;
	__u32 block = (seq & ((1U << WEIR_SEQ_BITS) - 1)) >> FRAME_BITS;
	__u32 lap = block >> WEIR_WINDOW_BITS;
	__u32 at = stream << WEIR_WINDOW_BITS | (block & (WEIR_WINDOW_SLOTS - 1));
	__u32 bit = 1U << (seq & ((1U << FRAME_BITS) - 1));
	__u32 mine = epoch << WEIR_LAP_BITS | lap;
	__u64 *slot = bpf_map_lookup_elem(&window, &at);
	__u64 old;

	if (!slot)
		return WEIR_LATE;
	old = *(volatile __u64 *)slot;
	for (int i = 0; i < TRIES; i++) {
		__u32 theirs = old >> 32;
		__u32 bits = 0;
		__u64 seen;

		if (theirs == mine) {
			bits = old;
			if (bits & bit)
				return WEIR_DUPLICATED;
		} else if (theirs >> WEIR_LAP_BITS == epoch) {
			/* Another lap of this transfer: an earlier one gives way, a later one has taken the place. */
			if (((lap - theirs) & ((1U << WEIR_LAP_BITS) - 1)) >= 1U << (WEIR_LAP_BITS - 1))
				return WEIR_LATE;
		}
		seen = __sync_val_compare_and_swap(slot, old, (__u64)mine << 32 | bits | bit);
		if (seen == old) {
			/* Both halves: a later frame of this block, or of a later block. */
			*reordered = bits > bit;
			*reordered |= is_behind(&p->highest[stream & (WEIR_STREAMS - 1)], epoch, block);
			return WEIR_COUNTED;
		}
		old = seen;
	}
	return WEIR_LATE;
}

#endif
