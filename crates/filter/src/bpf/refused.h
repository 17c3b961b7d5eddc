// Packets that were refused or logged: their sources are remembered, and readers of events get them. They are read again
// here, in functions of their own, so that a packet that passes pays nothing for it.
#pragma once

// From linux/in6.h, which brings the C library's headers with it.
#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_AUTHENTICATION 51
#define NEXT_ICMPV6 58
#define NEXT_DESTINATION 60

// Extension headers of IPv6 that are looked behind: each kind may be there once, one of them twice (RFC 8200 section 4.1).
#define EXTENSIONS 6

struct weir_follow follow SEC(".data.follow");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, WEIR_DENIED_SOURCES);
	__type(key, struct weir_address);
	__type(value, struct weir_denied);
} denied SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, WEIR_EVENTS_BYTES);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_events);
} event_counts SEC(".maps");

// A packet where it was seen.
struct packet {
	void *ctx;
	bool xdp;
	bool out;
	// Its network header, of which the fixed part can be read directly, and how far behind its beginning that is.
	void *net;
	__u32 net_at;
	void *end;
	__u16 protocol;
	__u32 bytes;
	__u32 class_number;
	__u32 action;
};

static __always_inline bool cannot_load(const struct packet *p, __u32 at, void *to, __u32 length)
{
	return p->xdp ? bpf_xdp_load_bytes(p->ctx, at, to, length) : bpf_skb_load_bytes(p->ctx, at, to, length);
}

static __always_inline void mapped(struct weir_address *to, const void *address)
{
	__builtin_memset(to->bytes, 0, 10);
	to->bytes[10] = to->bytes[11] = 0xff;
	__builtin_memcpy(&to->bytes[12], address, 4);
}

// False for what is no IP packet: it was not looked up either.
static __always_inline bool addresses_of(const struct packet *p, struct weir_address *source, struct weir_address *destination)
{
	if (p->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = p->net;

		if ((void *)(ip + 1) > p->end)
			return false;
		mapped(source, &ip->saddr);
		mapped(destination, &ip->daddr);
		return true;
	}
	if (p->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = p->net;

		if ((void *)(ip + 1) > p->end)
			return false;
		__builtin_memcpy(source, &ip->saddr, 16);
		__builtin_memcpy(destination, &ip->daddr, 16);
		return true;
	}
	return false;
}

static __always_inline bool is_extension(__u8 next)
{
	return next == NEXT_HOP_BY_HOP || next == NEXT_ROUTING || next == NEXT_FRAGMENT || next == NEXT_AUTHENTICATION ||
	       next == NEXT_DESTINATION;
}

// Finds what the packet carries: sets the protocol, and whether it is a fragment. True if the header of that protocol is at
// `behind`.
static __always_inline bool payload(const struct packet *p, struct weir_event *e, __u32 *behind)
{
	if (p->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = p->net;

		if ((void *)(ip + 1) > p->end)
			return false;
		e->protocol = ip->protocol;
		// More fragments, or an offset (RFC 791 section 3.1).
		if (ip->frag_off & bpf_htons(0x3fff))
			e->flags |= WEIR_FRAGMENT;
		*behind = p->net_at + ip->ihl * 4;
		return true;
	}
	if ((void *)((struct ipv6hdr *)p->net + 1) > p->end)
		return false;
	e->protocol = ((struct ipv6hdr *)p->net)->nexthdr;
	*behind = p->net_at + sizeof(struct ipv6hdr);
	for (int i = 0; i < EXTENSIONS && is_extension(e->protocol); i++) {
		struct {
			__u8 next;
			__u8 length;
			__be16 fragment;
		} x;

		if (cannot_load(p, *behind, &x, sizeof(x)))
			return false;
		if (e->protocol == NEXT_FRAGMENT) {
			// An offset, or more fragments. One with neither is a whole packet (RFC 6946).
			if (x.fragment & bpf_htons(0xfff9))
				e->flags |= WEIR_FRAGMENT;
			*behind += 8;
		} else if (e->protocol == NEXT_AUTHENTICATION) {
			*behind += (x.length + 2) * 4;
		} else {
			*behind += (x.length + 1) * 8;
		}
		e->protocol = x.next;
		// Behind the header of any but the first fragment there is no other one.
		if (e->flags & WEIR_FRAGMENT)
			return false;
	}
	return true;
}

