// Segments that pass here again and again, because the other side never gets them.
#pragma once

// Bytes of data in one segment on the wire.
static __always_inline __u32 size_of_one(const struct weir_packet *p)
{
	return p->segments > 1 ? (p->length + p->segments - 1) / p->segments : p->length;
}

// A copy of the segment that the other side waits for. A path that carries short packets alone lets none of its copies by.
static __always_inline void stick(struct weir_side *s, const struct weir_packet *p)
{
	__u32 size = size_of_one(p);

	if (!(s->knows & WEIR_KNOWS_ACKED) || p->seq != s->acked)
		return;
	s->stuck++;
	if (!s->stuck_bytes || size < s->stuck_bytes)
		s->stuck_bytes = size;
}

// An acknowledgement of that many more bytes.
static __always_inline void move_on(struct weir_side *s, __u32 bytes)
{
	s->stuck = 0;
	s->stuck_bytes = 0;
	if (s->longest && bytes >= s->longest)
		s->carried = s->longest;
}
