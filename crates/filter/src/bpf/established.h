// Whether a packet belongs to a connection that connection tracking knows: asked by the kernel's functions for BPF
// (net/netfilter/nf_conntrack_bpf.c, Linux 5.18), which know TCP and UDP. Only where something else in that network namespace has
// connections tracked (a rule with `ct`, or NAT): asking does not begin it.
#pragma once
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include "weir/ct.h"

// A bit of enum ip_conntrack_status (linux/netfilter/nf_conntrack_common.h): there has been an answer.
#define IPS_SEEN_REPLY 2

struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));

struct ports {
	__be16 source;
	__be16 destination;
};

// Who talks to whom, as the table of connections has it.
struct flow {
	struct bpf_sock_tuple tuple;
	__u8 protocol;
};

// A packet that goes out, and one that an error message quotes, is looked up as its answer would be: where addresses are
// translated, the table has only what comes in as it is on this link.
static __always_inline void end_points(struct flow *f, const void *source, const void *destination, __u32 length,
				       const struct ports *p, bool answer)
{
	const void *from = answer ? destination : source, *to = answer ? source : destination;

	if (length == 4) {
		__builtin_memcpy(&f->tuple.ipv4.saddr, from, 4);
		__builtin_memcpy(&f->tuple.ipv4.daddr, to, 4);
		f->tuple.ipv4.sport = answer ? p->destination : p->source;
		f->tuple.ipv4.dport = answer ? p->source : p->destination;
	} else {
		__builtin_memcpy(f->tuple.ipv6.saddr, from, 16);
		__builtin_memcpy(f->tuple.ipv6.daddr, to, 16);
		f->tuple.ipv6.sport = answer ? p->destination : p->source;
		f->tuple.ipv6.dport = answer ? p->source : p->destination;
	}
}

// The header at `at`, and the ports behind it. True for TCP and UDP in one piece; `behind` is where the next header begins.
static __always_inline bool flow_at(struct __sk_buff *skb, __u32 at, bool v6, bool answer, struct flow *f, __u32 *behind)
{
	struct ports p;

	if (v6) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return false;
		*behind = at + sizeof(ip);
		f->protocol = ip.nexthdr;
		if ((f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP) ||
		    bpf_skb_load_bytes(skb, *behind, &p, sizeof(p)))
			return false;
		end_points(f, &ip.saddr, &ip.daddr, 16, &p, answer);
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return false;
		*behind = at + ip.ihl * 4;
		f->protocol = ip.protocol;
		// Only the first fragment has ports, and the others must not fare otherwise: more fragments, or an offset.
		if (ip.frag_off & bpf_htons(0x3fff)) {
			f->protocol = 0;
			return false;
		}
		if ((f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP) ||
		    bpf_skb_load_bytes(skb, *behind, &p, sizeof(p)))
			return false;
		end_points(f, &ip.saddr, &ip.daddr, 4, &p, answer);
	}
	return true;
}

// True if there is such a connection, and the packet belongs to it as `ct state established` means it: it is an answer, or
// there has been one. For a quoted packet (`any`) it is enough that there is one.
static __always_inline bool is_known(struct __sk_buff *skb, struct flow *f, bool v6, bool out, bool any)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = f->protocol };
	__u32 size = v6 ? sizeof(f->tuple.ipv6) : sizeof(f->tuple.ipv4);
	struct nf_conn *ct = bpf_skb_ct_lookup(skb, &f->tuple, size, &opts, sizeof(opts));
	bool known;

	if (!ct)
		return false;
	known = any || opts.dir != out || (ct->status & IPS_SEEN_REPLY);
	bpf_ct_release(ct);
	return known;
}

// An error message about a packet: the kinds of RFC 792 and RFC 4443 that quote one.
static __always_inline bool quotes(bool v6, __u8 protocol, __u8 type)
{
	// Unreachable, too big, time exceeded, parameter problem; by the same names without too big.
	if (v6)
		return protocol == NEXT_ICMPV6 && type >= 1 && type <= 4;
	return protocol == IPPROTO_ICMP && (type == 3 || type == 11 || type == 12);
}

static __always_inline bool is_established(struct __sk_buff *skb, bool v6, bool out)
{
	struct flow f = {};
	__u32 behind = 0;
	__u8 octet;

	if (flow_at(skb, ETH_HLEN, v6, out, &f, &behind)) {
		// A connection that begins anew with the same ports is looked up again.
		if (f.protocol == IPPROTO_TCP && (bpf_skb_load_bytes(skb, behind + 13, &octet, 1) || (octet & 0x12) == 0x02))
			return false;
		return is_known(skb, &f, v6, out, false);
	}
	if ((f.protocol != IPPROTO_ICMP && f.protocol != NEXT_ICMPV6) || bpf_skb_load_bytes(skb, behind, &octet, 1) ||
	    !quotes(v6, f.protocol, octet))
		return false;
	// Type, code, checksum and four octets more, then the packet that it is about.
	return flow_at(skb, behind + 8, v6, !out, &f, &behind) && is_known(skb, &f, v6, out, true);
}
