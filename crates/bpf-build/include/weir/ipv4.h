// Helpers of programs that rewrite IPv4 packets.
#pragma once

#include "sum.h"

// Whether the header's checksum is right: the kernel drops the packet otherwise, and an update would keep the error.
static __always_inline bool is_sound4(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;

	return folded(plus(plus(plus(plus(words[0], words[1]), words[2]), words[3]), words[4])) == 0xffff;
}
