// Flows that were there before the watch. Segments that passed, or were lost, before it look like holes that are filled, and like second
// copies: they are judged on neither side.
#pragma once

// Linux waits at least 200 ms until it sends again without an acknowledgement (TCP_RTO_MIN).
#define TIMEOUT_US 190000
#define TIMEOUT_NS 190000000ull
// A longer round trip is not supposed before one is measured, ns (RFC 6298 section 2).
#define UNKNOWN_TRIP_NS 1000000000ull

// Copies up to a number are not judged.
static __always_inline void doubt(struct weir_side *s, __u32 until)
{
	s->knows |= WEIR_IS_UNSURE;
	s->unsure = until;
}

// The first number that is known of a side. Those before it may be under way.
static __always_inline void begin_at(struct weir_side *s, __u32 seq)
{
	s->knows |= WEIR_KNOWS_NEXT | WEIR_IS_EARLY;
	s->next = seq;
	s->careful = seq;
	doubt(s, seq);
}

// Ends the time in which segments from before the watch may be under way: the receiver has reported them, or they came again.
static __always_inline void settle(const struct weir_flow *f, struct weir_side *s, const struct weir_side *other, __u64 now)
{
	__u64 patience = UNKNOWN_TRIP_NS;

	if (!(s->knows & WEIR_IS_EARLY))
		return;
	if (s->trips.smallest && other->trips.smallest)
		patience = 2 * (s->trips.smallest + other->trips.smallest) + TIMEOUT_NS;
	if ((f->state & WEIR_IS_WHOLE) || now - f->born > patience)
		s->knows &= ~WEIR_IS_EARLY;
}
