// The headers of a packet that may be carried, and what is remembered of it until it leaves on the same core.
#pragma once

// Candidates on their way through the kernel, by mark. The kernel takes packets in by up to 64 at a time (GRO) before it forwards the
// first of them.
#define CANDIDATES 256

// A packet as it came in.
struct arrived {
	struct ends ends;
	__u32 came_by;
	// Length that counts against an MTU, from the IP header on.
	__u32 length;
	// For TCP: sequence plus acknowledgement number.
	__u32 progress;
	// Made of fields that the kernel's way does not change: tells packets apart that are under way at the same time.
	__u32 mark;
	// 1 or 4: words of an address; 0: nothing.
	__u8 words;
	bool udp;
	__u8 hops;
	// Traffic class, ECN included.
	__u8 tos;
	// Flags of TCP.
	__u8 flags;
	// TCP with payload.
	bool has_data;
	// The flow may be learnt when the packet leaves.
	bool is_candidate;
	// Conntrack saw the last packet of the flow a quarter of the sequence space ago.
	bool is_far;
	// Nanoseconds of the clock from which on its way is timed; 0: it is not.
	__u64 since;
	// Since then: packets that have left on this core, and the nanoseconds that the program took for them.
	__u32 left;
	__u32 own;
	// Packets that have come in on this core.
	__u32 number;
	// Destination (its last word) and ports with which the packet before was carried; ports are 0 if none was.
	__be32 carried_to;
	__be32 carried_ports;
};

struct last_arrived {
	struct arrived packet;
	// A bit for each of `candidates` that may not have left yet. A packet that leaves and is none of them does not read that table, which
	// is too large for the nearest cache.
	__u64 waiting[CANDIDATES / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct last_arrived);
} arrivals SEC(".maps");

static __always_inline struct last_arrived *last_arrival(void)
{
	__u32 at = 0;

	return bpf_map_lookup_elem(&arrivals, &at);
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CANDIDATES);
	__type(key, __u32);
	__type(value, struct arrived);
} candidates SEC(".maps");

static __always_inline struct arrived *candidate(__u32 mark)
{
	__u32 at = mark & (CANDIDATES - 1);

	return bpf_map_lookup_elem(&candidates, &at);
}

static __always_inline __u64 *word_of(struct last_arrived *last, __u32 mark)
{
	return &last->waiting[mark / 64 % (CANDIDATES / 64)];
}

static __always_inline __u64 bit_of(__u32 mark)
{
	return 1ull << mark % 64;
}

// Keeps the packet that came last until it leaves.
static __always_inline void keep_candidate(struct last_arrived *last)
{
	__u32 mark = last->packet.mark;
	struct arrived *kept = candidate(mark);

	if (!kept)
		return;
	*word_of(last, mark) |= bit_of(mark);
	*kept = last->packet;
}

// A packet with that mark has left: a later one that came in on another core must not be taken for it.
static __always_inline void has_left(__u32 mark)
{
	struct arrived *p = config.asks_resident ? candidate(mark) : NULL;

	if (p && p->mark == mark)
		p->words = 0;
}

struct udp_head {
	__be32 ports;
	__be16 length;
	__be16 check;
};

// The mark of a packet with this first word of its IP header's length and identification, and this transport header. Translation changes
// neither the sequence numbers of TCP nor what UDP carries.
static __always_inline __u32 mark_of(__u32 word, bool udp, const void *transport, const void *end)
{
	const __u32 *within = transport + (udp ? sizeof(struct udp_head) : offsetof(struct tcp_head, seq));
	__u64 sum = word;

	if ((void *)(within + 2) <= end)
		sum = mixed(mixed(sum, within[0]), within[1]);
	return mixed(sum, udp) >> 32;
}

// A packet's length from the Ethernet header on; of a super-packet (GSO) also the payload of each segment, else 0.
struct extent {
	__u32 bytes;
	__u32 segment;
};

