// Carrying: the packet gets the headers that the kernel gave to one before it.
#pragma once

#define SUM_AT(udp) ((udp) ? offsetof(struct udp_head, check) : offsetof(struct tcp_head, check))

// The part of an entry that a reader takes in one piece.
struct taken {
	struct weir_way way;
	__be32 source[4];
	__be32 destination[4];
	__be32 ports;
};

// How much the flow of a counter has to lose: one that had its turn, and could not be learnt, has little.
static __always_inline __u32 worth(__u16 turn)
{
	__u32 count = turn & WEIR_TURN_MASK;

	return count < config.packets ? count : 1;
}

// The counter of a flow that is not in the bucket, or the one that it takes from another flow; NULL if that one keeps it.
static __always_inline __u16 *counter_of(struct weir_label *label, __u16 whose)
{
	__u16 *turn = &label->turns[0];

#pragma unroll
	for (int i = 0; i < WEIR_TURNS; i++)
		if (!((label->turns[i] ^ whose) & ~WEIR_TURN_MASK))
			return &label->turns[i];
#pragma unroll
	for (int i = 1; i < WEIR_TURNS; i++)
		if (worth(label->turns[i]) < worth(*turn))
			turn = &label->turns[i];
	// By chance: flows that take turns would keep each other from ever being counted. The closer one is to its turn, the more often it
	// stays.
	if (config.packets > 1 && bpf_get_prandom_u32() % (worth(*turn) + 1))
		return NULL;
	*turn = whose;
	return turn;
}

// Counts packets of flows that are not in the bucket; true for the one that may be learnt: number `config.packets`, then each
// WEIR_TRY_AGAIN-th.
static __always_inline bool is_turn(struct weir_label *label, __u64 hash)
{
	__u16 *turn = counter_of(label, hash >> 48 & ~WEIR_TURN_MASK);
	__u32 count;

	if (!turn)
		return false;
	count = *turn & WEIR_TURN_MASK;
	count = count < config.packets + WEIR_TRY_AGAIN - 1 ? count + 1 : config.packets;
	*turn = (*turn & ~WEIR_TURN_MASK) | count;
	return count == config.packets;
}

// Whether these flags end a TCP connection.
static __always_inline bool is_end(__u8 flags)
{
	return flags & (FIN | RST);
}

// The entry that a segment with these flags is to change. SYN begins a connection anew, also one that has ended.
static __always_inline struct weir_way *find_controlled(const struct ends *e, __u8 flags, int words, __u32 *state)
{
	__u64 hash = hash_of(e, false, words);
	struct weir_way *way = find(hash, e, false, words, state);

	if (!way && (flags & SYN))
		way = find_in(hash, WEIR_ENDED, e, false, words, state);
	return way;
}

static __always_inline void control_entry(struct weir_way *way, __u32 state, __u8 flags)
{
	if (is_end(flags))
		bar(way, state);
	else
		forget(way, state);
}

// A segment that conntrack must see ends both directions here: with FIN or RST for a while, else until they are learnt again. Each entry
// is found by its own ends: the answer's are what this one leaves with.
static __always_inline void control_flow(const struct arrived *p, int words)
{
	struct ends answer = {};
	struct weir_way *way;
	__u32 state;
	__be32 *w;

	way = find_controlled(&p->ends, p->flags, words, &state);
	if (!way)
		return;
	w = words_of(way);
	copy(answer.source, w + TO_DESTINATION(words), words);
	copy(answer.destination, w + TO_SOURCE(words), words);
	answer.ports = swapped(w[TO_PORTS(words)]);
	control_entry(way, state, p->flags);
	way = find_controlled(&answer, p->flags, words, &state);
	if (way)
		control_entry(way, state, p->flags);
}

// See `weir_way.last`.
static __always_inline __u8 last_of(const struct arrived *p)
{
	return control.tick | (p->has_data ? WEIR_HAD_DATA : 0);
}

// The valid entry of the packet's flow. If there is none, and `teaches`, the packets of the flow are counted, and one in its turn may
// teach. An entry at its place is found by reading one line of memory; the label is another one.
static __always_inline struct weir_way *entry_of(struct arrived *p, int words, __u32 *state, bool teaches)
{
	__u64 hash = hash_of(&p->ends, p->udp, words);
	struct weir_label *label;
	struct weir_way *way;

	if (!control.labels_first) {
		way = find_placed(hash, &p->ends, p->udp, words, state);
		if (way)
			return way;
	}
	label = label_of(hash, words);
	if (!label)
		return NULL;
	way = find_by(label, hash, WEIR_VALID, &p->ends, p->udp, words, state);
	if (!way && teaches && is_turn(label, hash))
		p->is_candidate = true;
	return way;
}

