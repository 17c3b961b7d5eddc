// Who limits a sender: its program, the receive window, the network, or the sender itself. Each moment is charged to one of them, when the
// sender has shown that it knows of an answer that passed here: what it had sent until then is all that it could or would send. The idea is
// T-RAT's (Zhang, Breslau, Paxson and Shenker, SIGCOMM 2002), which sorts whole flights of a recorded trace; this one keeps no packets.
#pragma once

// A sender whose round trip varies by this is not idle, ns.
#define SLACK_NS 1000000ull
// Growth is judged over so many round trips of the whole path, and at least this long, ns. Congestion avoidance adds a segment per round
// trip, with delayed acknowledgements one per two (RFC 5681 section 3.1): four or more over a period.
#define GROWTH_TRIPS 8
#define GROWTH_NS 100000000ull
#define GROWTH_SEGMENTS 2
// After a shorter pause the congestion window is as before: it begins anew after the sender's own time-out alone (RFC 5681 section 4.1),
// which is at least this in Linux (TCP_RTO_MIN) and 1 s in RFC 6298, ns.
#define RESTART_NS 200000000ull
// Pauses in turn after which growth must be judged anew even so.
#define SHORT_PAUSES 8
// Round trips this much longer than twice the smallest one are those of a queue, ns.
#define QUEUE_NS 4000000ull
// A segment with most options in use is that much shorter than others, bytes.
#define OPTION_BYTES 40
// Longest shift (RFC 7323 section 2.3).
#define MOST_SCALE 14

static __always_inline void forget_wait(struct weir_side *s)
{
	s->wait.since = 0;
	s->wait.mark_at = 0;
	s->wait.acked_at = 0;
	s->wait.period_at = 0;
	s->wait.most = 0;
	s->wait.pauses = 0;
	s->wait.scale = 0;
	s->wait.flags = 0;
}

static __always_inline void read_scale(struct weir_side *s, const struct weir_packet *p)
{
	__u32 shift = p->has >> WEIR_SCALE_AT & 15;

	if (p->has & WEIR_HAS_SCALE)
		s->wait.scale = 1 + (shift < MOST_SCALE ? shift : MOST_SCALE);
}

static __always_inline void charge(struct weir_wait *w, __u64 now, enum weir_limit by)
{
	w->by[by] += now - w->since;
	w->since = now;
}

// A pause ends. If the congestion window may begin anew, what was learnt about it says nothing.
static __always_inline void end_pause(struct weir_wait *w, __u64 now)
{
	bool is_short = now - w->acked_at < RESTART_NS && w->pauses < SHORT_PAUSES;

	w->mark_at = 0;
	w->period_at = now;
	w->most = 0;
	if (is_short) {
		w->pauses++;
		return;
	}
	w->pauses = 0;
	w->most_before = 0;
	w->flags &= ~(WEIR_WAIT_STEADY | WEIR_WAIT_LOSSY | WEIR_WAIT_LOST);
}

// Compares the bytes under way with those of the period before.
static __always_inline void judge_growth(const struct weir_side *s, struct weir_wait *w, const struct weir_side *other, __u64 now, __u32 flight)
{
	__u64 period = GROWTH_TRIPS * (s->trips.smallest + other->trips.smoothed);
	bool has_grown, has_shrunk, is_busy;

	if (flight > w->most)
		w->most = flight;
	if (now - w->period_at < (period > GROWTH_NS ? period : GROWTH_NS))
		return;
	has_grown = w->most > w->most_before + GROWTH_SEGMENTS * s->longest;
	has_shrunk = w->most + w->most / 8 < w->most_before;
	// Losses and marks alone make a congestion window smaller. Before the first of them, a sender had something else to do.
	is_busy = has_shrunk && !(w->flags & WEIR_WAIT_LOSSY) && w->most >= w->most_before / 2;
	if ((w->flags & WEIR_WAIT_LOST) || has_grown || (has_shrunk && !is_busy))
		w->flags &= ~WEIR_WAIT_STEADY;
	else
		w->flags |= WEIR_WAIT_STEADY;
	w->flags &= ~WEIR_WAIT_LOST;
	// As much as before may be under way again at any time, and is no growth then.
	w->most_before = is_busy ? w->most_before - w->most_before / 16 : w->most;
	w->most = 0;
	w->period_at = now;
	w->pauses = 0;
}

static __always_inline bool has_queue(const struct weir_trips *t)
{
	return t->smoothed > 2 * t->smallest + QUEUE_NS;
}