// A reason that few packets have. Without this, the compiler sets each of them before it tests for it, also for all packets that have
// none.
static __always_inline enum weir_reason rare(enum weir_reason reason)
{
	asm volatile("" : "+r"(reason));
	if (reason == WEIR_CARRIED)
		__builtin_unreachable();
	return reason;
}

// Reads the transport header, `payload` bytes behind the IP header.
static __always_inline enum weir_reason read_transport(struct arrived *p, void *transport, void *end, __u32 segment, __u32 net_length,
							__u32 payload)
{
	__u32 header = sizeof(struct udp_head);
	struct udp_head *udp = transport;
	struct tcp_head *tcp = transport;

	if ((void *)(udp + 1) > end)
		return rare(WEIR_MALFORMED);
	p->ends.ports = udp->ports;
	p->progress = 0;
	p->has_data = false;
	if (p->udp) {
		__u32 length = bpf_ntohs(udp->length);

		// As nf_conntrack's udp_error.
		if (length < sizeof(*udp) || length > payload)
			return rare(WEIR_MALFORMED);
	} else {
		if ((void *)(tcp + 1) > end)
			return rare(WEIR_MALFORMED);
		header = (tcp->offset >> 4) * 4;
		if (header < sizeof(*tcp) || header > payload)
			return rare(WEIR_MALFORMED);
		p->progress = bpf_ntohl(tcp->seq) + bpf_ntohl(tcp->ack);
		p->flags = tcp->flags;
		p->has_data = payload > header;
	}
	p->length = segment ? segment + net_length + header : net_length + payload;
	if (!p->udp && ((tcp->flags & (FIN | SYN | RST | URG)) || !(tcp->flags & ACK)))
		return rare(WEIR_CONTROL);
	return WEIR_CARRIED;
}

// Length and identification of IPv4; of IPv6 the payload's length.
static __always_inline __u32 marked4(const struct iphdr *ip)
{
	return (__u32)ip->tot_len << 16 | ip->id;
}

static __always_inline __u32 marked6(const struct ipv6hdr *ip)
{
	return ip->payload_len;
}

static __always_inline enum weir_reason read4(struct extent x, struct arrived *p, void *net, void *end)
{
	__u32 length, room = x.bytes - ETH_HLEN;
	struct iphdr *ip = net;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return rare(WEIR_MALFORMED);
	if (ip->ihl != 5)
		return rare(WEIR_OPTIONS);
	if (ip->frag_off & bpf_htons(0x3fff))
		return rare(WEIR_FRAGMENT);
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return rare(WEIR_OTHER_PROTOCOL);
	length = length4(x.segment, ip, room);
	if (!is_sound4(ip) || length > room || length < sizeof(*ip))
		return rare(WEIR_MALFORMED);
	p->words = 1;
	p->udp = ip->protocol == IPPROTO_UDP;
	p->hops = ip->ttl;
	p->tos = ip->tos;
	p->ends.source[0] = ip->saddr;
	p->ends.destination[0] = ip->daddr;
	return read_transport(p, ip + 1, end, x.segment, sizeof(*ip), length - sizeof(*ip));
}

static __always_inline enum weir_reason read6(struct extent x, struct arrived *p, void *net, void *end)
{
	__u32 length, room = x.bytes - ETH_HLEN;
	struct ipv6hdr *ip = net;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return rare(WEIR_MALFORMED);
	if (ip->nexthdr == NEXT_FRAGMENT)
		return rare(WEIR_FRAGMENT);
	if (is_extension(ip->nexthdr))
		return rare(WEIR_OPTIONS);
	if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
		return rare(WEIR_OTHER_PROTOCOL);
	length = length6(x.segment, ip, room);
	if (length > room)
		return rare(WEIR_MALFORMED);
	p->words = 4;
	p->udp = ip->nexthdr == IPPROTO_UDP;
	p->hops = ip->hop_limit;
	p->tos = bpf_ntohl(*(__be32 *)ip) >> 20;
	copy(p->ends.source, (void *)&ip->saddr, 4);
	copy(p->ends.destination, (void *)&ip->daddr, 4);
	return read_transport(p, ip + 1, end, x.segment, sizeof(*ip), length - sizeof(*ip));
}
