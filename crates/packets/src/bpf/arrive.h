/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What a frame that arrived says, if it has the form of ours: Ethernet II, IPv4 without options and not a fragment, or IPv6
 * without extension headers, then UDP or a bare TCP SYN, with all lengths in agreement and the tag inside the linear part. */
#ifndef WEIR_ARRIVE_H
#define WEIR_ARRIVE_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"

/* Shortest frames that hold a tag: 14 of Ethernet, 20 or 40 of IP, and 8 + 16 of UDP or 20 + 4 of TCP. */
#define LEAST4 58
#define LEAST6 78
/* Second and third flag byte of a TCP header of 20 bytes: its length in words, and SYN alone. */
#define BARE_SYN bpf_htons(0x5002)
/* More fragments, an offset, or the reserved bit (RFC 791): all but "don't fragment". */
#define NOT_WHOLE bpf_htons(0xbfff)

struct arrived {
	/* As they stand in the frame; IPv4 in the first word. */
	__be32 source[4];
	__be32 destination[4];
	/* Source port, destination port. */
	__be16 ports[2];
	/* A SYN has room for its low half only; the upper is zero then. */
	__be32 cookie;
	/* Length of the IP packet, bytes. */
	__u32 ip_bytes;
	/* Host byte order. */
	__u32 seq;
	__u32 flow;
	__u32 sent_ns;
};

/* The part of a cookie that a protocol has room for, at the place where `arrived` has it. */
static __always_inline __be32 room_for(__u8 protocol, __be32 cookie)
{
	return protocol == IPPROTO_TCP ? cookie & bpf_htonl(0xffff) : cookie;
}

/* A frame of several buffers is longer than its first, which is asked only when it must be. */
static __always_inline bool holds(struct xdp_md *ctx, __u32 frame_bytes)
{
	return ctx->data_end - ctx->data >= frame_bytes || bpf_xdp_get_buff_len(ctx) >= frame_bytes;
}

/* 24 bytes from `at` on are readable: those of UDP's header and the tag, or of TCP's and a flow. */
static __always_inline bool read_tag(void *at, __u8 protocol, __u32 bytes, struct arrived *a)
{
	if (protocol == IPPROTO_UDP) {
		struct udphdr *udp = at;
		struct weir_tag *tag = (void *)(udp + 1);

		if (bpf_ntohs(udp->len) != bytes || bytes < sizeof(*udp) + sizeof(*tag))
			return false;
		a->ports[0] = udp->source;
		a->ports[1] = udp->dest;
		a->cookie = tag->cookie;
		a->seq = bpf_ntohl(tag->seq);
		a->flow = bpf_ntohl(tag->flow);
		a->sent_ns = bpf_ntohl(tag->sent_ns);
	} else {
		struct tcphdr *tcp = at;

		if (*(__be16 *)(at + 12) != BARE_SYN || bytes < sizeof(*tcp) + 4)
			return false;
		a->ports[0] = tcp->source;
		a->ports[1] = tcp->dest;
		a->cookie = bpf_htonl(bpf_ntohs(tcp->window));
		a->seq = bpf_ntohl(tcp->seq);
		a->flow = bpf_ntohl(*(__be32 *)(tcp + 1));
		a->sent_ns = bpf_ntohl(tcp->ack_seq);
	}
	return true;
}

static __always_inline bool read4(struct xdp_md *ctx, __u8 protocol, struct arrived *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);

	if (data + LEAST4 > end)
		return false;
	/* 0x45: version 4, five words. */
	if (eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)ip != 0x45 || ip->protocol != protocol)
		return false;
	if (ip->frag_off & NOT_WHOLE)
		return false;
	a->ip_bytes = bpf_ntohs(ip->tot_len);
	if (a->ip_bytes < sizeof(*ip) || !holds(ctx, sizeof(*eth) + a->ip_bytes))
		return false;
	a->source[0] = ip->saddr;
	a->destination[0] = ip->daddr;
	return read_tag(ip + 1, protocol, a->ip_bytes - sizeof(*ip), a);
}

static __always_inline bool read6(struct xdp_md *ctx, __u8 protocol, struct arrived *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip = data + sizeof(*eth);
	__u32 bytes;

	if (data + LEAST6 > end)
		return false;
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || ip->version != 6 || ip->nexthdr != protocol)
		return false;
	bytes = bpf_ntohs(ip->payload_len);
	a->ip_bytes = sizeof(*ip) + bytes;
	if (!holds(ctx, sizeof(*eth) + a->ip_bytes))
		return false;
	__builtin_memcpy(a->source, &ip->saddr, sizeof(a->source));
	__builtin_memcpy(a->destination, &ip->daddr, sizeof(a->destination));
	return read_tag(ip + 1, protocol, bytes, a);
}

#endif
