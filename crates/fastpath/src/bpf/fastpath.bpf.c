// SPDX-License-Identifier: GPL-2.0 OR MIT
// A flow table beside the kernel's connection tracking. It learns from a packet that leaves by the kernel's way what conntrack, rules
// and routing have decided for its flow, and does that to the packets that follow. Everything unusual takes the kernel's way, as without us.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"
#include "shared.check.h"
#include "weir/ends.h"
#include "weir/ipv4.h"
#include "weir/ipv6.h"
#include "weir/mapped.h"
#include "weir/order.h"
#include "weir/pull.h"
#include "weir/sum.h"
#include "weir/tcp.h"

#include "conntrack.h"
#include "table.h"
#include "packet.h"
#include "time.h"
#include "carry.h"
#include "tally.h"
#include "xdp.h"
#include "learn.h"
#include "idle.h"

char _license[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_REASONS);
	__type(key, __u32);
	__type(value, struct weir_count);
} counts SEC(".maps");

static __always_inline enum weir_reason arrive(struct __sk_buff *skb, struct arrived *p, __u32 *goes_by)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	struct extent x = { .bytes = skb->len, .segment = skb->gso_size };
	enum weir_reason reason;
	void *data, *end;

	if ((__s64)(control.until - bpf_jiffies64()) <= 0)
		return rare(WEIR_NO_LEASE);
	if (skb->vlan_present || (!v4 && (skb->protocol == bpf_htons(ETH_P_8021Q) || skb->protocol == bpf_htons(ETH_P_8021AD))))
		return rare(WEIR_TAGGED);
	if (!v4 && (skb->protocol != bpf_htons(ETH_P_IPV6) || !control.carries6))
		return rare(WEIR_NOT_IP);
	if (skb->pkt_type != PACKET_HOST || skb->mark)
		return rare(WEIR_NOT_PLAIN);
	// Both headers without options.
	pull(skb, ETH_HLEN + sizeof(struct tcp_head) + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)), &data, &end);
	p->came_by = skb->ifindex;
	reason = v4 ? read4(x, p, data + ETH_HLEN, end) : read6(x, p, data + ETH_HLEN, end);
	if (reason == WEIR_CONTROL) {
		if (v4)
			control_flow(p, 1);
		else
			control_flow(p, 4);
	}
	if (reason != WEIR_CARRIED)
		return reason;
	return v4 ? carry(skb, p, data, end, 1, goes_by) : carry(skb, p, data, end, 4, goes_by);
}

// A kernel without IPsec has neither the type nor the helper.
struct xfrm_state {
} KERNEL;

static __always_inline bool was_decrypted(struct __sk_buff *skb)
{
	struct bpf_xfrm_state state;

	return bpf_core_type_exists(struct xfrm_state) && !bpf_skb_get_xfrm_state(skb, 0, &state, sizeof(state), 0);
}

// The mark by which a packet whose headers were read is known when it leaves and may teach its flow.
static __always_inline __u32 mark_of_arrived(struct __sk_buff *skb, __u8 words, bool udp)
{
	void *net = (void *)(long)skb->data + ETH_HLEN, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = net;
	struct iphdr *ip4 = net;

	if (words == 4)
		return (void *)(ip6 + 1) <= end ? mark_of(marked6(ip6), udp, ip6 + 1, end) : 0;
	return (void *)(ip4 + 1) <= end ? mark_of(marked4(ip4), udp, ip4 + 1, end) : 0;
}

// A carried packet has this in its control block until it leaves, unless another layer that it passes uses that. It is a secret, so that
// nothing that other layers leave there is taken for it.
static __always_inline __u32 sign(void)
{
	return (__u32)config.seed;
}

// The single way out: the packet is counted, and goes where its reason says.
SEC("tc")
int fastpath_in(struct __sk_buff *skb)
{
	__u32 goes_by = 0, at, bytes = skb->len;
	struct last_arrived *last = last_arrival();
	struct weir_count *mine;
	struct arrived *p;

	if (!last)
		return TC_ACT_UNSPEC;
	p = &last->packet;
	p->words = 0;
	p->is_candidate = false;
	p->is_far = false;
	p->carried_ports = 0;
	begin_time(p);
	at = arrive(skb, p, &goes_by);
	// The kernel asks its IPsec policy about what was decrypted, and entries know nothing of that.
	if (p->is_candidate && was_decrypted(skb))
		p->is_candidate = false;
	// Each packet tells whose the ports are with which it leaves, if conntrack cannot be asked.
	if (p->is_candidate || (config.asks_resident && p->words && at != WEIR_CARRIED)) {
		p->mark = mark_of_arrived(skb, p->words, p->udp);
		keep_candidate(last);
	}
	mine = bpf_map_lookup_elem(&counts, &at);
	if (mine) {
		mine->packets++;
		mine->bytes += bytes;
	}
	go_on_time(p, at);
	if (at == WEIR_CARRIED) {
		if (control.counting)
			tally(p, bytes);
		// One that is timed takes the longer way out, which reads the clock.
		if (!p->since)
			skb->cb[0] = sign();
		return bpf_redirect(goes_by, 0);
	}
	// TCX_NEXT: programs behind this one are asked, too, then the kernel.
	return at == WEIR_FAILED ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

// The same in a driver. The program at tc counts the packets that this one passes on.
SEC("xdp")
int fastpath_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 goes_by = 0, at, bytes = end - data;
	struct weir_count *mine;
	struct arrived p = {};

	at = arrive_by_xdp(ctx, &p, data, end, &goes_by);
	mine = bpf_map_lookup_elem(&xdp_counts, &at);
	if (mine) {
		mine->packets++;
		mine->bytes += bytes;
	}
	if (at != WEIR_CARRIED)
		return XDP_PASS;
	if (control.counting)
		tally(&p, bytes);
	return bpf_redirect(goes_by, 0);
}

