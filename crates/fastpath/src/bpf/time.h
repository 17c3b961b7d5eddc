// Times of some packets between the programs at both ends, for the time that the fast path saves. A clock's reading costs as much as a
// third of the program, so only few are timed.
#pragma once

#include "weir/octaves.h"

// Each so many-th packet of a core is timed, if it is carried.
#define TIMED_EACH 256

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_TIMED);
	__type(key, __u32);
	__type(value, struct weir_times);
} times SEC(".maps");

_Static_assert(WEIR_TIME_BUCKETS == (20 - WEIR_TIME_BITS + 1) << WEIR_TIME_BITS, "octaves");

static __always_inline void record_time(enum weir_timed way, __u64 ns)
{
	__u32 key = way, at;
	struct weir_times *mine;

	at = ns >> 20 ? WEIR_TIME_BUCKETS - 1 : octave_bucket(ns, WEIR_TIME_BITS);
	mine = bpf_map_lookup_elem(&times, &key);
	if (mine && at < WEIR_TIME_BUCKETS)
		mine->buckets[at]++;
}

// At the beginning of the way in. The time of a packet that is carried has all of this program in it.
static __always_inline void begin_time(struct arrived *p)
{
	p->since = ++p->number % TIMED_EACH ? 0 : bpf_ktime_get_ns();
}

// At the end of the way in, where the kernel's way begins. Only flows that are not in the table yet are timed there: what the kernel
// knows of the others has left the caches.
static __always_inline void go_on_time(struct arrived *p, enum weir_reason reason)
{
	if (reason == WEIR_CARRIED)
		return;
	p->since = reason == WEIR_UNKNOWN && p->is_candidate ? bpf_ktime_get_ns() : 0;
	p->left = 0;
	p->own = 0;
}

// At the beginning of the way out: the clock, if a packet is timed.
static __always_inline __u64 see_time(struct arrived *p)
{
	if (!p->since)
		return 0;
	p->left++;
	return bpf_ktime_get_ns();
}

static __always_inline void end_carried(struct arrived *p, __u64 now)
{
	if (now)
		record_time(WEIR_CARRIED_WAY, now - p->since);
	p->since = 0;
}

// The packet that came in last on this core leaves. The kernel takes packets in by several at a time, and then forwards one after the
// other: this is the last of those that have left since, and each has its part of the time. Those taken in with it that do not leave
// make it longer.
static __always_inline void end_kernels(struct arrived *p, __u64 now)
{
	__s64 took = now - p->since - p->own;

	if (now && took > 0 && p->left)
		record_time(WEIR_KERNELS_WAY, (__u64)took / p->left);
	p->since = 0;
}

// At the end of the way out.
static __always_inline void leave_time(struct arrived *p, __u64 begun)
{
	if (begun && p->since)
		p->own += bpf_ktime_get_ns() - begun;
}
