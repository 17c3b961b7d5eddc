// The copies of segments that came to this host, first and second ones: which of them was lost, and which was not.
#pragma once

static __always_inline void remember(struct weir_side *s, const struct weir_packet *p, __u32 end, __u16 kind)
{
	struct weir_again *a = &s->again[(s->turn - 1) & (WEIR_RECENT - 1)];

	// A sender that waited too long sends many in a row.
	if (a->kind == kind && a->to == p->seq && a->segments < 1 << 15 && (kind > WEIR_GUESSED || a->stamp == p->stamp)) {
		a->to = end;
		a->segments += p->segments;
		return;
	}
	a = &s->again[s->turn++ & (WEIR_RECENT - 1)];
	a->from = p->seq;
	a->to = end;
	a->stamp = p->stamp;
	a->kind = kind;
	a->segments = p->segments;
}

static __always_inline void take_back(__u64 *count, __u32 segments)
{
	*count -= *count < segments ? *count : segments;
}

static __always_inline __u32 segments_of(const struct weir_side *s, __u32 bytes)
{
	return s->largest ? (bytes + s->largest - 1) / s->largest : 1;
}

// True if the segment is a first copy whose second one came before it.
static __always_inline bool is_overtaken(struct weir_side *s, const struct weir_packet *p, __u32 end)
{
	if (!(p->has & WEIR_HAS_STAMP))
		return false;
	for (int i = 0; i < WEIR_RECENT; i++) {
		struct weir_again *a = &s->again[i];

		if (a->kind && a->kind <= WEIR_GUESSED && after(end, a->from) > 0 && after(p->seq, a->to) < 0 && after(p->stamp, a->stamp) < 0) {
			a->kind = 0;
			take_back(&s->lost_before, a->segments);
			s->reordered += a->segments;
			return true;
		}
	}
	return false;
}

// Two copies of a segment came here and arrived, one tick apart at most. If no clock told which of them was sent first, the first one had
// only been overtaken.
static __always_inline void give_back(struct weir_side *s, __u32 left, __u32 right, __u32 stamp)
{
	for (int i = 0; i < WEIR_RECENT; i++) {
		struct weir_again *f = &s->again[i];

		if (f->kind == WEIR_GUESSED && stamp - f->stamp <= 1 && after(f->from, right) < 0 && after(f->to, left) > 0) {
			f->kind = 0;
			take_back(&s->lost_before, f->segments);
			s->reordered += f->segments;
		}
	}
}

// The receiver reports segments that it received twice (RFC 2883): their second copies were needless.
static __always_inline void received_twice(struct weir_side *s, __u32 left, __u32 right)
{
	__u32 rest = segments_of(s, right - left), stamp = 0;
	bool is_second = false;

	// The latest ones first: a copy before them may have been lost.
	for (int i = 1; i <= WEIR_RECENT && rest; i++) {
		struct weir_again *a = &s->again[(s->turn - i) & (WEIR_RECENT - 1)];
		__u32 from = after(a->from, left) > 0 ? a->from : left, to = after(a->to, right) < 0 ? a->to : right;
		__u32 number;

		if (a->kind <= WEIR_GUESSED || after(to, from) <= 0)
			continue;
		number = segments_of(s, to - from);
		if (number > a->segments)
			number = a->segments;
		if (number > rest)
			number = rest;
		rest -= number;
		a->segments -= number;
		if (a->kind >= WEIR_REPEATED) {
			take_back(&s->lost_behind, number);
			s->needless += number;
		}
		stamp = a->stamp;
		is_second = true;
		if (!a->segments)
			a->kind = 0;
	}
	if (is_second)
		give_back(s, left, right, stamp);
}

// The first acknowledgement of a segment that came twice, with an older timestamp than the second copy: the first one had arrived (Eifel,
// RFC 3522).
static __always_inline void confirm(struct weir_side *s, const struct weir_packet *p)
{
	for (int i = 0; i < WEIR_RECENT; i++) {
		struct weir_again *a = &s->again[i];

		if (a->kind != WEIR_REPEATED || after(p->ack, a->to) < 0)
			continue;
		// A later acknowledgement says nothing.
		a->kind = WEIR_ANSWERED;
		if (after(p->echo, a->stamp) < 0) {
			// With a segment before it in the same acknowledgement the timestamp is that one's (RFC 7323 section 4.3).
			if (after(a->from, s->acked) > 0) {
				s->unclear += a->segments;
			} else {
				take_back(&s->lost_behind, a->segments);
				s->needless += a->segments;
				a->kind = WEIR_NEEDLESS;
			}
		}
	}
}