// The limit of what the sender had sent before it knew of the marked answer.
static __always_inline enum weir_limit limit_of(const struct weir_flow *f, const struct weir_side *s, struct weir_wait *w,
						const struct weir_side *other, __u64 now)
{
	__u32 flight = s->next - w->mark_acked, window = w->mark_edge - w->mark_acked;
	__u32 lost = s->lost_before + s->lost_behind;
	bool has_lost = after(lost, w->lost) > 0, is_steady;

	w->lost = lost;
	if (has_lost)
		w->flags |= WEIR_WAIT_LOSSY | WEIR_WAIT_LOST;
	judge_growth(s, w, other, now, flight);
	if (has_lost)
		return WEIR_BY_NETWORK;
	// A sender keeps back what is less than a segment (RFC 9293 section 3.8.6.2.1).
	if (after(w->mark_edge, s->next) < (__s32)s->longest)
		return WEIR_BY_RECEIVER;
	if (w->flags & WEIR_WAIT_SHORT)
		return WEIR_BY_APPLICATION;
	// The window of a flow from before the watch is not known.
	is_steady = (w->flags & WEIR_WAIT_STEADY) && (f->state & WEIR_IS_WHOLE);
	// Linux waits until a third of the window is free before it sends a large segment (tcp_tso_win_divisor).
	if (is_steady && flight >= window - window / 3)
		return WEIR_BY_RECEIVER;
	if (has_queue(&other->trips))
		return WEIR_BY_NETWORK;
	if (is_steady)
		return WEIR_BY_SENDER;
	return w->flags & WEIR_WAIT_LOSSY ? WEIR_BY_NETWORK : WEIR_BY_UNCLEAR;
}

// Whether the sender of a packet had the marked answer. A timestamp proves it (RFC 7323 section 4); without them it takes a round trip.
static __always_inline bool knows_mark(const struct weir_side *s, const struct weir_wait *w, const struct weir_packet *p)
{
	if ((w->flags & WEIR_WAIT_STAMPED) && (p->has & WEIR_HAS_STAMP))
		return after(p->echo, w->mark_stamp) >= 0;
	return p->now - w->mark_at >= s->trips.smallest;
}

// A packet of the side `s`, before its data are looked at.
static __always_inline void judge_wait(const struct weir_flow *f, struct weir_side *s, const struct weir_side *other,
				       const struct weir_packet *p)
{
	struct weir_wait *w = &s->wait;
	__u64 trip = s->trips.smallest;

	if (f->state & (p->side & 1 ? WEIR_IS_ENDED1 : WEIR_IS_ENDED0))
		return;
	if (!w->since) {
		if (p->length) {
			w->since = p->now;
			w->period_at = p->now;
		}
	} else if (!trip) {
		// When it knows of anything is not known.
		return;
	} else if (p->length && s->next == s->acked && p->now - w->acked_at > trip + trip / 2 + SLACK_NS) {
		// It had the last acknowledgement, and nothing to send.
		charge(w, p->now, WEIR_BY_APPLICATION);
		end_pause(w, p->now);
	} else if (w->mark_at && knows_mark(s, w, p)) {
		charge(w, p->now, limit_of(f, s, w, other, p->now));
		w->mark_at = 0;
	}
}

// New data end in a short segment if there are no more: a sender fills its segments (RFC 9293 section 3.7.4).
static __always_inline void read_end(struct weir_side *s, const struct weir_packet *p)
{
	if (!p->length || p->seq + p->length + (p->flags & FIN ? 1 : 0) != s->next)
		return;
	if (p->length + OPTION_BYTES < p->segments * s->longest)
		s->wait.flags |= WEIR_WAIT_SHORT;
	else
		s->wait.flags &= ~WEIR_WAIT_SHORT;
}

// The window that the side `by` announces to `s`, and its acknowledgement, before that counts.
static __always_inline void allow(const struct weir_flow *f, struct weir_side *s, const struct weir_side *by, const struct weir_packet *p)
{
	struct weir_wait *w = &s->wait;
	__s32 ahead = after(p->ack, s->acked);
	__u32 shift = MOST_SCALE;

	// It marks an answer while something is under way, and only the first one with its timestamp.
	if (!w->mark_at && (w->flags & WEIR_WAIT_EDGE) && s->next != s->acked &&
	    !((p->has & WEIR_HAS_STAMP) && (by->knows & WEIR_KNOWS_STAMP) && after(p->stamp, by->newest) <= 0)) {
		w->mark_at = p->now;
		w->mark_stamp = p->stamp;
		w->mark_acked = s->acked;
		w->mark_edge = w->edge;
		w->flags &= ~WEIR_WAIT_STAMPED;
		if (p->has & WEIR_HAS_STAMP)
			w->flags |= WEIR_WAIT_STAMPED;
	}
	if ((s->knows & WEIR_KNOWS_ACKED) && ahead < 0)
		return;
	if (ahead)
		w->acked_at = p->now;
	// Both sides must have offered the scale, and a SYN has none (RFC 7323 section 2.2).
	if (f->state & WEIR_IS_WHOLE)
		shift = !(p->flags & SYN) && s->wait.scale && by->wait.scale ? by->wait.scale - 1 : 0;
	w->edge = p->ack + ((__u32)p->window << (shift & 15));
	w->flags |= WEIR_WAIT_EDGE;
}

// An answer that tells the side `s` of a segment that the network has marked instead of losing it (RFC 3168 section 6.1). Not of a SYN,
// where this bit says less. Not a branch: the verifier would follow both ways.
static __always_inline void read_mark(struct weir_side *s, const struct weir_packet *p)
{
	s->wait.flags |= (p->flags & ECE) * WEIR_WAIT_LOSSY / ECE;
}
