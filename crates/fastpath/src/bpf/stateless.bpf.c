// SPDX-License-Identifier: GPL-2.0 OR MIT
// Static translation of a prefix: the address inside gets the prefix of the outside and the reverse, with no memory of connections.
// Unusual packets take the kernel's way, where the host's rules translate them.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "translation.h"
#include "translation.check.h"

const volatile struct weir_translation config;

// By direction (0 in, 1 out) and step.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * WEIR_STEPS);
	__type(key, __u32);
	__type(value, struct weir_translated);
} counts SEC(".maps");

#include "weir/ends.h"
#include "weir/icmp.h"
#include "weir/ipv4.h"
#include "weir/ipv6.h"
#include "weir/pull.h"
#include "weir/rewrite.h"
#include "image.h"
#include "across.h"
#include "errors.h"

char _license[] SEC("license") = "Dual MIT/GPL";

static __always_inline enum weir_step translate4(struct packet *p, void *net, void *end)
{
	__u32 length, room = p->bytes - ETH_HLEN, at = ETH_HLEN + sizeof(struct iphdr);
	__u8 type;
	bool is_first;
	struct iphdr *ip = net, saved;
	enum weir_step step;
	__be32 mine, image;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return WEIR_MALFORMED;
	if (ip->ihl != 5)
		return WEIR_OPTIONS;
	mine = p->out ? ip->saddr : ip->daddr;
	step = image4(p, mine, &image);
	if (step != WEIR_TRANSLATED)
		return step;
	length = length4(p->skb->gso_size, ip, room);
	if (!is_sound4(ip) || length > room || length < sizeof(*ip))
		return WEIR_MALFORMED;
	if (is_no_unicast4(ip->saddr) || is_no_unicast4(ip->daddr) || (!p->out && is_inside4(ip->saddr)))
		return WEIR_FALSE_ADDRESS;
	if (ip->protocol == PROTOCOL_DCCP || ip->protocol == PROTOCOL_AH || ip->protocol == PROTOCOL_UDPLITE)
		return WEIR_OTHER_PROTOCOL;
	if (ip->ttl <= 1)
		return WEIR_LAST_HOP;
	saved = *ip;
	is_first = !(saved.frag_off & bpf_htons(0x1fff));
	length += ETH_HLEN;
	if (saved.protocol == IPPROTO_ICMP && is_first) {
		if (at + 1 > length || bpf_skb_load_bytes(p->skb, at, &type, 1))
			return WEIR_MALFORMED;
		if (quotes4(type))
			return error4(p, &saved, length, image);
	}
	if (is_first && has_address_sum(saved.protocol) && at + head_of(saved.protocol) > length)
		return WEIR_MALFORMED;
	step = across4(p, &saved, image);
	if (step != WEIR_TRANSLATED)
		return step;
	if (is_first && has_address_sum(saved.protocol) &&
	    bpf_l4_csum_replace(p->skb, at + checksum_at(saved.protocol), mine, image,
				BPF_F_PSEUDO_HDR | flags_of(saved.protocol) | 4))
		return WEIR_FAILED;
	return write_ip4(p, &saved, image) ? WEIR_TRANSLATED : WEIR_FAILED;
}

// The transport header behind an IPv6 header and a fragment's. `first` says whether it is there.
static __always_inline enum weir_step upper6(struct packet *p, __u8 *next, __u32 *at, bool *is_first, bool *is_part)
{
	struct fragment6 fragment;

	*is_first = true;
	*is_part = *next == NEXT_FRAGMENT;
	if (*is_part) {
		if (bpf_skb_load_bytes(p->skb, *at, &fragment, sizeof(fragment)))
			return WEIR_MALFORMED;
		*next = fragment.next;
		*at += sizeof(fragment);
		*is_first = !(fragment.offset & bpf_htons(0xfff8));
	}
	return *next == NEXT_FRAGMENT || is_extension(*next) ? WEIR_OPTIONS : WEIR_TRANSLATED;
}

