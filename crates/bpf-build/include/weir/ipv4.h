// Helpers of programs that rewrite IPv4 packets.
#pragma once

#include "sum.h"

// Whether the header's checksum is right: the kernel drops the packet otherwise, and an update would keep the error.
static __always_inline bool is_sound4(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;
	__u32 sum = parts((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);

	// Folded, each is 0xffff. No greater sum of five words is.
	return sum == 0xffff || sum == 0x1fffe;
}

// Length from the IP header on, or more than `room`, the bytes that are there, where only the kernel knows what becomes of the packet:
// it cuts super-packets to their length field as well (net/ipv4/ip_input.c, ip_rcv_core). Super-packets of more than 64 KiB of TCP have
// 0 there. `segment`: payload of each segment of a super-packet, else 0.
static __always_inline __u32 length4(__u32 segment, const struct iphdr *ip, __u32 room)
{
	__u32 length = bpf_ntohs(ip->tot_len);

	if (!segment || length == room)
		return length;
	return !length && ip->protocol == IPPROTO_TCP ? room : room + 1;
}
