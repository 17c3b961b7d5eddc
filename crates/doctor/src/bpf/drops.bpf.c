// SPDX-License-Identifier: GPL-2.0 OR MIT
// Counts the packets that the kernel lets go of, by where and why, and keeps some of them.
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"
#include "place.h"
#include "shared.h"
#include "shared.check.h"
#include "tally.h"

char _license[] SEC("license") = "Dual MIT/GPL";

// Extension headers that are skipped to find the protocol of an IPv6 packet; more are not seen in practice.
#define EXTENSIONS 4

// The protocol behind the extension headers; of a fragment that of the whole, as far as it says.
static __always_inline __u8 behind_extensions(const void *ip6, __u8 next)
{
	__u32 at = 40;
	__u8 head[2];

	for (int i = 0; i < EXTENSIONS; i++) {
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			break;
		if (bpf_probe_read_kernel(head, sizeof(head), ip6 + at))
			break;
		at += next == IPPROTO_FRAGMENT ? 8 : (head[1] + 1) * 8;
		next = head[0];
	}
	return next;
}

static __always_inline __u8 ip_protocol(const void *header, __u16 ethertype)
{
	__u8 protocol = 0;

	// struct iphdr.protocol, struct ipv6hdr.nexthdr.
	if (ethertype == ETH_P_IP)
		bpf_probe_read_kernel(&protocol, 1, header + 9);
	if (ethertype == ETH_P_IPV6 && !bpf_probe_read_kernel(&protocol, 1, header + 6))
		protocol = behind_extensions(header, protocol);
	return protocol;
}

// Messages of UNIX and netlink sockets are skbs too, and no packets.
static __always_inline bool is_no_packet(struct sk_buff *skb, struct sock *sk)
{
	__u16 family;

	if (skb->protocol || skb->_skb_refdst)
		return false;
	if (!sk)
		return !skb->dev;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	return family != AF_INET && family != AF_INET6 && family != AF_PACKET;
}

static __always_inline void fill(struct weir_sample *sample, struct sk_buff *skb, void *header, bool socket)
{
	long room = (long)(skb->head + skb->tail) - (long)header;
	__u32 length = room < 0 ? 0 : room > WEIR_SAMPLE_BYTES ? WEIR_SAMPLE_BYTES : room;

	sample->came_in = skb->skb_iif;
	sample->mark = skb->mark;
	sample->length = skb->len;
	sample->socket = socket;
	if (bpf_probe_read_kernel(sample->header, length, header))
		length = 0;
	sample->filled = length;
}

static __always_inline int drop(struct sk_buff *skb, __u64 location, __u32 reason, struct sock *receiver)
{
	struct sock *sk = receiver ? receiver : skb->sk;
	__u32 of_device = netns_of_device(skb->dev), of_socket = netns_of_socket(sk);
	void *header = network_header(skb);
	struct weir_group group = { .location = location, .reason = reason };
	struct weir_sample *sample;

	if (is_no_packet(skb, sk))
		return 0;
	// The receiving socket is never wrong; the sender's may be in another namespace while the packet has gone on from there.
	group.netns = receiver && of_socket ? of_socket : of_device ? of_device : of_socket;
	if (!group.netns)
		group.netns = netns_of_route(skb);
	if (of_device && of_device == group.netns)
		group.interface = skb->dev->ifindex;
	group.ethertype = bpf_ntohs(skb->protocol);
	group.protocol = ip_protocol(header, group.ethertype);
	sample = count(&group, skb->len);
	if (sample)
		fill(sample, skb, header, of_socket && of_socket == group.netns);
	return 0;
}

SEC("tp_btf/kfree_skb")
int dropped(__u64 *ctx)
{
	__u32 reason = 0;
	struct sock *receiver = 0;

	// The verifier removes what this kernel's tracepoint does not have.
	if (watch.arguments >= 3)
		reason = ctx[2];
	// The receiver is copied, so that it is a plain number to the verifier: see netns_of_socket.
	if (watch.arguments >= 4)
		bpf_probe_read_kernel(&receiver, sizeof(receiver), &ctx[3]);
	return drop((struct sk_buff *)ctx[0], ctx[1], reason, receiver);
}
