// Holes: numbers that a sender skipped. A segment that fills one was lost before this host and sent again, or was overtaken.
#pragma once

#include "copies.h"
#include "early.h"
#include "weir/octaves.h"

#define HOLE_TOLD 1
#define HOLE_STAMPED 2
#define HOLE_SPARED 4

static __always_inline void add_hole(struct weir_side *s, const struct weir_hole *new)
{
	for (int i = 0; i < WEIR_HOLES; i++) {
		struct weir_hole *h = &s->holes[i];

		if (h->from == h->to) {
			*h = *new;
			return;
		}
	}
	s->unjudged += segments_of(s, new->to - new->from);
	doubt(s, new->to);
}

// Whether the segment that fills a hole was sent again. Else it is the first copy, overtaken on its way.
static __always_inline bool was_lost(const struct weir_side *s, const struct weir_hole *h, const struct weir_packet *p)
{
	const struct weir_again *a = &s->again[(s->turn - 1) & (WEIR_RECENT - 1)];
	__u32 now = in_us(p->now);

	if ((h->state & HOLE_STAMPED) && (p->has & WEIR_HAS_STAMP)) {
		__s32 later = after(p->stamp, h->stamp);

		// The first copy was sent before what overtook it.
		if (later)
			return later > 0;
		// Sent in one tick of the clock. A second copy has nothing before it that was sent later, and its sender knew the answer that
		// told of the hole (RFC 7323 section 4.3).
		if (after(s->newest, p->stamp) > 0 || ((h->state & HOLE_TOLD) && after(h->told_stamp, p->echo) > 0))
			return false;
	}
	// Second copies come in order: first that of the segment before the hole, which had been overtaken.
	if ((h->state & HOLE_SPARED) && a->to == h->from)
		return a->kind > WEIR_GUESSED;
	// The sender knows of the hole only by an answer that passes here, and what it then sends takes the whole way.
	if (h->state & HOLE_TOLD)
		return now - h->told_at >= in_us(s->trips.smallest) / 4 * 3;
	return now - h->at > TIMEOUT_US;
}

// The hole that a segment is in; NULL: none.
static __always_inline struct weir_hole *hole_at(struct weir_side *s, __u32 seq, __u32 end)
{
	for (int i = 0; i < WEIR_HOLES; i++) {
		struct weir_hole *h = &s->holes[i];

		if (h->from != h->to && after(end, h->from) > 0 && after(seq, h->to) < 0)
			return h;
	}
	return 0;
}

// The first part of a hole was overtaken. The sender may send all of it again, which begins with that part; else the next answer tells of
// what is left.
static __always_inline void spare(struct weir_hole *h, const struct weir_packet *p)
{
	h->state = (h->state & HOLE_STAMPED) | HOLE_SPARED;
	h->at = in_us(p->now);
}

// Copies that may have been lost in the silence before this segment, beside the first one: a sender without an answer waits twice as long
// after each (RFC 6298 section 5.5).
static __always_inline __u32 hidden_copies(const struct weir_side *s, const struct weir_packet *p)
{
	__u64 silence = p->now - s->last;

	return s->last && silence >= 3 * TIMEOUT_NS ? log2_of(silence / TIMEOUT_NS + 1) - 1 : 0;
}

static __always_inline void fill(struct weir_side *s, struct weir_hole *h, const struct weir_packet *p, __u32 end)
{
	s->fresh += p->segments;
	if (was_lost(s, h, p)) {
		s->lost_before += p->segments;
		s->doubtful += hidden_copies(s, p);
		remember(s, p, end, p->stamp == h->stamp ? WEIR_GUESSED : WEIR_FILLED);
	} else {
		s->reordered += p->segments;
		if (after(p->seq, h->from) <= 0)
			spare(h, p);
	}
	if (after(p->seq, h->from) <= 0) {
		h->from = after(end, h->to) < 0 ? end : h->to;
	} else if (after(end, h->to) >= 0) {
		h->to = p->seq;
	} else {
		struct weir_hole rest = *h;

		rest.from = end;
		h->to = p->seq;
		add_hole(s, &rest);
	}
}

// An answer of the side `by` that shows holes to the sender `s`, or closes them. One that comes sooner than a round trip after a hole
// is about segments before it.
static __always_inline void show_holes(struct weir_side *s, const struct weir_side *by, const struct weir_packet *p, bool shows)
{
	__u32 now = in_us(p->now);

	for (int i = 0; i < WEIR_HOLES; i++) {
		struct weir_hole *h = &s->holes[i];

		if (h->from == h->to)
			continue;
		if (after(p->ack, h->to) >= 0) {
			s->bypassed += segments_of(s, h->to - h->from);
			h->from = h->to;
		} else if (after(p->ack, h->from) > 0) {
			h->from = p->ack;
		} else if (shows && !(h->state & HOLE_TOLD) && now - h->at >= in_us(by->trips.smallest) / 4 * 3) {
			h->state |= HOLE_TOLD;
			h->told_at = now;
			h->told_stamp = p->stamp;
		}
	}
}
