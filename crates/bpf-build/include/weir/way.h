// The way of a packet out of another interface, which must be the kernel's own. The including program has the interfaces, `comes_by` and
// `goes_by`, `note_asked` for each question to the kernel, and the steps that are returned: WEIR_TRANSLATED, WEIR_TOO_BIG,
// WEIR_NO_FORWARDING and WEIR_OTHER_WAY.
#pragma once

#include "ends.h"
#include "rewrite.h"
#include "routes.h"

// From headers that bring the C library's with them: sys/socket.h.
#define AF_INET 2
#define AF_INET6 10
// From kernels that are newer than some distributions' headers: BPF_FIB_LOOKUP_SKIP_NEIGH (6.3).
#define WEIR_FIB_SKIP_NEIGH (1u << 2)

struct ports {
	__be16 source;
	__be16 destination;
};

// The kernel's answer. The neighbour is left to bpf_redirect_neigh, which asks for one that is not known, and confirms those that are.
static __always_inline int ask_way(struct packet *p, struct bpf_fib_lookup *fib)
{
	long result;

	note_asked(p);
	fib->ifindex = comes_by(p);
	result = bpf_fib_lookup(p->skb, fib, sizeof(*fib), WEIR_FIB_SKIP_NEIGH);
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return WEIR_TOO_BIG;
	if (result == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return WEIR_NO_FORWARDING;
	if (result != BPF_FIB_LKUP_RET_SUCCESS || fib->ifindex != goes_by(p))
		return WEIR_OTHER_WAY;
	// The next hop, of the version that the route says.
	p->next.nh_family = fib->family;
	__builtin_memcpy(p->next.ipv6_nh, fib->ipv6_dst, sizeof(fib->ipv6_dst));
	return WEIR_TRANSLATED;
}

// The way that is remembered, or else the kernel's. `net_length` is that of the IP header, `flow` the traffic class and flow label of IPv6.
static __always_inline int way_out(struct packet *p, const struct route_key *key, __u8 family, __u32 net_length, __be32 flow,
				   struct ports ports)
{
	__u32 length = longest_part(p->skb, net_length, key->protocol);
	struct route *route = route_slot(key);
	struct bpf_fib_lookup fib = {};
	int step;

	if (route && is_known(route, key, length)) {
		take_way(&p->next, route);
		return WEIR_TRANSLATED;
	}
	fib.family = family;
	fib.l4_protocol = key->protocol;
	fib.sport = ports.source;
	fib.dport = ports.destination;
	fib.tot_len = capped(length);
	if (family == AF_INET) {
		fib.tos = key->tos;
		fib.ipv4_src = key->source[3];
		fib.ipv4_dst = key->destination[3];
	} else {
		fib.flowinfo = flow;
		__builtin_memcpy(fib.ipv6_src, key->source, 16);
		__builtin_memcpy(fib.ipv6_dst, key->destination, 16);
	}
	step = ask_way(p, &fib);
	if (route && step == WEIR_TRANSLATED)
		remember(route, key, &p->next, fib.mtu_result);
	return step;
}

// `apart` is the key's port, `ports` are 0 of a packet that has none.
static __always_inline int way_out4(struct packet *p, const struct iphdr *ip, __be32 destination, __be16 apart,
				    struct ports ports)
{
	struct route_key key = {
		.source = { 0, 0, bpf_htonl(0xffff), ip->saddr },
		.destination = { 0, 0, bpf_htonl(0xffff), destination },
		.port = apart,
		.protocol = ip->protocol,
		.tos = ip->tos,
	};

	return way_out(p, &key, AF_INET, sizeof(*ip), 0, ports);
}

static __always_inline int way_out6(struct packet *p, const struct ipv6hdr *ip, const __be32 *destination, __be16 apart,
				    struct ports ports)
{
	__be32 flow = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	struct route_key key = {
		.port = apart,
		.protocol = ip->nexthdr,
		.tos = bpf_ntohl(flow) >> 20,
	};

	copy(key.source, (void *)&ip->saddr, 4);
	copy(key.destination, destination, 4);
	return way_out(p, &key, AF_INET6, sizeof(*ip), flow, ports);
}
