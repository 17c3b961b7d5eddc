// SPDX-License-Identifier: GPL-2.0 OR MIT
// A published port as a fixed mapping: what comes to it gets the container's address and is put into the container at once, what
// the container answers gets the published address and is sent out at once. Nothing is remembered between packets. Whatever is
// not plain is left to the kernel's own way, where the rules of the container engine say the same.
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
#include "shared.h"
#include "shared.check.h"

#include "weir/icmp.h"
#include "weir/ipv4.h"
#include "weir/ipv6.h"
#include "weir/pull.h"
#include "weir/rewrite.h"
#include "tables.h"
#include "way.h"
#include "quoted.h"

char _license[] SEC("license") = "Dual MIT/GPL";

// Sources that no host outside has: of the container's network, and of IPv6 those of a single link (RFC 4291 section 2.5.6). The host's
// routing takes them for false, and the container might take them for its host or a neighbour.
static __always_inline bool false_source4(const struct iphdr *ip)
{
	return (ip->saddr & config.mask4) == config.inside4;
}

static __always_inline bool false_source6(const struct ipv6hdr *ip)
{
	const __be32 *source = (const void *)&ip->saddr;
	__u32 difference = 0;

#pragma unroll
	for (int at = 0; at < 4; at++)
		difference |= (source[at] & config.mask6[at]) ^ config.inside6[at];
	return !difference || (source[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

// Whether a segment opens a connection: SYN without ACK (RFC 9293 section 3.5). `at` is where it begins in the packet, `there` where it
// lies, if it lies before `end`.
static __always_inline bool opens(struct packet *p, __u32 at, void *there, void *end)
{
	__u8 flags, *direct = there + 13;

	if ((void *)(direct + 1) <= end)
		flags = *direct;
	else if (bpf_skb_load_bytes(p->skb, at + 13, &flags, 1))
		return true;
	return (flags & 0x12) == 0x02;
}

// `net` is where the IP header begins; it and the ports behind it lie before `end`.
static __always_inline enum weir_reason translate4(struct packet *p, void *net, void *end)
{
	__u32 transport = ETH_HLEN + sizeof(struct iphdr), room = p->bytes - ETH_HLEN, length;
	struct weir_end4 key = {};
	struct weir_other4 *other;
	struct iphdr *ip = net, saved;
	struct ports *ports = (void *)(ip + 1);
	enum weir_reason reason;

	if ((void *)(ports + 1) > end)
		return WEIR_MALFORMED;
	if (ip->version != 4 || ip->ihl < 5)
		return WEIR_MALFORMED;
	if (ip->ihl != 5)
		return WEIR_OPTIONS;
	// More fragments, or an offset.
	if (ip->frag_off & bpf_htons(0x3fff))
		return WEIR_FRAGMENT;
	if (ip->protocol == IPPROTO_ICMP)
		return error4(p);
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return WEIR_NOT_MAPPED;
	key.address = p->out ? ip->saddr : ip->daddr;
	key.port = p->out ? ports->source : ports->destination;
	key.protocol = ip->protocol;
	other = p->out ? bpf_map_lookup_elem(&out4, &key) : bpf_map_lookup_elem(&in4, &key);
	if (!other)
		return WEIR_NOT_MAPPED;
	if (other->what != WEIR_TRANSLATE)
		return WEIR_DIRECT;
	if (!p->out && false_source4(ip))
		return WEIR_FALSE_SOURCE;
	length = length4(p->skb->gso_size, ip, room);
	if (length > room || length < sizeof(*ip) + sizeof(struct udphdr))
		return WEIR_MALFORMED;
	if (p->out && ip->protocol == IPPROTO_TCP && opens(p, transport, ports, end))
		return WEIR_OPENS;
	if (ip->ttl <= 1)
		return WEIR_LAST_HOP;
	reason = way4(p, ip, *ports);
	if (reason != WEIR_TRANSLATED)
		return reason;
	saved = *ip;
	if (bpf_l4_csum_replace(p->skb, transport + checksum_at(saved.protocol), key.address, other->address,
				BPF_F_PSEUDO_HDR | flags_of(saved.protocol) | 4) ||
	    !write_port(p, transport, saved.protocol, key.port, other->port) || !write_ip4(p, &saved, other->address))
		return WEIR_FAILED;
	return WEIR_TRANSLATED;
}

static __always_inline enum weir_reason translate6(struct packet *p, void *net, void *end)
{
	__u32 transport = ETH_HLEN + sizeof(struct ipv6hdr), room = p->bytes - ETH_HLEN, length;
	struct weir_end6 key = {};
	struct weir_other6 *other;
	struct ipv6hdr *ip = net, saved;
	struct ports *ports = (void *)(ip + 1);
	enum weir_reason reason;

	if ((void *)(ports + 1) > end || ip->version != 6)
		return WEIR_MALFORMED;
	if (ip->nexthdr == NEXT_FRAGMENT)
		return WEIR_FRAGMENT;
	if (is_extension(ip->nexthdr))
		return WEIR_OPTIONS;
	if (ip->nexthdr == NEXT_ICMPV6)
		return error6(p);
	if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
		return WEIR_NOT_MAPPED;
	__builtin_memcpy(key.address, p->out ? &ip->saddr : &ip->daddr, 16);
	key.port = p->out ? ports->source : ports->destination;
	key.protocol = ip->nexthdr;
	other = p->out ? bpf_map_lookup_elem(&out6, &key) : bpf_map_lookup_elem(&in6, &key);
	if (!other)
		return WEIR_NOT_MAPPED;
	if (other->what != WEIR_TRANSLATE)
		return WEIR_DIRECT;
	if (!p->out && false_source6(ip))
		return WEIR_FALSE_SOURCE;
	length = length6(p->skb->gso_size, ip, room);
	if (length > room || length < sizeof(*ip) + sizeof(struct udphdr))
		return WEIR_MALFORMED;
	if (p->out && ip->nexthdr == IPPROTO_TCP && opens(p, transport, ports, end))
		return WEIR_OPENS;
	if (ip->hop_limit <= 1)
		return WEIR_LAST_HOP;
	reason = way6(p, ip, *ports);
	if (reason != WEIR_TRANSLATED)
		return reason;
	saved = *ip;
	if (bpf_l4_csum_replace(p->skb, transport + checksum_at(saved.nexthdr), 0, other->difference,
				BPF_F_PSEUDO_HDR | WEIR_F_IPV6 | flags_of(saved.nexthdr)) ||
	    !write_port(p, transport, saved.nexthdr, key.port, other->port) || !write_ip6(p, &saved, other->address))
		return WEIR_FAILED;
	return WEIR_TRANSLATED;
}

static __always_inline enum weir_reason translate(struct packet *p)
{
	struct __sk_buff *skb = p->skb;
	__u32 wanted = ETH_HLEN + sizeof(struct ports);
	void *data, *end;

	// On a bridge's port the packet is addressed to the bridge, which is another host's address there.
	if (skb->vlan_present || skb->pkt_type == PACKET_BROADCAST || skb->pkt_type == PACKET_MULTICAST ||
	    (!p->out && skb->pkt_type != PACKET_HOST))
		return WEIR_NOT_OURS;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		wanted += sizeof(struct iphdr);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		wanted += sizeof(struct ipv6hdr);
	else
		return WEIR_NOT_IP;
	pull(skb, wanted, &data, &end);
	return skb->protocol == bpf_htons(ETH_P_IP) ? translate4(p, data + ETH_HLEN, end)
						    : translate6(p, data + ETH_HLEN, end);
}

// The single way out: the packet is counted, and goes where its reason says.
static __always_inline int leave(struct packet *p, enum weir_reason reason)
{
	count(p, (p->out ? WEIR_REASONS : 0) + reason);
	if (reason == WEIR_DIRECT || reason == WEIR_FAILED)
		return TC_ACT_SHOT;
	// TCX_NEXT: the programs attached behind us run too, and then the kernel.
	if (reason != WEIR_TRANSLATED && reason != WEIR_TRANSLATED_ERROR)
		return TC_ACT_UNSPEC;
	if (p->out)
		return bpf_redirect_neigh(config.outer, &p->next, sizeof(p->next), 0);
	return bpf_redirect_peer(config.container, 0);
}

SEC("tc")
int publish_in(struct __sk_buff *skb)
{
	struct packet p = { .skb = skb, .out = false, .bytes = skb->len };

	return leave(&p, translate(&p));
}

SEC("tc")
int publish_out(struct __sk_buff *skb)
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
