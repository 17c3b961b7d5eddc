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

// By core: its length is set before the programs are loaded. Not a map by core, because that would have to be looked up.
struct weir_counters counters[1] SEC(".bss.counts");

// The counters of this core.
static __always_inline struct weir_counters *own_counters(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	// It never is; but the verifier of Linux before 6.9 cannot know.
	if (UNLIKELY(cpu >= config.cpus))
		cpu = 0;
	return &FIRST_OF(counters)[cpu];
}

static __always_inline void add(struct weir_count *count, __u32 bytes)
{
	count->packets++;
	count->bytes += bytes;
}

// Which counter a packet of a class has, of one direction; modulo WEIR_ACTIONS it is what is done with it.
static __always_inline __u32 count_of(__u32 class_number)
{
	return config.policies[class_number & 0xff].count % (WEIR_COUNTS / 2);
}

static __always_inline struct weir_count *counter(struct weir_counters *mine, __u32 count, bool out)
{
	return &mine->classes[out * (WEIR_COUNTS / 2) + count];
}

// Neighbour discovery (RFC 4861, which demands the hop limit: no router lets it through), types 133 to 137.
static __always_inline bool is_neighbour_discovery(struct ipv6hdr *ip, void *end)
{
	__u8 *type = (void *)(ip + 1);

	return ip->nexthdr == NEXT_ICMPV6 && ip->hop_limit == 255 && (void *)(type + 1) <= end && *type >= 133 &&
	       *type <= 137;
}

// An answer of a DHCP server to its client (RFC 2131): UDP from 67 to 68. Its address may be any. The ports first, for hardly
// any packet has those.
static __always_inline bool is_dhcp_answer(struct iphdr *ip, void *end)
{
	__be32 *ports = (void *)(ip + 1);

	return (void *)(ports + 1) <= end && *ports == bpf_htonl(67 << 16 | 68) && ip->protocol == IPPROTO_UDP &&
	       ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x1fff));
}

// The known properties of a packet.
struct looked {
	__u32 class_number;
	__u32 reason;
};

// `net` is where the network header begins. The far end's address is the source of what comes in, the destination of what
// goes out.
static __always_inline void look(struct looked *l, __u16 protocol, void *net, void *end, bool out)
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
			l->class_number = class4(bpf_ntohl(address));
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
			l->class_number = class6(bpf_be64_to_cpu(halves[0]), bpf_be64_to_cpu(halves[1]));
	} else {
		l->reason = WEIR_NOT_IP;
	}
}

// The way out of the packets that were looked at one by one: what is done with it, counted.
static __always_inline __u32 leave(const struct looked *l, __u32 bytes, bool out)
{
	struct weir_counters *mine = own_counters();

	if (l->reason == WEIR_LOOKED_UP) {
		__u32 count = count_of(l->class_number);

		add(counter(mine, count, out), bytes);
		return count % WEIR_ACTIONS;
	}
	if (LIKELY(l->reason < WEIR_REASONS))
		add(&mine->reasons[out * WEIR_REASONS + l->reason], bytes);
	return WEIR_ALLOW;
}

// If it is IPv4: whether all is at hand that says to which class it belongs. Nearly every packet is IPv4 and of a class that is let
// through, and goes straight through the hooks. All others go to functions of their own, so that it does not pay for them: there they
// are looked up once more, and it is seen whether the link itself needs what would be refused.
static __always_inline bool has_class(void *data, void *end, bool out)
{
	struct iphdr *ip = data + ETH_HLEN;

	return (void *)(ip + 1) <= end && (out ? ip->daddr : ip->saddr);
}

static __always_inline __u32 count4(void *data, bool out)
{
	struct iphdr *ip = data + ETH_HLEN;

	return count_of(class4(bpf_ntohl(out ? ip->daddr : ip->saddr)));
}

// The part of a packet that is read: up to the ports of IPv4, up to the type of an ICMPv6 message. The smallest frame of Ethernet has
// it all.
static __always_inline __u32 headers(__u16 protocol)
{
	return ETH_HLEN + (protocol == bpf_htons(ETH_P_IPV6) ? sizeof(struct ipv6hdr) + 1 : sizeof(struct iphdr) + 4);
}

static __noinline int other_at_tc(struct __sk_buff *skb, bool out)
{
	struct looked l = { .reason = WEIR_LOOKED_UP };
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 action;

	// The headers of a packet from a card may not be in its linear part yet.
	if (data + headers(skb->protocol) > end) {
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
		look(&l, skb->protocol, data + ETH_HLEN, end, out);
	action = leave(&l, skb->len, out);
	return action == WEIR_ALLOW ? TC_ACT_UNSPEC : special_at_tc(skb, l.class_number, action, out);
}

static __always_inline int at_tc(struct __sk_buff *skb, bool out)
{
#if ESTABLISHED_FIRST
	return other_at_tc(skb, out);
#else
	// First, while nothing has to be kept over a call yet.
	struct weir_counters *mine = own_counters();
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 count;

	// The way of nearly all packets is the one on which nothing is jumped over.
	if (LIKELY(skb->protocol == bpf_htons(ETH_P_IP)) && LIKELY(has_class(data, end, out))) {
		count = count4(data, out);
		if (LIKELY(count % WEIR_ACTIONS == WEIR_ALLOW)) {
			add(counter(mine, count, out), skb->len);
			// TCX_NEXT: the programs attached behind us run too.
			return TC_ACT_UNSPEC;
		}
	}
	return other_at_tc(skb, out);
#endif
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
static __noinline int other_at_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *net;
	struct looked l = { .reason = WEIR_TOO_SHORT };
	__u16 protocol;
	__u32 action;

	if (data + sizeof(struct ethhdr) <= end) {
		l.reason = WEIR_LOOKED_UP;
		net = behind_tags(data, end, &protocol);
		look(&l, protocol, net, end, false);
	}
	action = leave(&l, end - data, false);
	return action == WEIR_ALLOW ? XDP_PASS : special_at_xdp(ctx, l.class_number, action);
}

SEC("xdp")
int allow_xdp(struct xdp_md *ctx)
{
	struct weir_counters *mine = own_counters();
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 count, bytes;

	// Not by struct ethhdr, which is packed, so that its two octets would be read one by one.
	if (LIKELY(has_class(data, end, false)) && LIKELY(*(__be16 *)(data + 12) == bpf_htons(ETH_P_IP))) {
		bytes = end - data;
		// Here and not where they are used, until when what they are made of would have to be kept.
		asm volatile("" : "+r"(bytes), "+r"(mine));
		count = count4(data, false);
		if (LIKELY(count % WEIR_ACTIONS == WEIR_ALLOW)) {
			add(counter(mine, count, false), bytes);
			return XDP_PASS;
		}
	}
	return other_at_xdp(ctx);
}
#endif
