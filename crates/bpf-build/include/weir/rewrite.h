// The outer headers rewritten: addresses, hop limit, ports, checksums.
#pragma once

#include "sum.h"

// A packet on its way through a program.
struct packet {
	struct __sk_buff *skb;
	// It comes from the inside: its source is translated, else its destination.
	bool out;
	// Bytes that it had at the beginning.
	__u32 bytes;
	// Its next hop.
	struct bpf_redir_neigh next;
};

// The words behind a 4-byte boundary of the IPv4 header, so that it is written in one piece.
struct tail4 {
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__be32 saddr;
	__be32 daddr;
};

static __always_inline bool write_ip4(struct packet *p, const struct iphdr *ip, __be32 address)
{
	struct tail4 tail = {
		.ttl = ip->ttl - 1,
		.protocol = ip->protocol,
		.saddr = p->out ? address : ip->saddr,
		.daddr = p->out ? ip->daddr : address,
	};
	__u32 difference = change(0, p->out ? ip->saddr : ip->daddr, address);

	// The TTL is the upper half of its word.
	difference = change16(difference, bpf_htons(ip->ttl << 8), bpf_htons(tail.ttl << 8));
	tail.check = updated(ip->check, difference);
	return !bpf_skb_store_bytes(p->skb, ETH_HLEN + offsetof(struct iphdr, ttl), &tail, sizeof(tail), 0);
}

// From the payload length on.
struct tail6 {
	__be16 payload_len;
	__u8 nexthdr;
	__u8 hop_limit;
	__be32 saddr[4];
	__be32 daddr[4];
};

static __always_inline bool write_ip6(struct packet *p, const struct ipv6hdr *ip, const __be32 *address)
{
	struct tail6 tail = {
		.payload_len = ip->payload_len,
		.nexthdr = ip->nexthdr,
		.hop_limit = ip->hop_limit - 1,
	};

	__builtin_memcpy(tail.saddr, p->out ? (void *)address : (void *)&ip->saddr, 16);
	__builtin_memcpy(tail.daddr, p->out ? (void *)&ip->daddr : (void *)address, 16);
	return !bpf_skb_store_bytes(p->skb, ETH_HLEN + offsetof(struct ipv6hdr, payload_len), &tail, sizeof(tail), 0);
}

// The place of the checksum in a segment or datagram.
static __always_inline __u32 checksum_at(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check);
}

// A UDP checksum of 0 means none (RFC 768), stays so, and never comes about.
static __always_inline __u64 flags_of(__u8 protocol)
{
	return protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

// The port, where it changes. It is part of what is summed, unlike the pseudo header: where the card is to finish the checksum,
// it needs nothing.
static __always_inline bool write_port(struct packet *p, __u32 at, __u8 protocol, __be16 old, __be16 new)
{
	if (old == new)
		return true;
	return !bpf_l4_csum_replace(p->skb, at + checksum_at(protocol), old, new, flags_of(protocol) | 2) &&
	       !bpf_skb_store_bytes(p->skb, at + (p->out ? 0 : 2), &new, sizeof(new), 0);
}