static __always_inline enum weir_step translate6(struct packet *p, void *net, void *end)
{
	__u32 length, room = p->bytes - ETH_HLEN, at = ETH_HLEN + sizeof(struct ipv6hdr), difference;
	struct ipv6hdr *ip = net, saved;
	__be32 mine[4], image[4];
	bool is_first, is_part;
	enum weir_step step;
	__u8 next, type;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return WEIR_MALFORMED;
	copy(mine, p->out ? (void *)&ip->saddr : (void *)&ip->daddr, 4);
	step = image6(p, mine, image);
	if (step != WEIR_TRANSLATED)
		return step;
	length = length6(p->skb->gso_size, ip, room);
	if (length > room)
		return WEIR_MALFORMED;
	if (is_no_unicast6((void *)&ip->saddr) || is_no_unicast6((void *)&ip->daddr) ||
	    (!p->out && is_inside6((void *)&ip->saddr)))
		return WEIR_FALSE_ADDRESS;
	if (ip->hop_limit <= 1)
		return WEIR_LAST_HOP;
	saved = *ip;
	next = saved.nexthdr;
	length += ETH_HLEN;
	step = upper6(p, &next, &at, &is_first, &is_part);
	if (step != WEIR_TRANSLATED)
		return step;
	if (next == PROTOCOL_DCCP || next == PROTOCOL_UDPLITE)
		return WEIR_OTHER_PROTOCOL;
	if (is_first && has_address_sum6(next) && at + head_of(next) > length)
		return WEIR_MALFORMED;
	if (is_first && next == NEXT_ICMPV6) {
		if (bpf_skb_load_bytes(p->skb, at, &type, 1))
			return WEIR_MALFORMED;
		if (type >= 133 && type <= 137)
			return WEIR_OTHER_PROTOCOL;
		if (quotes6(type))
			return is_part ? WEIR_FRAGMENT : error6(p, &saved, length, mine, image);
	}
	step = across6(p, &saved, image);
	if (step != WEIR_TRANSLATED)
		return step;
	difference = change_words6(mine, image);
	if (!config.neutral && is_first && has_address_sum6(next) &&
	    bpf_l4_csum_replace(p->skb, at + checksum_at6(next), 0, difference,
				BPF_F_PSEUDO_HDR | WEIR_F_IPV6 | flags_of(next)))
		return WEIR_FAILED;
	return write_ip6(p, &saved, image) ? WEIR_TRANSLATED : WEIR_FAILED;
}

static __always_inline enum weir_step translate(struct packet *p)
{
	__u32 wanted = ETH_HLEN + (config.ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	struct __sk_buff *skb = p->skb;
	void *data, *end;

	if (skb->protocol != (config.ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP)))
		return WEIR_NOT_IP;
	if (skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return WEIR_NOT_OURS;
	pull(skb, wanted, &data, &end);
	return config.ipv6 ? translate6(p, data + ETH_HLEN, end) : translate4(p, data + ETH_HLEN, end);
}

// The single way out: the packet is counted, and goes where its step says.
static __always_inline int leave(struct packet *p, enum weir_step step)
{
	__u32 at = (p->out ? WEIR_STEPS : 0) + step;
	struct weir_translated *mine = bpf_map_lookup_elem(&counts, &at);

	if (mine) {
		mine->packets++;
		mine->bytes += p->bytes;
	}
	if (step == WEIR_FAILED)
		return TC_ACT_SHOT;
	// TCX_NEXT: the programs attached behind us run too, and then the kernel.
	if (step != WEIR_TRANSLATED && step != WEIR_TRANSLATED_ERROR)
		return TC_ACT_UNSPEC;
	return bpf_redirect_neigh(goes_by(p), &p->next, sizeof(p->next), 0);
}

SEC("tc")
int stateless_in(struct __sk_buff *skb)
{
	struct packet p = { .skb = skb, .out = false, .bytes = skb->len };

	return leave(&p, translate(&p));
}

SEC("tc")
int stateless_out(struct __sk_buff *skb)
{
	struct packet p = { .skb = skb, .out = true, .bytes = skb->len };

	return leave(&p, translate(&p));
}

// Run once on a made-up packet. 0: this kernel can translate IPv6.
SEC("tc")
int knows_ipv6(struct __sk_buff *skb)
{
	return !can_rewrite_ipv6(skb);
}
