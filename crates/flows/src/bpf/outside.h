// Directions of flows that are known to be outside of the sample: their packets need neither the table nor conntrack.
#pragma once

#define OUTSIDE_BITS 16

// One mark at each place; a later one takes the place of an earlier. A mark is of a time: NAT gives the ends of one flow to another,
// half a minute after its last packet at the earliest (nf_conntrack_udp_timeout).
static __u64 outside[1 << OUTSIDE_BITS];

// Offset of the flags behind the ports of TCP, bytes.
#define FLAGS_BEHIND_PORTS 9

// A connection that begins may be another one with the same ends.
static __always_inline bool may_begin(__u8 protocol, void *behind_ports, void *end)
{
	__u8 *flags = behind_ports + FLAGS_BEHIND_PORTS;

	return protocol != IPPROTO_UDP && (protocol != IPPROTO_TCP || (void *)(flags + 1) > end || *flags & SYN);
}

// Stands for one direction, one sample and one period; 0 if all flows are in the sample, and for a packet that is looked at in any
// case. The bytes are read where they lie, in words: this is all that most packets of a busy gateway cost.
static __always_inline __u64 mark_of(struct __sk_buff *skb)
{
	void *network = (void *)(long)skb->data + sizeof(struct ethhdr), *end = (void *)(long)skb->data_end;
	__u64 mark = sample.seed;

	if (!mark || skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = network;
		__be32 *ports = (void *)(ip + 1);

		if ((void *)(ports + 1) > end || ip->ihl != 5 || ip->frag_off & bpf_htons(IPV4_FRAGMENT))
			return 0;
		if (may_begin(ip->protocol, ports + 1, end))
			return 0;
		mark = mixed(mark, (__u64)ip->saddr << 32 | ip->daddr);
		return mixed(mark, (__u64)ip->protocol << 32 | *ports);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = network;
		__be32 *ports = (void *)(ip + 1);
		const __be32 *source, *destination;

		if ((void *)(ports + 1) > end || may_begin(ip->nexthdr, ports + 1, end))
			return 0;
		source = ip->saddr.in6_u.u6_addr32;
		destination = ip->daddr.in6_u.u6_addr32;
		mark = mixed(mark, (__u64)source[0] << 32 | source[1]);
		mark = mixed(mark, (__u64)source[2] << 32 | source[3]);
		mark = mixed(mark, (__u64)destination[0] << 32 | destination[1]);
		mark = mixed(mark, (__u64)destination[2] << 32 | destination[3]);
		return mixed(mark, (__u64)ip->nexthdr << 32 | *ports);
	}
	return 0;
}

static __always_inline __u64 *place_of(__u64 mark)
{
	return &outside[mark >> (64 - OUTSIDE_BITS)];
}

static __always_inline bool is_outside(__u64 mark)
{
	return mark && *place_of(mark) == mark;
}

static __always_inline void set_outside(__u64 mark)
{
	if (mark)
		*place_of(mark) = mark;
}
