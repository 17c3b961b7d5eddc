// SPDX-License-Identifier: GPL-2.0 OR MIT
// Makes frames: each run of a program writes one. Run as live frames (net/bpf/test_run.c) by one thread at a time; each
// sending thread loads its own.
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "mapped.h"
#include "shared.h"
#include "shared.check.h"
#include "head.h"
#include "pace.h"
#include "slice.h"

char _license[] SEC("license") = "Dual MIT/GPL";

const volatile struct weir_generator config;

MAPPED_ARRAY(sender, 1, struct weir_sender);

// The flows in the order of their use, which is read from front to back: nothing is looked up at random.
MAPPED_ARRAY(deck4, 1, struct weir_tuple4);
MAPPED_ARRAY(deck6, 1, struct weir_tuple6);

// The mark of the next frame, if one may be sent now.
static __always_inline __u32 next_mark(struct weir_sender *s, struct mark *mark)
{
	__u64 sent = s->counts[WEIR_SENT], now = 0;
	bool stamp = s->stamp_every && !s->until_stamp;
	__u32 verdict;

	// Closing takes the frames away, so that there is one thing to look at.
	if (sent >= s->frames)
		return s->closed ? s->closed : WEIR_ALL_SENT;
	verdict = config.paced ? due_by_schedule(s, &now) : due_at_once(s, &now, stamp || sent + 1 == s->frames);
	if (verdict != WEIR_SENT)
		return verdict;
	if (now) {
		if (!sent)
			s->first_ns = now;
		s->last_ns = now;
	}
	if (s->stamp_every)
		s->until_stamp = stamp ? s->stamp_every - 1 : s->until_stamp - 1;
	// Zero means "not stamped", so that a stamp that happens to be zero is moved by 1 ns.
	mark->sent_ns = stamp ? bpf_htonl((__u32)now ? (__u32)now : 1) : 0;
	mark->cookie = s->cookie;
	mark->seq = bpf_htonl(s->stream | (sent & ((1U << WEIR_SEQ_BITS) - 1)));
	return WEIR_SENT;
}

// The same, or that it goes to the reference router, with a mark that no receiver counts.
static __always_inline __u32 next_of_either(struct weir_sender *s, struct mark *mark)
{
	if (config.reference && is_referred(s))
		return WEIR_REFERRED;
	return next_mark(s, mark);
}

// The place of the next tuple in the deck.
static __always_inline __u32 take_next(struct weir_sender *s)
{
	__u32 at = s->next;

	s->next = at + 1 < config.deck ? at + 1 : 0;
	return at;
}

static __always_inline __u32 make4(void *data, void *end, struct weir_sender *s)
{
	struct weir_tuple4 *tuple;
	struct mark mark = {};
	__u32 verdict, at;

	if (data + 58 > end)
		return WEIR_UNFIT;
	verdict = next_of_either(s, &mark);
	if (verdict != WEIR_SENT && verdict != WEIR_REFERRED)
		return verdict;
	at = verdict == WEIR_SENT ? take_next(s) : s->next;
	tuple = bpf_map_lookup_elem(&deck4, &at);
	if (!tuple)
		return WEIR_UNFIT;
	write_ipv4(data, &config, tuple, &mark, s->sum);
	return verdict;
}

static __always_inline __u32 make6(void *data, void *end, struct weir_sender *s)
{
	struct weir_tuple6 *tuple;
	struct mark mark = {};
	__u32 verdict, at;

	if (data + 78 > end)
		return WEIR_UNFIT;
	verdict = next_of_either(s, &mark);
	if (verdict != WEIR_SENT && verdict != WEIR_REFERRED)
		return verdict;
	at = verdict == WEIR_SENT ? take_next(s) : s->next;
	tuple = bpf_map_lookup_elem(&deck6, &at);
	if (!tuple)
		return WEIR_UNFIT;
	write_ipv6(data, &config, tuple, &mark, s->sum);
	return verdict;
}

// The one exit: counts the verdict and says what XDP does about it.
static __always_inline int leave(struct weir_sender *s, __u32 verdict)
{
	s->run = s->run + 1 < config.batch ? s->run + 1 : 0;
	if (config.paced)
		s->waiting = s->run && (s->waiting || verdict == WEIR_SENT);
	if (verdict < WEIR_GENERATOR_VERDICTS)
		s->counts[verdict]++;
	if (verdict == WEIR_SENT)
		return config.verdict;
	if (verdict == WEIR_REFERRED)
		return bpf_redirect(config.reference, 0);
	if (verdict != WEIR_EARLY) {
		s->closed = verdict;
		s->frames = 0;
	}
	return XDP_DROP;
}

SEC("xdp")
int generate4(struct xdp_md *ctx)
{
	struct weir_sender *s = bpf_map_lookup_elem(&sender, &(__u32){0});

	if (!s)
		return XDP_ABORTED;
	return leave(s, make4((void *)(long)ctx->data, (void *)(long)ctx->data_end, s));
}

SEC("xdp")
int generate6(struct xdp_md *ctx)
{
	struct weir_sender *s = bpf_map_lookup_elem(&sender, &(__u32){0});

	if (!s)
		return XDP_ABORTED;
	return leave(s, make6((void *)(long)ctx->data, (void *)(long)ctx->data_end, s));
}
