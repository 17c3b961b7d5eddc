// The hooks: read the address, look it up, do what its class says, count.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"
#include "shared.check.h"

// A packet that is looked up and passes goes straight on.
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#include "classify.h"
#include "refused.h"

#if ESTABLISHED_FIRST
#include "established.h"
#endif

char _license[] SEC("license") = "Dual MIT/GPL";

// By direction (0 in, 1 out), class and action.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * WEIR_CLASSES * WEIR_ACTIONS);
	__type(key, __u32);
	__type(value, struct weir_count);
} counts SEC(".maps");

// Those that were not looked up, by direction and reason. The others are in `counts`: each packet is counted once.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * WEIR_REASONS);
	__type(key, __u32);
	__type(value, struct weir_count);
} reasons SEC(".maps");

// What is known of a packet.
struct looked {
	__u32 class_number;
	__u32 reason;
	__u32 bytes;
};

static __always_inline void count(void *map, __u32 at, __u32 bytes)
{
	struct weir_count *mine = bpf_map_lookup_elem(map, &at);

	if (mine) {
		mine->packets++;
		mine->bytes += bytes;
	}
}

// The single way out: what is done with the packet, with its counters set.
static __always_inline struct weir_policy leave(struct looked *l, __u32 generation, bool out)
{
	struct weir_policy policy = { .action = WEIR_ALLOW };
	__u32 at = generation * WEIR_CLASSES + l->class_number;

	if (l->reason == WEIR_LOOKED_UP && UNLIKELY(l->class_number >= WEIR_CLASSES))
		l->reason = WEIR_NO_TABLE;
	if (UNLIKELY(l->reason != WEIR_LOOKED_UP)) {
		count(&reasons, out * WEIR_REASONS + l->reason, l->bytes);
		return policy;
	}
	if (LIKELY(at < WEIR_GENERATIONS * WEIR_CLASSES))
		policy = control.policies[at];
	if (UNLIKELY(policy.action >= WEIR_ACTIONS))
		policy.action = WEIR_ALLOW;
	count(&counts, (out * WEIR_CLASSES + l->class_number) * WEIR_ACTIONS + policy.action, l->bytes);
	return policy;
}

// Neighbour discovery (RFC 4861, which demands the hop limit: no router lets it through), types 133 to 137.
static __always_inline bool is_neighbour_discovery(struct ipv6hdr *ip, void *end)
{
	__u8 *type = (void *)(ip + 1);

	return ip->nexthdr == NEXT_ICMPV6 && ip->hop_limit == 255 && (void *)(type + 1) <= end && *type >= 133 &&
	       *type <= 137;
}

// What a DHCP server says to its client (RFC 2131): UDP from 67 to 68. Its address may be any. The ports first, for hardly
// any packet has those.
static __always_inline bool is_dhcp_answer(struct iphdr *ip, void *end)
{
	__be32 *ports = (void *)(ip + 1);

	return (void *)(ports + 1) <= end && *ports == bpf_htonl(67 << 16 | 68) && ip->protocol == IPPROTO_UDP &&
	       ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x1fff));
}

// `net` is where the network header begins. The far end's address is the source of what comes in, the destination of what
// goes out.
static __always_inline void look(struct looked *l, __u32 generation, __u16 protocol, void *net, void *end, bool out)
{
	if (LIKELY(protocol == bpf_htons(ETH_P_IP))) {
		struct iphdr *ip = net;
		__be32 address;

		if (UNLIKELY((void *)(ip + 1) > end)) {
			l->reason = WEIR_TOO_SHORT;
			return;
		}
		address = out ? ip->daddr : ip->saddr;
		if (UNLIKELY(!address || (!out && is_dhcp_answer(ip, end))))
			l->reason = WEIR_LINK_LOCAL;
		else
			l->class_number = class4(generation, bpf_ntohl(address));
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = net;
		__be64 halves[2];

		if (UNLIKELY((void *)(ip + 1) > end)) {
			l->reason = WEIR_TOO_SHORT;
			return;
		}
		__builtin_memcpy(halves, out ? &ip->daddr : &ip->saddr, 16);
		if (UNLIKELY((!halves[0] && !halves[1]) || bpf_be64_to_cpu(halves[0]) >> 54 == 0xfe80 >> 6 ||
			     is_neighbour_discovery(ip, end)))
			l->reason = WEIR_LINK_LOCAL;
		else
			l->class_number = class6(generation, bpf_be64_to_cpu(halves[0]), bpf_be64_to_cpu(halves[1]));
	} else {
		l->reason = WEIR_NOT_IP;
	}
}

static __always_inline __u32 current(void)
{
	return *(volatile __u32 *)&control.generation;
}

// What is read of a packet: up to the ports of IPv4, up to the type of an ICMPv6 message. The smallest frame of Ethernet has
// it all.
static __always_inline __u32 headers(__u16 protocol)
{
	return ETH_HLEN + (protocol == bpf_htons(ETH_P_IPV6) ? sizeof(struct ipv6hdr) + 1 : sizeof(struct iphdr) + 4);
}

static __always_inline int at_tc(struct __sk_buff *skb, bool out)
{
	struct looked l = { .bytes = skb->len, .reason = WEIR_LOOKED_UP };
	__u32 generation = current();
	struct weir_policy policy;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	// The headers of a packet from a card may not be in its linear part yet.
	if (UNLIKELY(data + headers(skb->protocol) > end)) {
		__u32 wanted = headers(skb->protocol);

		bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted);
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
#if ESTABLISHED_FIRST
	if ((skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6)) &&
	    is_established(skb, skb->protocol == bpf_htons(ETH_P_IPV6), out))
		l.reason = WEIR_ESTABLISHED;
	else
#endif
		look(&l, generation, skb->protocol, data + ETH_HLEN, end, out);
	policy = leave(&l, generation, out);
	// TCX_NEXT: whoever is attached behind us is asked too.
	if (LIKELY(policy.action == WEIR_ALLOW))
		return TC_ACT_UNSPEC;
	if (policy.action == WEIR_MARK)
		skb->mark = policy.mark;
	else
		refused_at_tc(skb, l.class_number, policy.action, out);
	return policy.action == WEIR_DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("tc")
int allow_ingress(struct __sk_buff *skb)
{
	return at_tc(skb, false);
}

SEC("tc")
int allow_egress(struct __sk_buff *skb)
{
	return at_tc(skb, true);
}

#if !ESTABLISHED_FIRST
SEC("xdp")
int allow_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct looked l = { .bytes = end - data, .reason = WEIR_LOOKED_UP };
	__u32 generation = current();
	struct weir_policy policy;
	__u16 protocol;
	void *net;

	if (data + sizeof(struct ethhdr) > end) {
		l.reason = WEIR_TOO_SHORT;
		leave(&l, generation, false);
		return XDP_PASS;
	}
	net = behind_tags(data, end, &protocol);
	look(&l, generation, protocol, net, end, false);
	policy = leave(&l, generation, false);
	if (LIKELY(policy.action == WEIR_ALLOW))
		return XDP_PASS;
	if (policy.action != WEIR_MARK)
		refused_at_xdp(ctx, l.class_number, policy.action);
	return policy.action == WEIR_DROP ? XDP_DROP : XDP_PASS;
}
#endif