// True if the packet that leaves is the one that was carried last on this core, which has no options.
static __always_inline bool is_carried(const struct arrived *p, __be32 ports, __be32 destination)
{
	return p->carried_ports && p->carried_ports == ports && p->carried_to == destination;
}

static __always_inline __u8 flags_of(bool udp, const void *transport, const void *end)
{
	const struct tcp_head *tcp = transport;

	return !udp && (const void *)(tcp + 1) <= end ? tcp->flags : 0;
}

// One that was carried, that takes the kernel's way, or that this host sends itself.
static __always_inline void leave(struct __sk_buff *skb, struct last_arrived *last, __u64 now)
{
	struct arrived *p = &last->packet;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ends leaving = {};

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;
		__be32 *ports = (void *)(ip + 1);
		__u32 mark;
		__u8 hops, tos, flags;
		bool udp;

		if ((void *)(ports + 1) > end)
			return;
		if (is_carried(p, *ports, ip->daddr))
			return end_carried(p, now);
		if (ip->ihl != 5 || (ip->frag_off & bpf_htons(0x3fff)) || (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP))
			return;
		leaving.source[0] = ip->saddr;
		leaving.destination[0] = ip->daddr;
		leaving.ports = *ports;
		udp = ip->protocol == IPPROTO_UDP;
		mark = mark_of(marked4(ip), udp, ip + 1, end);
		flags = flags_of(udp, ip + 1, end);
		hops = ip->ttl;
		tos = ip->tos;
		if (p->is_candidate && p->mark == mark)
			end_kernels(p, now);
		purge(skb, &leaving, udp, mark, flags, 1);
		learn(skb, last, &leaving, udp, mark, hops, tos, 1);
		has_left(mark);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		__be32 *ports = (void *)(ip + 1);
		__u32 mark;
		__u8 hops, tos, flags;
		bool udp;

		if ((void *)(ports + 1) > end)
			return;
		if (is_carried(p, *ports, ((__be32 *)&ip->daddr)[3]))
			return end_carried(p, now);
		if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
			return;
		copy(leaving.source, (void *)&ip->saddr, 4);
		copy(leaving.destination, (void *)&ip->daddr, 4);
		leaving.ports = *ports;
		udp = ip->nexthdr == IPPROTO_UDP;
		mark = mark_of(marked6(ip), udp, ip + 1, end);
		flags = flags_of(udp, ip + 1, end);
		hops = ip->hop_limit;
		tos = bpf_ntohl(*(__be32 *)ip) >> 20;
		if (p->is_candidate && p->mark == mark)
			end_kernels(p, now);
		purge(skb, &leaving, udp, mark, flags, 4);
		learn(skb, last, &leaving, udp, mark, hops, tos, 4);
		has_left(mark);
	}
}

// A function of its own: what it keeps of the caller's registers, and its stack, cost a carried packet nothing.
static __noinline int leave_unsigned(struct __sk_buff *skb)
{
	struct last_arrived *last = last_arrival();
	__u64 now;

	if (!last)
		return TC_ACT_UNSPEC;
	now = see_time(&last->packet);
	leave(skb, last, now);
	leave_time(&last->packet, now);
	return TC_ACT_UNSPEC;
}

// A packet leaves.
SEC("tc")
int fastpath_out(struct __sk_buff *skb)
{
	return skb->cb[0] == sign() ? TC_ACT_UNSPEC : leave_unsigned(skb);
}

// Run once on a made-up packet. 0: this kernel can carry IPv6.
SEC("tc")
int knows_ipv6(struct __sk_buff *skb)
{
	return !can_rewrite_ipv6(skb);
}

// Renews the lease of the resident process; run by it, on no packet of the network.
SEC("tc")
int renew(struct __sk_buff *skb)
{
	(void)skb;
	control.now = bpf_jiffies64();
	control.until = control.now + control.lease;
	control.tick = control.tick % WEIR_TICK_MASK + 1;
	return 0;
}

