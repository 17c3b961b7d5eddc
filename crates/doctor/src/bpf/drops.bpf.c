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

// A byte read in one way; else the compiler makes one read for both ways, and the verifier allows one kind of pointer in
// each.
static __always_inline __u8 kept_apart(__u8 byte)
{
	asm volatile("" : "+r"(byte));
	return byte;
}

// `at` is where the header has it.
static __always_inline __u8 byte_by_helper(const void *header, __u32 at)
{
	__u8 byte = 0;

	bpf_probe_read_kernel(&byte, 1, header + at);
	return kept_apart(byte);
}

// The next header, as the IP header names it. Read directly where the kernel knows how to (Linux 6.2): the helper takes longer than all
// the counting.
static __always_inline __u8 ip_protocol(const void *header, __u16 ethertype)
{
	bool direct = bpf_ksym_exists(bpf_rdonly_cast);
	__u8 next;

	if (ethertype == ETH_P_IP) {
		if (direct)
			return kept_apart(bpf_core_cast(header, struct iphdr)->protocol);
		return byte_by_helper(header, 9);
	}
	if (ethertype != ETH_P_IPV6)
		return 0;
	if (direct)
		next = kept_apart(bpf_core_cast(header, struct ipv6hdr)->nexthdr);
	else
		next = byte_by_helper(header, 6);
	return behind_extensions(header, next);
}

// Messages of UNIX and netlink sockets are skbs too, and no packets.
static __always_inline bool is_no_packet(struct sk_buff *skb, struct sock *sk)
{
	__u16 family;

	if (skb->protocol || skb->_skb_refdst)
		return false;
	if (!sk)
		return true;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	return family != AF_INET && family != AF_INET6 && family != AF_PACKET;
}

// `skb->len` counts from where the layer that has the packet just now begins: with the link's header in a device's queue,
// behind the IP header in a socket's.
static __always_inline __u32 length_from(struct sk_buff *skb, void *header)
{
	long before = (long)skb->data - (long)header;
	long length = (long)skb->len + before;

	return before >= -128 && before <= 1024 && length > 0 ? length : skb->len;
}

static __always_inline void fill(struct weir_sample *sample, struct sk_buff *skb, void *header, bool socket)
{
	long room = (long)(skb->head + skb->tail) - (long)header;
	__u32 length = room < 0 ? 0 : room > WEIR_SAMPLE_BYTES ? WEIR_SAMPLE_BYTES : room;

	sample->came_in = skb->skb_iif;
	sample->mark = skb->mark;
	sample->length = length_from(skb, header);
	sample->socket = socket;
	if (bpf_probe_read_kernel(sample->header, length, header))
		length = 0;
	sample->filled = length;
}

// The socket that it was for, where the kernel says so. It is copied, so that it is a plain number to the verifier: see
// netns_of_socket.
static __always_inline struct sock *receiver_of(__u64 *ctx)
{
	struct sock *receiver = 0;

	// The verifier removes what this kernel's tracepoint does not have.
	if (watch.arguments >= 4)
		bpf_probe_read_kernel(&receiver, sizeof(receiver), &ctx[3]);
	return receiver;
}

// The namespace of a packet without a device. The sender's socket may be in another namespace when the packet has gone on from there; but
// then it has a device.
static __always_inline __u32 netns_without_device(struct sk_buff *skb, struct sock *receiver)
{
	__u32 inum = netns_of_socket(receiver);

	if (!inum)
		inum = netns_of_owner(skb);
	return inum ? inum : netns_of_route(skb);
}

SEC("tp_btf/kfree_skb")
int dropped(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct weir_group group = { .location = ctx[1] };
	void *header = network_header(skb);
	struct weir_sample *sample;
	struct sock *receiver;

	group.netns = netns_of_device(skb->dev);
	if (group.netns) {
		group.interface = skb->dev->ifindex;
	} else {
		receiver = receiver_of(ctx);
		if (is_no_packet(skb, receiver ? receiver : skb->sk))
			return 0;
		group.netns = netns_without_device(skb, receiver);
	}
	if (watch.arguments >= 3)
		group.reason = ctx[2];
	group.ethertype = bpf_ntohs(skb->protocol);
	group.protocol = ip_protocol(header, group.ethertype);
	sample = count(&group, length_from(skb, header));
	if (sample)
		fill(sample, skb, header, group.netns && (netns_of_socket(receiver_of(ctx)) == group.netns ||
							  netns_of_owner(skb) == group.netns));
	return 0;
}
