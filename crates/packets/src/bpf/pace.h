// SPDX-License-Identifier: GPL-2.0 OR MIT
// Whether a frame is due: the schedule, and the bounds of the transfer.
#pragma once

// Most readings of the clock while a run waits for its frame's time: 1 or 2 us. A run must stay short, because softirqs and signals
// wait for it.
#define WAIT_READINGS 64

// By the schedule of an open loop: frame k is due at start + k * interval, whenever the earlier ones left.
static __always_inline __u32 due_by_schedule(struct weir_sender *s, __u64 *now)
{
	__u64 time = bpf_ktime_get_ns(), due;

	if (!s->start_ns)
		s->start_ns = time;
	due = s->start_ns + (s->due >> WEIR_INTERVAL_BITS);
	if (time < due) {
		// A frame that was made leaves with the end of its batch, so the rest of the batch must pass quickly.
		if (s->waiting)
			return WEIR_EARLY;
		for (int i = 0; i < WAIT_READINGS && time < due; i++)
			time = bpf_ktime_get_ns();
	}
	*now = time;
	if (time - s->start_ns >= s->duration_ns)
		return WEIR_TIME_UP;
	if (time < due)
		return WEIR_EARLY;
	if (time - due > s->late_max_ns)
		s->late_max_ns = time - due;
	s->due += s->interval;
	return WEIR_SENT;
}

// Without a schedule: reading the clock for each frame would slow the sender down, so it is read where the time is needed (stamps,
// the last frame) and once in a batch, for the end of the transfer.
static __always_inline __u32 due_at_once(struct weir_sender *s, __u64 *now, bool timed)
{
	if (s->run && !timed)
		return WEIR_SENT;
	*now = bpf_ktime_get_ns();
	if (!s->start_ns)
		s->start_ns = *now;
	if (*now - s->start_ns < s->duration_ns)
		return WEIR_SENT;
	// The frames sent have cost their time until here.
	s->last_ns = *now;
	return WEIR_TIME_UP;
}
