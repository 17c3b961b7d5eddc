// The address on the other side, and addresses that have none.
#pragma once

#include "weir/sum.h"

#define PROTOCOL_DCCP 33
#define PROTOCOL_AH 51
#define PROTOCOL_UDPLITE 136

// Part of what IPv6 puts before a fragment (RFC 8200 section 4.5).
struct fragment6 {
	__u8 next;
	__u8 zero;
	__be16 offset;
	__be32 number;
};

static __always_inline bool is_inside4(__be32 address)
{
	return (address & config.mask[0]) == config.inside[0];
}

static __always_inline bool is_inside6(const __be32 *address)
{
	__u32 difference = 0;

#pragma unroll
	for (int at = 0; at < 4; at++)
		difference |= (address[at] & config.mask[at]) ^ config.inside[at];
	return !difference;
}

// This network, loopback, multicast and what is reserved (RFC 6890): the kernel judges them.
static __always_inline bool is_no_unicast4(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return !first || first == 127 || first >= 224;
}

// Multicast, of a single link, unspecified and loopback (RFC 4291 section 2.4).
static __always_inline bool is_no_unicast6(const __be32 *address)
{
	__be32 first = address[0];

	return (first & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000) ||
	       (first & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (!(first | address[1] | address[2]) && bpf_ntohl(address[3]) <= 1);
}

static __always_inline enum weir_step image4(const struct packet *p, __be32 address, __be32 *image)
{
	__be32 inside = config.inside[0], outside = config.outside[0], mask = config.mask[0];

	if ((address & mask) != (p->out ? inside : outside))
		return WEIR_NOT_MAPPED;
	*image = (address & ~mask) | (p->out ? outside : inside);
	return WEIR_TRANSLATED;
}

// RFC 6296 sections 3.1 to 3.5: a part of the address takes up the difference of the prefixes.
static __always_inline enum weir_step adjust6(const struct packet *p, __be32 *image)
{
	__u16 adjustment = p->out ? config.adjustment : ~config.adjustment, *parts = (void *)image, part;

	if (config.part == 3) {
		if (parts[3] == 0xffff)
			return WEIR_NO_IMAGE;
		part = folded((__u32)parts[3] + adjustment);
		parts[3] = part == 0xffff ? 0 : part;
		return WEIR_TRANSLATED;
	}
	if (!(image[2] | image[3]))
		return WEIR_NO_IMAGE;
#pragma unroll
	for (int at = 4; at < 8; at++) {
		if (parts[at] != 0xffff) {
			part = folded((__u32)parts[at] + adjustment);
			parts[at] = part == 0xffff ? 0 : part;
			return WEIR_TRANSLATED;
		}
	}
	return WEIR_NO_IMAGE;
}

static __always_inline enum weir_step image6(const struct packet *p, const __be32 *address, __be32 *image)
{
	__u32 difference = 0;

#pragma unroll
	for (int at = 0; at < 4; at++) {
		// Both are read: an address that depends on the direction is none that the verifier can bound.
		__be32 inside = config.inside[at], outside = config.outside[at], mask = config.mask[at];

		difference |= (address[at] & mask) ^ (p->out ? inside : outside);
		image[at] = (address[at] & ~mask) | (p->out ? outside : inside);
	}
	if (difference)
		return WEIR_NOT_MAPPED;
	return config.neutral ? adjust6(p, image) : WEIR_TRANSLATED;
}

static __always_inline __u32 change_words6(const __be32 *old, const __be32 *new)
{
	return change(change(change(change(0, old[0], new[0]), old[1], new[1]), old[2], new[2]), old[3], new[3]);
}

// Protocols with a checksum over the addresses.
static __always_inline bool has_address_sum(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline bool has_address_sum6(__u8 next)
{
	return has_address_sum(next) || next == NEXT_ICMPV6;
}

static __always_inline __u32 checksum_at6(__u8 next)
{
	return next == NEXT_ICMPV6 ? 2 : checksum_at(next);
}

// Bytes that such a header has at least, or up to its checksum.
static __always_inline __u32 head_of(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : protocol == IPPROTO_UDP ? sizeof(struct udphdr) : 4;
}
