// Judges the packets of a TCP connection: they tell about the ways on both sides of this host. A pure function of a flow and a packet: a test
// compiles it for the host, too.
//
// A segment that comes again after it was here was lost behind this host, or sent needlessly. A number that is skipped and comes later
// was lost before this host, or was overtaken.
#pragma once

#include "holes.h"
#include "limits.h"
#include "stuck.h"

// A segment that was here before.
static __always_inline void repeat(struct weir_side *s, const struct weir_packet *p, __u32 end)
{
	// A probe whether the other side lives (RFC 9293 section 3.8.4) has one old byte.
	if (p->length <= 1 && !(p->flags & FIN) && (s->knows & WEIR_KNOWS_ACKED) && end == s->acked)
		return;
	s->segments += p->segments;
	s->careful = s->next;
	s->timed_at = 0;
	// It may be one of those that were counted as not judged.
	if (is_overtaken(s, p, end)) {
		remember(s, p, end, WEIR_NEEDLESS);
		return;
	}
	if ((s->knows & WEIR_IS_UNSURE) && after(end, s->unsure) <= 0)
		return;
	if ((s->knows & WEIR_KNOWS_ACKED) && after(end, s->acked) <= 0) {
		s->needless += p->segments;
		remember(s, p, end, WEIR_NEEDLESS);
		return;
	}
	s->lost_behind += p->segments;
	s->doubtful += hidden_copies(s, p);
	stick(s, p);
	remember(s, p, end, WEIR_REPEATED);
}

// It did not go alone.
static __always_inline void forget_hidden(struct weir_side *s)
{
	s->knows &= (1 << WEIR_HIDDEN_SHIFT) - 1;
}

// A segment that nothing before it is missing of.
static __always_inline void follow(struct weir_side *s, const struct weir_packet *p, __u32 end)
{
	bool all_acked = (s->knows & WEIR_KNOWS_ACKED) && s->acked == s->next;

	forget_hidden(s);
	// The last segment before a silence may have been lost: then this is its second copy.
	if (s->last && all_acked && p->now - s->last > TIMEOUT_NS) {
		s->pauses++;
		if (p->length == s->largest) {
			s->doubtful++;
			s->knows |= hidden_copies(s, p) << WEIR_HIDDEN_SHIFT;
		}
	}
	s->segments += p->segments;
	s->fresh += p->segments;
	s->next = end;
	if (!s->timed_at && (s->knows & WEIR_KNOWS_ACKED) && after(s->acked, s->careful) >= 0) {
		s->timed_at = p->now;
		s->timed = end;
	}
}

static __always_inline void skip(struct weir_side *s, const struct weir_packet *p, __u32 end)
{
	struct weir_hole hole = {
		.from = s->next,
		.to = p->seq,
		.at = in_us(p->now),
		.stamp = p->stamp,
		.state = p->has & WEIR_HAS_STAMP ? HOLE_STAMPED : 0,
	};

	forget_hidden(s);
	if (s->knows & WEIR_IS_EARLY)
		doubt(s, p->seq);
	else
		add_hole(s, &hole);
	s->segments += p->segments;
	s->fresh += p->segments;
	s->next = end;
	s->careful = end;
}

// Data, or the end of it.
static __always_inline void carry_data(struct weir_side *s, const struct weir_packet *p)
{
	__u32 end = p->seq + p->length + (p->flags & FIN ? 1 : 0);
	struct weir_hole *h;
	__s32 ahead;

	if (end == p->seq)
		return;
	if (p->segments == 1 && p->length > s->largest)
		s->largest = p->length;
	if (size_of_one(p) > s->longest)
		s->longest = size_of_one(p);
	if (!(s->knows & WEIR_KNOWS_NEXT))
		begin_at(s, p->seq);
	ahead = after(p->seq, s->next);
	if (ahead > LARGEST_WINDOW || ahead < -LARGEST_WINDOW)
		return;
	if (ahead == 0) {
		follow(s, p, end);
	} else if (ahead > 0) {
		skip(s, p, end);
	} else if (after(end, s->next) > 0) {
		// Old and new together: a sender that puts segments together sends no hole's.
		follow(s, p, end);
	} else {
		h = hole_at(s, p->seq, end);
		if (h) {
			s->segments += p->segments;
			fill(s, h, p, end);
		} else {
			repeat(s, p, end);
		}
	}
}

