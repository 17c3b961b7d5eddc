// ICMP errors that are translated with what they quote: a packet as it was on the other side.
#pragma once

#include "rewrite.h"

#define NEXT_ICMPV6 58
// Message header: type, code, checksum, and four bytes that the types use in their own way.
#define ICMP_LENGTH 8
#define ICMP_CHECKSUM 2

// Kinds of RFC 792 and RFC 4443 that quote a packet: unreachable, too big, time exceeded, parameter problem.
static __always_inline bool quotes4(__u8 type)
{
	return type == 3 || type == 11 || type == 12;
}

static __always_inline bool quotes6(__u8 type)
{
	return type >= 1 && type <= 4;
}

// Corrects the quoted checksum at `at`, if the message, which ends at `end`, has it, and adds to the sum of the message what that changes.
static __always_inline bool correct(struct packet *p, __u32 at, __u32 end, __u8 protocol, __u32 difference, __u32 *sum)
{
	__u16 check, corrected;

	if (at + sizeof(check) > end)
		return true;
	if (bpf_skb_load_bytes(p->skb, at, &check, sizeof(check)))
		return false;
	if (!check && protocol == IPPROTO_UDP)
		return true;
	corrected = updated(check, difference);
	if (!corrected && protocol == IPPROTO_UDP)
		corrected = 0xffff;
	*sum = change16(*sum, check, corrected);
	return !bpf_skb_store_bytes(p->skb, at, &corrected, sizeof(corrected), 0);
}
