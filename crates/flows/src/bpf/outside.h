// Directions of flows that are known to be outside of the sample: their packets need neither the table nor conntrack.
#pragma once

#define OUTSIDE_BITS 16
#define ALL_FLOWS 0xffffffff

// One mark at each place; a later one takes the place of an earlier. A mark is of a time: NAT gives the ends of one flow to another,
// half a minute after its last packet at the earliest (nf_conntrack_udp_timeout).
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << OUTSIDE_BITS);
	__type(key, __u32);
	__type(value, __u64);
} outside SEC(".maps");

struct frame4 {
	struct ethhdr link;
	struct iphdr ip;
	__be32 ports;
} __attribute__((packed));

struct frame6 {
	struct ethhdr link;
	struct ipv6hdr ip;
	__be32 ports;
} __attribute__((packed));

// Offset of the flags behind the ports of TCP, bytes.
#define FLAGS_BEHIND_PORTS 9

// A connection that begins may be another one with the same ends.
static __always_inline bool may_begin(__u8 protocol, void *behind_ports, void *end)
{
	__u8 *flags = behind_ports + FLAGS_BEHIND_PORTS;

	return protocol != IPPROTO_UDP && (protocol != IPPROTO_TCP || (void *)(flags + 1) > end || *flags & SYN);
}

// Stands for one direction, one sample and one period; 0 if all flows are in the sample, and for a packet that is looked at in any
// case. The bytes are read where they lie: this is all that most packets of a busy gateway cost.
static __always_inline __u64 mark_of(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 at = 0;
	struct weir_sample *s = bpf_map_lookup_elem(&sample, &at);
	__u64 mark;

	if (!s || s->share == ALL_FLOWS || !s->is_ethernet || skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return 0;
	mark = mixed(config.key + s->share, s->period);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct frame4 *f = data;

		if ((void *)(f + 1) > end || f->ip.ihl != 5 || f->ip.frag_off & bpf_htons(IPV4_FRAGMENT))
			return 0;
		if (may_begin(f->ip.protocol, f + 1, end))
			return 0;
		mark = mixed(mark, (__u64)f->ip.saddr << 32 | f->ip.daddr);
		return mixed(mark, (__u64)f->ip.protocol << 32 | f->ports);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct frame6 *f = data;
		const __be32 *source, *destination;

		if ((void *)(f + 1) > end || may_begin(f->ip.nexthdr, f + 1, end))
			return 0;
		source = f->ip.saddr.in6_u.u6_addr32;
		destination = f->ip.daddr.in6_u.u6_addr32;
		mark = mixed(mark, (__u64)source[0] << 32 | source[1]);
		mark = mixed(mark, (__u64)source[2] << 32 | source[3]);
		mark = mixed(mark, (__u64)destination[0] << 32 | destination[1]);
		mark = mixed(mark, (__u64)destination[2] << 32 | destination[3]);
		return mixed(mark, (__u64)f->ip.nexthdr << 32 | f->ports);
	}
	return 0;
}

static __always_inline __u64 *place_of(__u64 mark)
{
	__u32 at = mark >> (64 - OUTSIDE_BITS);

	return bpf_map_lookup_elem(&outside, &at);
}

static __always_inline bool is_outside(__u64 mark)
{
	__u64 *place = mark ? place_of(mark) : 0;

	return place && *place == mark;
}

static __always_inline void set_outside(__u64 mark)
{
	__u64 *place = mark ? place_of(mark) : 0;

	if (place)
		*place = mark;
}
