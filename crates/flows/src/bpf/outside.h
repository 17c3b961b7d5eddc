// Directions of flows that are known to be outside of the sample: their packets need neither the table nor conntrack.
#pragma once

#define OUTSIDE_BITS 16
// Marks are of a time: NAT gives the ends of one flow to another, half a minute after its last packet at the earliest
// (nf_conntrack_udp_timeout). 2^35 ns are 34 s.
#define PERIOD_BITS 35
#define ALL_FLOWS 0xffffffff

// The packet in work. The verifier knows no values of maps: it then need not follow each way that led here.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_work);
} work SEC(".maps");

// One mark at each place; a later one takes the place of an earlier.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << OUTSIDE_BITS);
	__type(key, __u32);
	__type(value, __u64);
} outside SEC(".maps");

static __always_inline __u64 *place_of(__u64 mark)
{
	__u32 at = mark >> (64 - OUTSIDE_BITS);

	return bpf_map_lookup_elem(&outside, &at);
}

// Looks for the packet in work, whose address and protocol are known, and leaves its mark. A function of its own, which the verifier
// follows once.
__noinline int is_outside(struct __sk_buff *skb)
{
	__u32 at = 0, share = sample_share();
	struct weir_work *w = bpf_map_lookup_elem(&work, &at);
	__u32 ports;
	__u64 mark, *place;

	if (!skb || !w || share == ALL_FLOWS)
		return 0;
	if (w->ends.protocol != IPPROTO_TCP && w->ends.protocol != IPPROTO_UDP)
		return 0;
	// A connection that begins may be another one with the same ends.
	if (w->packet.flags & SYN)
		return 0;
	if (bpf_skb_load_bytes_relative(skb, w->packet.transport, &ports, sizeof(ports), BPF_HDR_START_NET))
		return 0;
	mark = mixed(config.key + share, (w->packet.now >> PERIOD_BITS) << 8 | w->ends.protocol);
	mark = mixed(mark, (__u64)w->ends.source[0] << 32 | w->ends.destination[0]);
	if (w->ends.version == 6) {
		mark = mixed(mark, (__u64)w->ends.source[1] << 32 | w->ends.destination[1]);
		mark = mixed(mark, (__u64)w->ends.source[2] << 32 | w->ends.destination[2]);
		mark = mixed(mark, (__u64)w->ends.source[3] << 32 | w->ends.destination[3]);
	}
	mark = mixed(mark, ports);
	w->mark = mark;
	place = place_of(mark);
	return place && *place == mark;
}

// 0 is the mark of nothing.
static __always_inline void set_outside(__u64 mark)
{
	__u64 *place = mark ? place_of(mark) : 0;

	if (place)
		*place = mark;
}