static __always_inline void remove_entry(const struct weir_direction *d, int words)
{
	struct ends ends = { .ports = d->ports };
	bool udp = d->protocol == IPPROTO_UDP;
	struct weir_way *way;
	__u32 state;
	__u64 hash;

	copy(ends.source, d->source, words);
	copy(ends.destination, d->destination, words);
	hash = hash_of(&ends, udp, words);
	way = find(hash, &ends, udp, words, &state);
	if (!way)
		way = find_in(hash, WEIR_ENDED, &ends, udp, words, &state);
	if (way)
		forget(way, state);
}

// A function of its own, which the verifier checks once. 1: there are no more.
__noinline int remove_at(struct __sk_buff *skb, __u32 at)
{
	struct weir_direction d;

	if (bpf_skb_load_bytes(skb, at, &d, sizeof(d)))
		return 1;
	if (d.version == 6)
		remove_entry(&d, 4);
	else
		remove_entry(&d, 1);
	return 0;
}

// Removes the entries of the directions that follow an Ethernet header; run by the resident process.
SEC("tc")
int remove(struct __sk_buff *skb)
{
	for (__u32 i = 0; i < WEIR_REMOVED_AT_ONCE; i++)
		if (remove_at(skb, ETH_HLEN + i * sizeof(struct weir_direction)))
			return 0;
	return 0;
}

static __always_inline void settle_entry(const struct weir_settlement *s, int words)
{
	struct times_of times;
	struct ends ends = { .ports = s->flow.ports };
	bool udp = s->flow.protocol == IPPROTO_UDP;
	enum weir_lesson lesson = s->lesson;
	struct weir_way *way;
	__u32 state, busy, valid;

	copy(ends.source, s->flow.source, words);
	copy(ends.destination, s->flow.destination, words);
	way = find(hash_of(&ends, udp, words), &ends, udp, words, &state);
	if (!way || (state & ~WEIR_ANSWERED) != s->state)
		return;
	// Conntrack was asked before the answer came, after which the next packet may make a stream of it.
	if (s->one_way && (state & WEIR_ANSWERED))
		lesson = WEIR_UNSETTLED;
	note(lesson);
	if (lesson != WEIR_LEARNT) {
		forget(way, state);
		return;
	}
	busy = in_phase(changed(s->state), WEIR_BUSY);
	if (__sync_val_compare_and_swap(&way->state, state, busy) != state)
		return;
	times = (struct times_of){ .timeout = s->timeout, .changes = ~0u, .one_way = s->one_way };
	set_times(way, &times);
	if (udp)
		way->progress = s->one_way;
	order();
	valid = in_phase(changed(busy), WEIR_VALID);
	// Only an answer changes it meanwhile.
	if (__sync_val_compare_and_swap(&way->state, busy, valid) != busy)
		__sync_lock_test_and_set(&way->state, s->one_way ? in_phase(valid, WEIR_EMPTY) : valid);
}

// Takes in what conntrack says of an entry that waits for it; run by the resident process. One that has changed meanwhile, by a packet
// of another owner of its ports or an end of the connection, stays as it is.
SEC("tc")
int settle(struct __sk_buff *skb)
{
	struct weir_settlement s;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &s, sizeof(s)) || s.lesson >= WEIR_LESSONS)
		return 1;
	if (s.flow.version == 6)
		settle_entry(&s, 4);
	else
		settle_entry(&s, 1);
	return 0;
}

static __always_inline enum weir_reason show(struct __sk_buff *skb, const struct weir_direction *d, int words)
{
	struct ends ends = { .ports = d->ports };
	bool udp = d->protocol == IPPROTO_UDP;
	struct weir_entry entry = {};
	struct weir_way *way;
	__u32 state;
	__be32 *w;

	copy(ends.source, d->source, words);
	copy(ends.destination, d->destination, words);
	way = find(hash_of(&ends, udp, words), &ends, udp, words, &state);
	if (!way || !way->timeout)
		return !udp && is_barred(&ends, words) ? WEIR_CONTROL : WEIR_UNKNOWN;
	w = words_of(way);
	entry.way = *way;
	copy(entry.source, w + TO_SOURCE(words), words);
	copy(entry.destination, w + TO_DESTINATION(words), words);
	entry.ports = w[TO_PORTS(words)];
	order();
	if (state_of(way) != state || bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(*d), &entry, sizeof(entry), 0))
		return WEIR_CHANGING;
	if ((state ^ generation_bits()) >> WEIR_GENERATION_SHIFT)
		return WEIR_STALE;
	return is_past(entry.way.due) ? WEIR_DUE : WEIR_CARRIED;
}

// The verdict on a usual packet of the direction that follows an Ethernet header; its entry is written behind it. Run by the
// resident process; changes nothing.
SEC("tc")
int explain(struct __sk_buff *skb)
{
	struct weir_direction d;

	if ((__s64)(control.until - bpf_jiffies64()) <= 0)
		return WEIR_NO_LEASE;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &d, sizeof(d)))
		return WEIR_MALFORMED;
	return d.version == 6 ? show(skb, &d, 4) : show(skb, &d, 1);
}