static __always_inline void read_sack(struct weir_side *s, const struct weir_packet *p)
{
	__u32 left = p->sack[0], right = p->sack[1];

	if (!(p->has & WEIR_HAS_SACK) || after(right, left) <= 0)
		return;
	// It was sent before the watch.
	if ((s->knows & WEIR_IS_EARLY) && after(right, s->next) > 0 && after(right, p->ack) < LARGEST_WINDOW) {
		s->next = right;
		s->careful = right;
		doubt(s, right);
	}
	if (after(right, p->ack) <= 0 ||
	    ((p->has & WEIR_HAS_SACKS) && after(left, p->sack[2]) >= 0 && after(right, p->sack[3]) <= 0))
		received_twice(s, left, right);
}

// An acknowledgement, by the side `by`, of what the side `s` has sent.
static __always_inline void acknowledge(struct weir_side *s, struct weir_side *by, const struct weir_packet *p)
{
	bool again = (s->knows & WEIR_KNOWS_ACKED) && p->ack == s->acked && !p->length;
	__s32 ahead = after(p->ack, s->acked);

	if (!(s->knows & WEIR_KNOWS_NEXT))
		begin_at(s, p->ack);
	if (after(p->ack, s->next) > 0) {
		// Its data took another way. All of it did if none came here: this host is that end, or only sees one direction.
		if (s->packets && !(s->knows & WEIR_IS_EARLY))
			s->bypassed++;
		s->next = p->ack;
		s->careful = p->ack;
		s->timed_at = 0;
	}
	if ((p->has & WEIR_HAS_STAMP) && (s->knows & WEIR_KNOWS_ACKED) && ahead > 0)
		confirm(s, p);
	if ((s->knows & WEIR_KNOWS_ACKED) && ahead > 0 && ahead < LARGEST_WINDOW)
		move_on(s, ahead);
	if (!(s->knows & WEIR_KNOWS_ACKED) || (ahead > 0 && ahead < LARGEST_WINDOW)) {
		s->knows |= WEIR_KNOWS_ACKED;
		s->acked = p->ack;
	}
	if ((s->knows & WEIR_IS_UNSURE) && after(p->ack, s->unsure) >= 0)
		s->knows &= ~WEIR_IS_UNSURE;
	if (s->timed_at && after(p->ack, s->timed) >= 0) {
		take_trip(&by->trips, p->now - s->timed_at);
		s->timed_at = 0;
	}
	if (s->acked == s->next) {
		s->doubtful += s->knows >> WEIR_HIDDEN_SHIFT;
		forget_hidden(s);
	}
	show_holes(s, by, p, again || (p->has & WEIR_HAS_SACK));
	read_sack(s, p);
}

// The echo of a time stamp bounds the shortest round trip to the side that sends it. It may have waited for something to send, so that it
// says nothing about the usual one.
static __always_inline void echo(struct weir_side *s, struct weir_side *other, const struct weir_packet *p)
{
	if (!(p->has & WEIR_HAS_STAMP))
		return;
	if (other->stamped_at && after(p->echo, other->stamped) >= 0) {
		if (p->echo == other->stamped)
			shorter(&s->trips, p->now - other->stamped_at);
		other->stamped_at = 0;
	}
	// The first packet with a stamp alone: a later one would be echoed too early.
	if ((s->knows & WEIR_KNOWS_STAMP) && after(p->stamp, s->newest) <= 0)
		return;
	s->knows |= WEIR_KNOWS_STAMP;
	s->newest = p->stamp;
	if (!s->stamped_at) {
		s->stamped_at = p->now;
		s->stamped = p->stamp;
	}
}

