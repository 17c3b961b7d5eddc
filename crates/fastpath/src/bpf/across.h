// The way to the other interface, which must be the kernel's own for the packet as it is when the kernel routes it: with the address
// inside.
#pragma once

static __always_inline __u32 other_interface(const struct packet *p)
{
	// Both are read: an address that depends on the direction is none that the verifier can bound.
	__u32 inside = config.inside_interface, outside = config.outside_interface;

	return p->out ? outside : inside;
}

static __always_inline __u32 this_interface(const struct packet *p)
{
	__u32 inside = config.inside_interface, outside = config.outside_interface;

	return p->out ? inside : outside;
}

static __always_inline enum weir_step ask(struct packet *p, struct bpf_fib_lookup *fib)
{
	long result;

	fib->ifindex = this_interface(p);
	result = bpf_fib_lookup(p->skb, fib, sizeof(*fib), WEIR_FIB_SKIP_NEIGH);
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return WEIR_TOO_BIG;
	if (result == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return WEIR_NO_FORWARDING;
	if (result != BPF_FIB_LKUP_RET_SUCCESS || fib->ifindex != other_interface(p))
		return WEIR_OTHER_WAY;
	// The neighbour is left to bpf_redirect_neigh, which asks for one that is not known and confirms those that are.
	p->next.nh_family = fib->family;
	__builtin_memcpy(p->next.ipv6_nh, fib->ipv6_dst, sizeof(fib->ipv6_dst));
	return WEIR_TRANSLATED;
}

static __always_inline enum weir_step across(struct packet *p, const struct route_key *key, __u8 family, __u32 net_length,
					     __be32 flow)
{
	__u32 length = longest_part(p->skb, net_length, key->protocol);
	struct route *route = route_slot(key);
	struct bpf_fib_lookup fib = {};
	enum weir_step step;

	if (route && is_known(route, key, length)) {
		take_way(&p->next, route);
		return WEIR_TRANSLATED;
	}
	fib.family = family;
	fib.l4_protocol = key->protocol;
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
	step = ask(p, &fib);
	if (route && step == WEIR_TRANSLATED)
		remember(route, key, &p->next, fib.mtu_result);
	return step;
}

static __always_inline enum weir_step across4(struct packet *p, const struct iphdr *ip, __be32 image)
{
	struct route_key key = {
		.source = { 0, 0, bpf_htonl(0xffff), ip->saddr },
		.destination = { 0, 0, bpf_htonl(0xffff), p->out ? ip->daddr : image },
		.port = p->out,
		.protocol = ip->protocol,
		.tos = ip->tos,
	};

	return across(p, &key, AF_INET, sizeof(*ip), 0);
}

static __always_inline enum weir_step across6(struct packet *p, const struct ipv6hdr *ip, const __be32 *image)
{
	__be32 flow = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	struct route_key key = {
		.port = p->out,
		.protocol = ip->nexthdr,
		.tos = bpf_ntohl(flow) >> 20,
	};

	copy(key.source, (void *)&ip->saddr, 4);
	copy(key.destination, p->out ? (void *)&ip->daddr : (void *)image, 4);
	return across(p, &key, AF_INET6, sizeof(*ip), flow);
}
