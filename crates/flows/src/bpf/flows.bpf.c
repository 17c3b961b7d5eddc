// SPDX-License-Identifier: GPL-2.0 OR MIT
// Follows the TCP connections and UDP flows that pass this host, at the ingress of its interfaces. Every packet goes on unchanged.
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
#include "settings.h"
#include "settings.check.h"
#include "shared.h"
#include "shared.check.h"
#include "weir/ends.h"
#include "weir/ipv6.h"
#include "weir/mapped.h"
#include "weir/tcp.h"

const volatile struct weir_config config SEC(".rodata.config");

// A kernel without connection tracking has neither; then nothing translates addresses.
struct nf_conn;
struct bpf_ct_opts;
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size,
					 struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

// The packet in work. The verifier knows no values of maps: it then need not follow each way that led here.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_work);
} work SEC(".maps");

#include "number.h"
#include "judge.h"
#include "options.h"
#include "packet.h"
#include "table.h"
#include "outside.h"
#include "datagrams.h"
#include "udp.h"
#include "icmp.h"
#include "notes.h"

char _license[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_VERDICTS);
	__type(key, __u32);
	__type(value, struct weir_count);
} counts SEC(".maps");

// Everything but TCP. A function of its own, so that the verifier and the cache have the way of TCP without it.
__noinline int follow_other(struct __sk_buff *skb)
{
	__u32 at = 0;
	struct weir_work *w = bpf_map_lookup_elem(&work, &at);

	if (!w || !config.udp_opening)
		return WEIR_OTHER_PROTOCOL;
	if (w->ends.protocol == IPPROTO_UDP)
		return follow_udp(skb, w);
	return follow_error(skb, w);
}

// Not inline: most packets of a busy gateway are outside of the sample and need neither its stack nor its registers.
static __noinline __u32 follow_flow(struct __sk_buff *skb, __u64 mark)
{
	__u32 *known, at = 0;
	struct weir_work *w = bpf_map_lookup_elem(&work, &at);
	enum weir_verdict verdict;
	bool was_opening, is_opening;
	struct weir_packet *p;
	struct slot *slot;
	__s64 direction;

	if (!w)
		return WEIR_NO_ROOM;
	__builtin_memset(w, 0, sizeof(*w));
	w->mark = mark;
	p = &w->packet;
	verdict = read_packet(skb, &w->ends, p);
	if (verdict == WEIR_OTHER_PROTOCOL)
		return follow_other(skb);
	if (verdict != WEIR_JUDGED)
		return verdict;
	known = bpf_map_lookup_elem(&directions, &w->ends);
	direction = known ? *known : learn(skb, &w->ends, p);
	if (direction == -WEIR_UNSAMPLED)
		set_outside(w->mark);
	if (direction < 0)
		return -direction;
	p->side = direction & 1;
	at = direction / 2;
	slot = bpf_map_lookup_elem(&slots, &at);
	if (!slot)
		return WEIR_NO_ROOM;
	bpf_spin_lock(&slot->lock);
	was_opening = slot->flow.state & WEIR_IS_OPENING;
	slot->flow.interfaces[p->side & 1] = skb->ifindex;
	judge(&slot->flow, p);
	is_opening = slot->flow.state & WEIR_IS_OPENING;
	bpf_spin_unlock(&slot->lock);
	if (was_opening != is_opening)
		count_opening(OF_TCP, is_opening);
	return WEIR_JUDGED;
}

static __always_inline void count(struct __sk_buff *skb, __u32 verdict)
{
	struct weir_count *mine = bpf_map_lookup_elem(&counts, &verdict);

	if (!mine)
		return;
	mine->packets++;
	mine->bytes += skb->len;
	if (is_noted(verdict) && mine->bytes >= mine->next)
		note(skb, mine);
}

// The single way out.
SEC("tc")
int flows_in(struct __sk_buff *skb)
{
	__u64 mark = mark_of(skb);

	if (is_outside(mark))
		count(skb, WEIR_UNSAMPLED);
	else
		count(skb, follow_flow(skb, mark));
	// TCX_NEXT: the packet goes on as without us.
	return TC_ACT_UNSPEC;
}