// Makes a side ready for a connection. Its counters stay.
static __always_inline void begin_side(struct weir_side *s)
{
	s->knows = 0;
	s->shut_at = 0;
	s->timed_at = 0;
	s->stamped_at = 0;
	s->longest = 0;
	s->carried = 0;
	s->stuck = 0;
	s->stuck_bytes = 0;
	forget_wait(s);
	for (int i = 0; i < WEIR_HOLES; i++)
		s->holes[i].from = s->holes[i].to;
	for (int i = 0; i < WEIR_RECENT; i++)
		s->again[i].kind = 0;
}

// True if the packet begins a connection, and is no copy of the one that did.
static __always_inline bool begins(const struct weir_flow *f, const struct weir_packet *p)
{
	const struct weir_side *s = &f->sides[p->side & 1];

	return (p->flags & (SYN | ACK)) == SYN && !((s->knows & WEIR_KNOWS_NEXT) && s->careful == p->seq + 1);
}

static __always_inline void open(struct weir_flow *f, struct weir_side *s, struct weir_side *other, const struct weir_packet *p)
{
	if (begins(f, p)) {
		begin_side(s);
		begin_side(other);
		f->connections++;
		f->state = (f->state & WEIR_IS_JOINED) | WEIR_IS_WHOLE | WEIR_IS_OPENING;
	}
	s->syns++;
	read_scale(s, p);
	if ((s->knows & WEIR_KNOWS_NEXT) && s->next == p->seq + 1 + p->length) {
		// A second copy: which of both is answered is not known (Karn).
		s->timed_at = 0;
		return;
	}
	s->knows |= WEIR_KNOWS_NEXT;
	s->next = p->seq + 1 + p->length;
	// Holds the first number as long as nothing is lost: see `begins`.
	s->careful = p->seq + 1;
	s->timed = s->next;
	s->timed_at = p->now;
}

// A receive window of 0 stops the other side until the next one (RFC 9293 section 3.8.6.1).
static __always_inline void read_window(struct weir_side *s, const struct weir_packet *p)
{
	if (!p->window && !s->shut_at) {
		s->zero_windows++;
		s->shut_at = p->now;
	} else if (p->window && s->shut_at) {
		s->shut += p->now - s->shut_at;
		s->shut_at = 0;
	}
}

static __always_inline void judge(struct weir_flow *f, struct weir_packet *p)
{
	struct weir_side *s = &f->sides[p->side & 1], *other = &f->sides[(p->side & 1) ^ 1];

	// Two cores may judge two packets in another order than they took their times.
	if (p->now < f->last)
		p->now = f->last;
	s->packets += p->segments;
	s->bytes += p->bytes;
	f->last = p->now;
	if (p->has & WEIR_HAS_MARK)
		s->marked += p->segments;
	if (p->flags & RST) {
		s->resets++;
		f->state = (f->state & ~WEIR_IS_OPENING) | WEIR_IS_RESET;
		s->last = p->now;
		return;
	}
	if (p->flags & SYN) {
		open(f, s, other, p);
	} else {
		judge_wait(f, s, other, p);
		read_mark(other, p);
		settle(f, s, other, p->now);
		carry_data(s, p);
		read_end(s, p);
	}
	read_window(s, p);
	if (p->flags & FIN)
		f->state |= p->side & 1 ? WEIR_IS_ENDED1 : WEIR_IS_ENDED0;
	// The side that began goes on after an answer alone, even if that does not pass here.
	if ((p->side & 1) || !(p->flags & SYN))
		f->state &= ~WEIR_IS_OPENING;
	if (p->flags & ACK) {
		allow(f, other, s, p);
		acknowledge(other, s, p);
	}
	echo(s, other, p);
	s->last = p->now;
}
