// SPDX-License-Identifier: GPL-2.0 OR MIT
// Counts retransmissions and resets of TCP by connection.
#include <linux/bpf.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"
#include "place.h"
#include "shared.h"
#include "shared.check.h"
#include "lost.h"

char _license[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct weir_flow);
	__type(value, struct weir_flow_sum);
} flows SEC(".maps");

// For connections that found no room in the first.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct weir_flow);
	__type(value, struct weir_flow_sum);
} rest SEC(".maps");

static __always_inline bool add(void *table, const struct weir_flow *flow, __u32 bytes)
{
	struct weir_flow_sum *sum = bpf_map_lookup_elem(table, flow);

	if (!sum) {
		struct weir_flow_sum first = { .times = 0, .largest = bytes, .smallest = bytes };

		bpf_map_update_elem(table, flow, &first, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(table, flow);
	}
	if (!sum)
		return false;
	__sync_fetch_and_add(&sum->times, 1);
	// Two cores at once may lose one of two extremes; they are hints.
	if (bytes > sum->largest)
		sum->largest = bytes;
	if (bytes < sum->smallest)
		sum->smallest = bytes;
	return true;
}

static __always_inline int note(struct weir_flow *flow, __u32 bytes)
{
	struct weir_flow other = { .netns = flow->netns, .kind = flow->kind, .state = flow->state };
	struct weir_lost *none;

	if (add(&flows, flow, bytes) || add(&rest, &other, bytes))
		return 0;
	none = lost_here();
	if (none)
		none->packets++;
	return 0;
}

// Fills in both ends of a connection as the side at `c` has them: `local` is where its own go.
static __always_inline void ends(struct weir_flow *flow, struct sock_common *c, bool outgoing)
{
	__be32 *local = outgoing ? flow->source : flow->destination;
	__be32 *remote = outgoing ? flow->destination : flow->source;
	__be16 local_port = bpf_htons(BPF_CORE_READ(c, skc_num));
	__be16 remote_port = BPF_CORE_READ(c, skc_dport);

	flow->family = BPF_CORE_READ(c, skc_family);
	flow->source_port = outgoing ? local_port : remote_port;
	flow->destination_port = outgoing ? remote_port : local_port;
	if (flow->family == AF_INET6) {
		BPF_CORE_READ_INTO((struct in6_addr *)local, c, skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO((struct in6_addr *)remote, c, skc_v6_daddr);
	} else {
		local[0] = BPF_CORE_READ(c, skc_rcv_saddr);
		remote[0] = BPF_CORE_READ(c, skc_daddr);
	}
}

static __always_inline __u32 payload(struct sk_buff *skb)
{
	struct tcp_skb_cb *cb = (void *)skb + bpf_core_field_offset(struct sk_buff, cb);
	__u32 length = BPF_CORE_READ(skb, len);
	__u16 segment = BPF_CORE_READ(cb, tcp_gso_size);

	return segment && segment < length ? segment : length;
}

SEC("tp_btf/tcp_retransmit_skb")
int retransmit(__u64 *ctx)
{
	struct weir_flow flow = { .kind = WEIR_RETRANSMIT };
	struct sock *sk = (void *)ctx[0];

	flow.netns = netns_of_socket(sk);
	flow.state = BPF_CORE_READ(sk, __sk_common.skc_state);
	ends(&flow, (void *)sk, true);
	return note(&flow, payload((void *)ctx[1]));
}

SEC("tp_btf/tcp_receive_reset")
int reset_received(__u64 *ctx)
{
	struct weir_flow flow = { .kind = WEIR_RESET_RECEIVED };
	struct sock *sk = (void *)ctx[0];

	flow.netns = netns_of_socket(sk);
	flow.state = BPF_CORE_READ(sk, __sk_common.skc_state);
	ends(&flow, (void *)sk, false);
	return note(&flow, 0);
}

SEC("tp_btf/tcp_retransmit_synack")
int retransmit_synack(__u64 *ctx)
{
	struct weir_flow flow = { .kind = WEIR_RETRANSMIT_SYNACK };
	struct sock *sk = (void *)ctx[0];

	flow.netns = netns_of_socket(sk);
	// TCP_NEW_SYN_RECV (include/net/tcp_states.h): the listener's own state says nothing.
	flow.state = 12;
	ends(&flow, (void *)ctx[1], true);
	return note(&flow, 0);
}

// The packet that is answered, as it came.
static __always_inline bool answered(struct weir_flow *flow, struct sk_buff *skb)
{
	void *header = BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, network_header);
	__u8 first = 0;
	__u32 length;

	if (bpf_probe_read_kernel(&first, 1, header))
		return false;
	if (first >> 4 == 4) {
		flow->family = AF_INET;
		length = (first & 15) * 4;
		bpf_probe_read_kernel(flow->source, 4, header + 12);
		bpf_probe_read_kernel(flow->destination, 4, header + 16);
	} else if (first >> 4 == 6) {
		flow->family = AF_INET6;
		// Extension headers before TCP are not looked through.
		length = 40;
		bpf_probe_read_kernel(flow->source, 16, header + 8);
		bpf_probe_read_kernel(flow->destination, 16, header + 24);
	} else {
		return false;
	}
	bpf_probe_read_kernel(&flow->source_port, 2, header + length);
	bpf_probe_read_kernel(&flow->destination_port, 2, header + length + 2);
	return true;
}

SEC("tp_btf/tcp_send_reset")
int reset_sent(__u64 *ctx)
{
	struct weir_flow flow = { .kind = WEIR_RESET_SENT };
	struct sk_buff *skb = 0;
	struct sock *sk = 0;
	bool known = false;

	// Either may be null: see netns_of_socket.
	bpf_probe_read_kernel(&sk, sizeof(sk), &ctx[0]);
	bpf_probe_read_kernel(&skb, sizeof(skb), &ctx[1]);
	flow.netns = netns_of_socket(sk);
	if (!flow.netns && skb)
		flow.netns = BPF_CORE_READ(skb, dev, nd_net.net, ns.inum);
	if (sk)
		flow.state = BPF_CORE_READ(sk, __sk_common.skc_state);
	if (skb)
		known = answered(&flow, skb);
	if (!known && sk)
		ends(&flow, (void *)sk, false);
	return note(&flow, 0);
}