// Takes a valid entry for the packet, whole.
static __always_inline enum weir_reason take(struct arrived *p, int words, struct taken *t, bool teaches)
{
	struct weir_way *way;
	__u32 state;
	__be32 *w;
	__u8 last;

	way = entry_of(p, words, &state, teaches);
	if (!way)
		return rare(WEIR_UNKNOWN);
	w = words_of(way);
	t->way = *way;
	copy(t->source, w + TO_SOURCE(words), words);
	copy(t->destination, w + TO_DESTINATION(words), words);
	t->ports = w[TO_PORTS(words)];
	order();
	if (state_of(way) != state)
		return rare(WEIR_CHANGING);
	// Also of a packet that takes the kernel's way, and may never leave. Written twice a tick at most: the line stays shared between the
	// cores of the rest.
	last = last_of(p);
	if (t->way.last != last && t->way.last != (last | WEIR_HAD_DATA))
		way->last = last;
	p->is_candidate = true;
	if ((state ^ generation_bits()) >> WEIR_GENERATION_SHIFT)
		return rare(WEIR_STALE);
	if (!t->way.timeout) {
		// It waits for the resident process: half a second later it is asked again.
		if (!is_past(t->way.due + control.hz / 2))
			p->is_candidate = false;
		return rare(WEIR_UNKNOWN);
	}
	if (is_past(t->way.due))
		return rare(WEIR_DUE);
	// Beyond a half of the sequence space, conntrack would take a reset for an old one.
	if (!p->udp && (__u8)((__u8)(p->progress >> 24) - t->way.progress + 64) >= 128) {
		p->is_far = true;
		return rare(WEIR_DUE);
	}
	if (t->way.longest < p->length)
		return rare(WEIR_TOO_LONG);
	p->is_candidate = false;
	if (t->way.came_by != p->came_by || (state >> WEIR_DSCP_SHIFT & 0x3f) != p->tos >> 2)
		return rare(WEIR_OTHERWISE);
	return WEIR_CARRIED;
}

static __always_inline __u64 change_words(__u64 sum, const __be32 *old, const __be32 *new, int words)
{
#pragma unroll
	for (int i = 0; i < words; i++)
		sum += (__u64)(__u32)~old[i] + new[i];
	return sum;
}

#define TRANSPORT(words) (ETH_HLEN + ((words) == 1 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)))

// Writes addresses, ports, hop limit and Ethernet addresses. Returns the difference of the addresses, for the transport checksum. The
// ports lie before the end of the packet.
static __always_inline __u32 rewrite_headers(const struct arrived *p, const struct taken *t, void *data, int words)
{
	__u64 addresses = 0;

	addresses = change_words(addresses, p->ends.source, t->source, words);
	addresses = change_words(addresses, p->ends.destination, t->destination, words);
	copy_macs(data, t->way.macs);
	*(__be32 *)(data + TRANSPORT(words)) = t->ports;
	if (words == 1) {
		struct iphdr *ip = data + ETH_HLEN;
		// The TTL is the upper half of its word, which becomes less by one: 0x100.
		__u64 sum = addresses + (__u16)~ip->check + bpf_htons(0xfeff);

		ip->saddr = t->source[0];
		ip->daddr = t->destination[0];
		ip->ttl = p->hops - 1;
		ip->check = ~folded(parts(sum));
	} else {
		struct ipv6hdr *ip = data + ETH_HLEN;

		copy((void *)&ip->saddr, t->source, 4);
		copy((void *)&ip->daddr, t->destination, 4);
		ip->hop_limit = p->hops - 1;
	}
	addresses = (addresses & 0xffffffff) + (addresses >> 32);
	return addresses + (addresses >> 32);
}

// Rewrites the headers, then the transport checksum: helpers come last, since they make pointers into the packet invalid.
static __always_inline bool rewrite(struct __sk_buff *skb, const struct arrived *p, const struct taken *t, void *data, void *end,
				    int words)
{
	__u32 addresses, transport = TRANSPORT(words) + SUM_AT(p->udp);
	__u64 flags = p->udp ? BPF_F_MARK_MANGLED_0 : 0;

	if (data + TRANSPORT(words) + sizeof(__be32) > end)
		return false;
	addresses = rewrite_headers(p, t, data, words);
	if (addresses && bpf_l4_csum_replace(skb, transport, 0, addresses,
					     BPF_F_PSEUDO_HDR | (words == 4 ? WEIR_F_IPV6 : 0) | flags))
		return false;
	return t->ports == p->ends.ports ||
	       !bpf_l4_csum_replace(skb, transport, p->ends.ports, t->ports, flags | sizeof(__be32));
}

static __always_inline enum weir_reason carry(struct __sk_buff *skb, struct arrived *p, void *data, void *end, int words,
					      __u32 *goes_by)
{
	enum weir_reason reason;
	struct taken t;

	if (p->hops <= 1)
		return rare(WEIR_LAST_HOP);
	reason = take(p, words, &t, true);
	if (reason != WEIR_CARRIED)
		return reason;
	if (!rewrite(skb, p, &t, data, end, words))
		return rare(WEIR_FAILED);
	skb->mark = t.way.mark;
	skb->priority = t.way.priority;
	*goes_by = t.way.goes_by;
	p->carried_to = t.destination[words - 1];
	p->carried_ports = t.ports;
	return WEIR_CARRIED;
}
