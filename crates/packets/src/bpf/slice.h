// SPDX-License-Identifier: GPL-2.0 OR MIT
// How fast this core is just now: a transfer without a schedule is cut into slices, and at the end of each the time of a fixed piece
// of work is taken. Where the sender's core forwards, too, both are slowed down by the same things: a neighbour on the core's other
// hyperthread, its clock rate.
#pragma once

// Shortest slice, ns: the reference work, once in each, then takes half a per cent of the time at most. A slice is much shorter than
// what the scheduler gives to another task, so that it is either whole or plainly interrupted.
#define SLICE_NS 100000

// By number, from the first; `WEIR_SLICES` are kept.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_SLICES);
	__type(key, __u32);
	__type(value, struct weir_slice);
} slices SEC(".maps");

// Four sums that do not wait for each other, so that the core's units are as busy as they are with packets: a single chain of
// operations is not slowed down by a neighbour on the core's other hyperthread.
struct chains {
	__u64 a, b, c, d;
};

// Rounds between two calls by bpf_loop. The verifier walks through as many, and not through all, which is dear for it.
#define ROUNDS_AT_ONCE 32

_Static_assert(WEIR_REFERENCE_ROUNDS % ROUNDS_AT_ONCE == 0, "the reference work is whole rounds");

static long some_rounds(__u32 nth __attribute__((unused)), struct chains *chains)
{
	__u64 a = chains->a, b = chains->b, c = chains->c, d = chains->d;

	// Unrolled: how fast a short loop is depends on where in a cache line the kernel has put it, which is somewhere else each time
	// the program is loaded: 6 % between transfers on one core.
#pragma clang loop unroll(full)
	for (int i = 0; i < ROUNDS_AT_ONCE; i++) {
		a += (a << 3) ^ i;
		b ^= (b >> 5) + i;
		c += (c << 7) ^ i;
		d ^= (d >> 9) + i;
	}
	*chains = (struct chains){ a, b, c, d };
	return 0;
}

// Reads and writes no memory but its own stack, so that nothing that a gateway does to the caches changes it. Global and not inlined,
// so that the verifier looks at it once. `times` 32 rounds. From Linux 6.0 on bpf_loop is no helper that calls back, but code that the verifier puts here;
// before that the work takes longer, by as much each time.
__attribute__((noinline)) __u64 reference_work(__u64 seed, __u32 times)
{
	struct chains chains = { seed, seed ^ 1, seed ^ 2, seed ^ 3 };

	bpf_loop(times, some_rounds, &chains, 0);
	return chains.a ^ chains.b ^ chains.c ^ chains.d;
}

// At the beginning of a batch, at the time `now`: ends the slice if it is long enough, and begins the next.
static __always_inline void cut(struct weir_sender *s, __u64 now)
{
	__u64 sent = s->counts[WEIR_SENT];

	if (now < s->slice_due_ns)
		return;
	if (s->slice_ns) {
		__u32 at = s->slices;
		struct weir_slice *slice = bpf_map_lookup_elem(&slices, &at);
		__u64 worked, ns;

		if (!slice)
			return;
		// Once without a clock, so that its code is at hand whatever the packets have left in the caches.
		s->worked = reference_work(s->worked, 1);
		// Anew, so that no time passes between the two readings but that of the work.
		now = bpf_ktime_get_ns();
		s->worked = reference_work(s->worked, WEIR_REFERENCE_ROUNDS / ROUNDS_AT_ONCE);
		worked = bpf_ktime_get_ns();
		slice->frames = sent - s->slice_sent;
		ns = now - s->slice_ns;
		slice->ns = ns >> 32 ? 0xffffffff : ns;
		slice->reference_ns = worked - now;
		s->slices = at + 1;
		s->slice_ns = 0;
		now = worked;
		if (s->slice_pause_ns) {
			s->slice_due_ns = now + s->slice_pause_ns;
			return;
		}
	}
	s->slice_ns = now;
	s->slice_sent = sent;
	s->slice_due_ns = now + SLICE_NS;
}