// Writes an event for the readers. A core writes so many events and no more for any number of packets, and wakes no process.
static __always_inline void tell(const struct packet *p, const struct weir_address *source,
				 const struct weir_address *destination, __u64 now)
{
	__u64 window = now / WEIR_WINDOW_NS;
	struct weir_events *mine;
	struct weir_event *e;
	__u32 zero = 0, behind = 0;
	__be16 port;

	mine = bpf_map_lookup_elem(&event_counts, &zero);
	if (!mine)
		return;
	if (mine->window != window) {
		mine->window = window;
		mine->in_window = 0;
	}
	if (mine->in_window >= WEIR_EVENTS_IN_WINDOW) {
		mine->lost++;
		return;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		mine->lost++;
		return;
	}
	mine->in_window++;
	mine->written++;
	*e = (struct weir_event){
		.time_ns = now,
		.source = *source,
		.destination = *destination,
		.class_number = p->class_number,
		.bytes = p->bytes,
		.flags = p->out ? WEIR_OUT : 0,
		.action = p->action,
	};
	// The ports of TCP and UDP are the first thing in their headers.
	if (payload(p, e, &behind) && !(e->flags & WEIR_FRAGMENT) &&
	    (e->protocol == IPPROTO_TCP || e->protocol == IPPROTO_UDP) && !cannot_load(p, behind + 2, &port, 2)) {
		e->port = bpf_ntohs(port);
		e->flags |= WEIR_HAS_PORT;
	}
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

static __always_inline void refused(const struct packet *p)
{
	__u32 sample = config.sample;
	struct weir_denied first = { .packets = 1, .class_number = p->class_number }, *old;
	struct weir_address source, destination, *far = p->out ? &destination : &source;

	if (!sample || (sample > 1 && bpf_get_prandom_u32() % sample) || !addresses_of(p, &source, &destination))
		return;
	first.last_ns = bpf_ktime_get_ns();
	old = bpf_map_lookup_elem(&denied, far);
	if (old) {
		__sync_fetch_and_add(&old->packets, 1);
		old->last_ns = first.last_ns;
	} else {
		bpf_map_update_elem(&denied, far, &first, BPF_ANY);
	}
	if (first.last_ns < *(volatile __u64 *)&follow.until_ns)
		tell(p, &source, &destination, first.last_ns);
}

// The verdict on a packet whose class is not simply let through.
static __noinline int special_at_tc(struct __sk_buff *skb, __u32 class_number, __u32 action, bool out)
{
	struct packet p = {
		.ctx = skb,
		.out = out,
		.net = (void *)(long)skb->data + ETH_HLEN,
		.net_at = ETH_HLEN,
		.end = (void *)(long)skb->data_end,
		.protocol = skb->protocol,
		.bytes = skb->len,
		.class_number = class_number,
		.action = action,
	};

	if (action == WEIR_MARK)
		skb->mark = config.policies[class_number & 0xff].mark;
	else
		refused(&p);
	return action == WEIR_DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

#if !ESTABLISHED_FIRST
struct vlan {
	__be16 tag;
	__be16 protocol;
};

// The start of the network header. Two tags at most (802.1ad); a packet with more is not IP to us.
static __always_inline void *behind_tags(void *data, void *end, __u16 *protocol)
{
	struct ethhdr *eth = data;
	void *net = eth + 1;

	*protocol = eth->h_proto;
	for (int i = 0; i < 2; i++) {
		struct vlan *tag = net;

		if (*protocol != bpf_htons(ETH_P_8021Q) && *protocol != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			break;
		*protocol = tag->protocol;
		net = tag + 1;
	}
	return net;
}

// As at tc, but that there is no mark.
static __noinline int special_at_xdp(struct xdp_md *ctx, __u32 class_number, __u32 action)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {
		.ctx = ctx,
		.xdp = true,
		.end = end,
		.bytes = end - data,
		.class_number = class_number,
		.action = action,
	};

	if (action == WEIR_MARK || data + sizeof(struct ethhdr) > end)
		return XDP_PASS;
	p.net = behind_tags(data, end, &p.protocol);
	p.net_at = p.net - data;
	refused(&p);
	return action == WEIR_DROP ? XDP_DROP : XDP_PASS;
}
#endif
