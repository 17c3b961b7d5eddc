// Options of TCP: timestamps and the scale of windows (RFC 7323), and SACK (RFC 2018).
#pragma once

#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_SCALE 3
#define OPTION_SACK 5
#define OPTION_STAMP 8
#define SCALE_LENGTH 3
#define STAMP_LENGTH 10
// Options take 40 bytes at most; reads of a broken option stay within this.
#define OPTION_ROOM 64

static __always_inline __u32 word_at(const __u8 *options, __u32 at)
{
	return (__u32)options[at & (OPTION_ROOM - 1)] << 24 | (__u32)options[(at + 1) & (OPTION_ROOM - 1)] << 16 |
	       (__u32)options[(at + 2) & (OPTION_ROOM - 1)] << 8 | options[(at + 3) & (OPTION_ROOM - 1)];
}

static __always_inline void read_blocks(struct weir_packet *p, const __u8 *options, __u32 at, __u32 size)
{
	if (size < 10)
		return;
	p->has |= WEIR_HAS_SACK;
	p->sack[0] = word_at(options, at + 2);
	p->sack[1] = word_at(options, at + 6);
	if (size < 18)
		return;
	p->has |= WEIR_HAS_SACKS;
	p->sack[2] = word_at(options, at + 10);
	p->sack[3] = word_at(options, at + 14);
}

struct options {
	__u8 bytes[OPTION_ROOM];
	__u32 length;
	__u32 at;
	// Places of their lengths; 0: there is none.
	__u32 stamp;
	__u32 sack;
	__u32 scale;
};

// Finds one more option; 1 ends the search. A broken option ends it, too.
static long next_option(__u32 unused, struct options *o)
{
	__u32 at = o->at, kind, size;

	(void)unused;
	if (at >= o->length || at >= 40)
		return 1;
	kind = o->bytes[at & (OPTION_ROOM - 1)];
	if (kind == OPTION_END)
		return 1;
	if (kind == OPTION_NOTHING) {
		o->at = at + 1;
		return 0;
	}
	size = o->bytes[(at + 1) & (OPTION_ROOM - 1)];
	if (size < 2 || at + size > o->length)
		return 1;
	if (kind == OPTION_STAMP && size == STAMP_LENGTH)
		o->stamp = at + 1;
	else if (kind == OPTION_SACK)
		o->sack = at + 1;
	else if (kind == OPTION_SCALE && size == SCALE_LENGTH)
		o->scale = at + 1;
	o->at = at + size;
	return 0;
}

static __always_inline void read_options(struct weir_packet *p, struct options *o)
{
	// Two fillers and a timestamp alone, as nearly all segments have it (RFC 7323, appendix A).
	if (o->length == 12 && word_at(o->bytes, 0) == 0x0101080a)
		o->stamp = 3;
	else
		bpf_loop(40, next_option, o, 0);
	if (o->stamp) {
		p->stamp = word_at(o->bytes, o->stamp + 1);
		p->echo = word_at(o->bytes, o->stamp + 5);
		p->has |= WEIR_HAS_STAMP;
	}
	if (o->scale && (p->flags & SYN))
		p->has |= WEIR_HAS_SCALE | (__u32)(o->bytes[(o->scale + 1) & (OPTION_ROOM - 1)] & 15) << WEIR_SCALE_AT;
	if (o->sack)
		read_blocks(p, o->bytes, o->sack - 1, o->bytes[o->sack & (OPTION_ROOM - 1)]);
}
