// Helpers of programs that rewrite IPv6 packets.
#pragma once

#define NEXT_FRAGMENT 44
// asm-generic/errno-base.h.
#define EINVAL 22
// BPF_F_IPV6 (Linux 6.16), which some distributions' headers do not have yet.
#define WEIR_F_IPV6 (1ull << 7)

// Hop-by-hop, routing, encapsulation, authentication, destination options, mobility (RFC 8200 section 4, RFC 7045).
static __always_inline bool is_extension(__u8 next)
{
	return next == 0 || next == 43 || next == 50 || next == 51 || next == 60 || next == 135;
}

// Whether the kernel can change an IPv6 address without spoiling the sum that a card has taken of the packet (BPF_F_IPV6). The packet
// is made up; it begins with an Ethernet header.
static __always_inline bool can_rewrite_ipv6(struct __sk_buff *skb)
{
	return bpf_l4_csum_replace(skb, ETH_HLEN, 0, 1, BPF_F_PSEUDO_HDR | WEIR_F_IPV6) != -EINVAL;
}

// As `length4` (net/ipv6/ip6_input.c, ip6_rcv_core). Super-packets of more than 64 KiB have an extension header.
static __always_inline __u32 length6(__u32 segment, const struct ipv6hdr *ip, __u32 room)
{
	__u32 length = bpf_ntohs(ip->payload_len) + sizeof(*ip);

	return !segment || length == room ? length : room + 1;
}
