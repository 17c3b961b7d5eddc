// The way of a packet, and whether it fits there.
#pragma once

// Whether it fits into the container's link, and there is one: a packet redirected to a link that is gone is thrown away, while the
// kernel knows where the container is since it was started again.
static __always_inline enum weir_reason fits_in(struct __sk_buff *skb)
{
	__u32 mtu = 0;
	long result;

	result = bpf_check_mtu(skb, config.container, &mtu, 0, BPF_MTU_CHK_SEGS);
	if (result < 0)
		return WEIR_OTHER_WAY;
	return result ? WEIR_TOO_BIG : WEIR_TRANSLATED;
}

// Which way the kernel would send it: only what goes out of the outer interface is ours. The neighbour is left to
// bpf_redirect_neigh, which asks for one that is not known, and confirms those that are.
static __always_inline enum weir_reason ask(struct packet *p, struct bpf_fib_lookup *fib)
{
	__u32 asked = WEIR_ASKED;
	struct weir_count *mine = bpf_map_lookup_elem(&counts, &asked);
	long result;

	if (mine) {
		mine->packets++;
		mine->bytes += p->bytes;
	}
	fib->ifindex = config.bridge;
	result = bpf_fib_lookup(p->skb, fib, sizeof(*fib), WEIR_FIB_SKIP_NEIGH);
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return WEIR_TOO_BIG;
	if (result == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return WEIR_NO_FORWARDING;
	if (result != BPF_FIB_LKUP_RET_SUCCESS || fib->ifindex != config.outer)
		return WEIR_OTHER_WAY;
	// The next hop, of the version that the route says.
	p->next.nh_family = fib->family;
	__builtin_memcpy(p->next.ipv6_nh, fib->ipv6_dst, sizeof(fib->ipv6_dst));
	return WEIR_TRANSLATED;
}

// The way of what comes from the container: the one that is remembered, or else the kernel's. `net_length` is that of its IP header,
// `flow` the traffic class and flow label of IPv6, `client_port` 0 of what has none.
static __always_inline enum weir_reason way_out(struct packet *p, const struct route_key *key, __u8 family,
						__u32 net_length, __be32 flow, __be16 client_port)
{
	__u32 length = longest_part(p->skb, net_length, key->protocol);
	struct route *route = route_slot(key);
	struct bpf_fib_lookup fib = {};
	enum weir_reason reason;

	if (route && is_known(route, key, length)) {
		take_way(&p->next, route);
		return WEIR_TRANSLATED;
	}
	fib.family = family;
	fib.l4_protocol = key->protocol;
	fib.sport = key->port;
	fib.dport = client_port;
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
	reason = ask(p, &fib);
	if (route && reason == WEIR_TRANSLATED)
		remember(route, key, &p->next, fib.mtu_result);
	return reason;
}

static __always_inline enum weir_reason way4(struct packet *p, const struct iphdr *ip, __be16 source, __be16 destination)
{
	struct route_key key = {
		.source = { 0, 0, bpf_htonl(0xffff), ip->saddr },
		.destination = { 0, 0, bpf_htonl(0xffff), ip->daddr },
		.port = source,
		.protocol = ip->protocol,
		.tos = ip->tos,
	};

	return p->out ? way_out(p, &key, AF_INET, sizeof(*ip), 0, destination) : fits_in(p->skb);
}

static __always_inline enum weir_reason way6(struct packet *p, const struct ipv6hdr *ip, __be16 source,
					     __be16 destination)
{
	__be32 flow = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	struct route_key key = {
		.port = source,
		.protocol = ip->nexthdr,
		.tos = bpf_ntohl(flow) >> 20,
	};

	if (!p->out)
		return fits_in(p->skb);
	__builtin_memcpy(key.source, &ip->saddr, 16);
	__builtin_memcpy(key.destination, &ip->daddr, 16);
	return way_out(p, &key, AF_INET6, sizeof(*ip), flow, destination);
}
