// SPDX-License-Identifier: GPL-2.0 OR MIT
// Counts the frames of a transfer where they arrive, and drops them; hands everything else to the stack.
#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "mapped.h"
#include "shared.h"
#include "shared.check.h"
#include "arrive.h"
#include "delay.h"
#include "flow.h"
#include "window.h"

char _license[] SEC("license") = "Dual MIT/GPL";

struct weir_board board SEC(".data.board");
struct weir_progress progress SEC(".data.progress");

// By core, and for each core by expectation (even or odd epoch), so that what still runs for the one before does no harm. Softirqs
// of a core do not interrupt each other, so its counters need no atomic operations.
MAPPED_ARRAY(arrivals, 1, struct weir_arrivals);

static __always_inline __u32 set_of(const struct weir_expect *e)
{
	return bpf_get_smp_processor_id() * 2 + (e->epoch & 1);
}

static __always_inline const struct weir_expect *expectation(void)
{
	return &board.expects[*(volatile __u32 *)&board.current & (WEIR_EXPECTS - 1)];
}

// Reading the clock costs as much as all the rest of counting a frame. So while frames come in quick succession only one in
// UNTIMED + 1 is timed, those that are stamped apart; but one in each jiffy is, should they suddenly become rare.
#define UNTIMED 15
#define QUICK_NS 6000

// Notes when the frame came if it must be known, and says so then.
static __always_inline __u64 time_of(struct weir_arrivals *mine, bool stamped)
{
	__u64 jiffy = bpf_jiffies64();
	__u64 now;

	if (mine->quick && mine->untimed < UNTIMED && mine->jiffy == jiffy && !stamped) {
		mine->untimed++;
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (!mine->first_ns)
		mine->first_ns = now;
	mine->quick = now - mine->last_ns < QUICK_NS * (mine->untimed + 1);
	mine->untimed = 0;
	mine->jiffy = jiffy;
	mine->last_ns = now;
	return now;
}

// A frame that came for the first time.
static __always_inline __u32 note(const struct weir_expect *e, const struct arrived *a, bool reordered, bool v6)
{
	__u32 set = set_of(e);
	struct weir_arrivals *mine = bpf_map_lookup_elem(&arrivals, &set);
	__u64 now;

	if (!mine)
		return WEIR_LATE;
	now = time_of(mine, a->sent_ns);
	if (v6)
		learn6(&progress, a);
	else
		learn4(&progress, a);
	mine->reordered += reordered;
	mine->bytes += ETH_HLEN + a->ip_bytes;
	if (!a->sent_ns)
		return WEIR_COUNTED;
	record_delay(set, (__u32)now - a->sent_ns);
	return e->reflect ? WEIR_REFLECTED : WEIR_COUNTED;
}

static __always_inline __u32 judge(struct xdp_md *ctx, const struct weir_expect *e, bool v6)
{
	struct arrived a = {};
	bool reordered = false;
	__be32 cookie;
	__u32 what;

	if (!e->epoch || !(v6 ? read6(ctx, e->protocol, &a) : read4(ctx, e->protocol, &a)))
		return WEIR_OTHER;
	cookie = room_for(e->protocol, e->cookie);
	if (a.cookie != cookie) {
		if (a.ip_bytes != e->ip_bytes)
			return WEIR_OTHER;
		if (a.cookie == room_for(e->protocol, e->stale))
			return WEIR_STALE;
		if (v6 ? same6(a.destination, e->own) : a.destination[0] == e->own[0])
			return WEIR_FOREIGN;
		return WEIR_OTHER;
	}
	if (a.ip_bytes != e->ip_bytes || !has_its_flow(e, &a, v6))
		return WEIR_MISTRANSLATED;
	what = take_in(&progress, e->epoch, a.seq, &reordered);
	return what == WEIR_COUNTED ? note(e, &a, reordered, v6) : what;
}

// Back to where it came from. Checksums stay right, since they are sums of what is swapped.
static __always_inline void turn_round(struct xdp_md *ctx, bool v6)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u8 mac[ETH_ALEN];
	__be16 *ports;
	__be16 port;

	// As was already found when it was read.
	if (data + (v6 ? LEAST6 : LEAST4) > end)
		return;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	if (v6) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		struct in6_addr source = ip->saddr;

		ip->saddr = ip->daddr;
		ip->daddr = source;
		ports = (void *)(ip + 1);
	} else {
		struct iphdr *ip = (void *)(eth + 1);
		__be32 source = ip->saddr;

		ip->saddr = ip->daddr;
		ip->daddr = source;
		ports = (void *)(ip + 1);
	}
	port = ports[0];
	ports[0] = ports[1];
	ports[1] = port;
}

// The one exit: counts what became of the frame and says what XDP does about it.
static __always_inline int leave(struct xdp_md *ctx, const struct weir_expect *e, __u32 what, bool v6)
{
	__u32 set = set_of(e);
	struct weir_arrivals *mine = bpf_map_lookup_elem(&arrivals, &set);

	if (!mine || what >= WEIR_ARRIVALS)
		return XDP_ABORTED;
	mine->frames[what]++;
	switch (what) {
	case WEIR_OTHER:
	case WEIR_FOREIGN:
		return XDP_PASS;
	case WEIR_REFLECTED:
		turn_round(ctx, v6);
		// Not XDP_TX: after that veth wakes the other end only if it has an XDP program, after this also if it has GRO
		// (drivers/net/veth.c, veth_xdp_flush).
		return bpf_redirect(ctx->ingress_ifindex, 0);
	default:
		return XDP_DROP;
	}
}

SEC("xdp.frags")
int receive4(struct xdp_md *ctx)
{
	const struct weir_expect *e = expectation();

	return leave(ctx, e, judge(ctx, e, false), false);
}

SEC("xdp.frags")
int receive6(struct xdp_md *ctx)
{
	const struct weir_expect *e = expectation();

	return leave(ctx, e, judge(ctx, e, true), true);
}
