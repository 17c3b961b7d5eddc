// Learning: a packet that leaves by the kernel's way shows what the kernel does with its flow.
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_LESSONS);
	__type(key, __u32);
	__type(value, __u64);
} lessons SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} wishes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} proposals SEC(".maps");

// Jiffies: a flow whose timeout is shorter cannot be renewed in time.
#define LEAST_TIMEOUT 4

static __always_inline void note(enum weir_lesson lesson)
{
	__u32 at = lesson;
	__u64 *mine = bpf_map_lookup_elem(&lessons, &at);

	if (mine)
		++*mine;
}

static __always_inline void write_direction(struct weir_direction *d, const struct ends *e, bool udp, int words)
{
	__builtin_memset(d, 0, sizeof(*d));
	copy(d->source, e->source, words);
	copy(d->destination, e->destination, words);
	d->ports = e->ports;
	d->version = words == 4 ? 6 : 4;
	d->protocol = udp ? IPPROTO_UDP : IPPROTO_TCP;
}

// Asks the resident process to loosen conntrack's window of a connection.
static __always_inline void wish(const struct arrived *p, int words)
{
	struct weir_direction *wish = bpf_ringbuf_reserve(&wishes, sizeof(*wish), 0);

	if (!wish)
		return;
	write_direction(wish, &p->ends, false, words);
	bpf_ringbuf_submit(wish, 0);
}

static __always_inline struct ends answer_to(const struct ends *leaving, int words)
{
	struct ends answer = { .ports = swapped(leaving->ports) };

	copy(answer.source, leaving->destination, words);
	copy(answer.destination, leaving->source, words);
	return answer;
}

// Asks the resident process what conntrack says of an entry. If the ring is full, the entry is proposed again in half a second.
static __always_inline void propose(const struct arrived *p, const struct ends *leaving, __u32 state, int words)
{
	struct weir_proposal *proposal = bpf_ringbuf_reserve(&proposals, sizeof(*proposal), 0);
	struct ends answer = answer_to(leaving, words);

	if (!proposal)
		return;
	write_direction(&proposal->flow, &p->ends, p->udp, words);
	write_direction(&proposal->answer, &answer, p->udp, words);
	proposal->state = state;
	proposal->is_far = p->is_far;
	bpf_ringbuf_submit(proposal, 0);
}

// True if the tuple is that of the packet as it came in.
static __always_inline bool is_tuple_of(const struct nf_conntrack_tuple *tuple, const struct arrived *p, int words)
{
	__be32 ports;

	if (words == 1) {
		if (tuple->src.u3.all[0] != p->ends.source[0] || tuple->dst.u3.all[0] != p->ends.destination[0])
			return false;
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (tuple->src.u3.all[i] != p->ends.source[i] || tuple->dst.u3.all[i] != p->ends.destination[i])
				return false;
	}
	// In memory the source's port comes first.
	ports = bpf_htonl((__u32)bpf_ntohs(tuple->src.u.all) << 16 | bpf_ntohs(tuple->dst.u.all));
	return ports == p->ends.ports;
}

// Whether conntrack has decided about the connection for good, as nf_flow_table asks it (net/netfilter/nft_flow_offload.c).
static __always_inline enum weir_lesson judge(const struct nf_conn *ct, const struct arrived *p)
{
	__u64 status = ct->status;

	if (!(status & IPS_CONFIRMED) || (status & IPS_DYING))
		return WEIR_UNSETTLED;
	if ((status & (IPS_SEQ_ADJUST | IPS_HELPER | IPS_OFFLOAD | IPS_HW_OFFLOAD | IPS_NAT_CLASH)) || ct->master)
		return WEIR_SPECIAL;
	if (p->udp)
		return WEIR_LEARNT;
	if (!(status & IPS_ASSURED) || ct->proto.tcp.state != TCP_CONNTRACK_ESTABLISHED)
		return WEIR_NOT_ESTABLISHED;
	if (!(ct->proto.tcp.seen[0].flags & ct->proto.tcp.seen[1].flags & TCP_BE_LIBERAL))
		return WEIR_CHECKED;
	return WEIR_LEARNT;
}

// The times of a connection, for its entries.
struct times_of {
	// Jiffies that conntrack waits for the next packet.
	__u32 timeout;
	// Jiffies from now on after which the next packet changes the timeout; ~0: none does.
	__u32 changes;
	// UDP without an answer so far.
	bool one_way;
};

// Jiffies until the next packet makes a stream of UDP that has an answer, with another timeout (net/netfilter/nf_conntrack_proto_udp.c):
// conntrack must see that packet.
static __always_inline __u32 until_stream(const struct nf_conn *ct)
{
	__s32 left;

	if ((ct->status & IPS_ASSURED) || !(ct->status & IPS_SEEN_REPLY))
		return ~0u;
	left = (__u32)ct->proto.udp.stream_ts - (__u32)bpf_jiffies64();
	return left < 0 ? 0 : left + 1;
}

// Asks conntrack about the packet that leaves. Its direction's tuple is that of the packet as it came in; the other one's is that of
// the answer to it as it leaves.
static __always_inline enum weir_lesson ask(struct __sk_buff *skb, const struct arrived *p, const struct ends *leaving, int words,
					     struct times_of *times)
{
	struct bpf_ct_opts opts = {
		.netns_id = BPF_F_CURRENT_NETNS,
		.l4proto = p->udp ? IPPROTO_UDP : IPPROTO_TCP,
	};
	struct bpf_sock_tuple answer = {};
	enum weir_lesson lesson;
	struct nf_conn *ct;
	bool is_it;
	__s32 left;

	if (words == 1) {
		answer.ipv4.saddr = leaving->destination[0];
		answer.ipv4.daddr = leaving->source[0];
		*(__be32 *)&answer.ipv4.sport = swapped(leaving->ports);
	} else {
		copy(answer.ipv6.saddr, leaving->destination, 4);
		copy(answer.ipv6.daddr, leaving->source, 4);
		*(__be32 *)&answer.ipv6.sport = swapped(leaving->ports);
	}
	ct = bpf_skb_ct_lookup(skb, &answer, words == 1 ? sizeof(answer.ipv4) : sizeof(answer.ipv6), &opts, sizeof(opts));
	if (!ct)
		return WEIR_NO_CONNECTION;
	// An answer to the side that began means that the packet is from that side. The verifier wants a constant index.
	is_it = opts.dir ? is_tuple_of(&ct->tuplehash[0].tuple, p, words) : is_tuple_of(&ct->tuplehash[1].tuple, p, words);
	lesson = is_it ? judge(ct, p) : WEIR_OTHER_PACKET;
	left = ct->timeout - (__u32)bpf_jiffies64();
	times->one_way = p->udp && !(ct->status & IPS_SEEN_REPLY);
	times->changes = p->udp ? until_stream(ct) : ~0u;
	bpf_ct_release(ct);
	times->timeout = left > 0 ? left : 0;
	return lesson == WEIR_LEARNT && times->timeout < LEAST_TIMEOUT ? WEIR_SHORT_LIVED : lesson;
}

static __always_inline bool is_one_way(const struct weir_way *way, __u32 state)
{
	return state & WEIR_UDP && way->progress;
}

// True if another flow may have the entry: it is empty, or cannot be used any more.
static __always_inline bool is_free(const struct weir_way *way, __u32 state)
{
	__u32 kept = is_one_way(way, state) ? control.hz * WEIR_ONE_WAY_KEPT_S : control.longest_refresh;

	if ((state & WEIR_PHASE_MASK) == WEIR_EMPTY)
		return true;
	return (state & WEIR_PHASE_MASK) == WEIR_VALID &&
	       ((state ^ generation_bits()) >> WEIR_GENERATION_SHIFT || is_past(way->due + kept));
}

// An entry for the flow: its own; one that is free, first at the place of its hash; at last the place of one that has ended.
static __always_inline struct weir_way *room_for(__u64 hash, void *bucket, const struct arrived *p, int words, __u32 *state)
{
	struct weir_way *way = find(hash, &p->ends, p->udp, words, state), *ended = NULL;
	__u32 then = 0;

	if (way)
		return way;
	way = place_of(bucket, hash, words);
	*state = state_of(way);
	if (is_free(way, *state))
		return way;
#pragma unroll
	for (int i = 0; i < WEIR_WAYS; i++) {
		way = bucket + i * STRIDE(words);
		*state = state_of(way);
		if (is_free(way, *state))
			return way;
		if ((*state & WEIR_PHASE_MASK) == WEIR_ENDED) {
			ended = way;
			then = *state;
		}
	}
	*state = then;
	return ended;
}

// The times of an entry: four packets by the kernel's way in the time that conntrack waits for one.
static __always_inline void set_times(struct weir_way *way, const struct times_of *times)
{
	__u32 refresh = times->timeout / 4 < control.longest_refresh ? times->timeout / 4 : control.longest_refresh;

	// A flood without answers is not to hold the table for long.
	if (times->one_way && refresh > control.hz * WEIR_ONE_WAY_S)
		refresh = control.hz * WEIR_ONE_WAY_S;
	if (refresh > times->changes)
		refresh = times->changes;
	way->due = (__u32)bpf_jiffies64() + refresh;
	way->timeout = times->timeout;
	if (times->timeout && times->timeout < control.shortest)
		control.shortest = times->timeout;
}

// A timeout of 0: the entry waits for the resident process.
static __always_inline enum weir_lesson write_entry(struct __sk_buff *skb, void *data, const struct arrived *p,
						     const struct ends *leaving, int words,
						     const struct times_of *times)
{
	__u64 hash = hash_of(&p->ends, p->udp, words);
	struct weir_label *label = label_of(hash, words);
	void *bucket = bucket_of(hash, words);
	struct weir_way *way;
	__u32 state, busy;
	__be32 *w;

	if (!bucket || !label)
		return WEIR_NO_ROOM;
	way = room_for(hash, bucket, p, words, &state);
	if (!way)
		return WEIR_NO_ROOM;
	busy = in_phase(changed(state), WEIR_BUSY);
	if (__sync_val_compare_and_swap(&way->state, state, busy) != state)
		return WEIR_NO_ROOM;
	label->tags[((void *)way - bucket) / STRIDE(words) % WEIR_WAYS] = tag_of(hash);
	w = words_of(way);
	// The longest of all that went this way, as long as the way is the same.
	if (!is_of(way, state, &p->ends, p->udp, words) || way->goes_by != skb->ifindex ||
	    (state ^ generation_bits()) >> WEIR_GENERATION_SHIFT || way->longest < p->length)
		way->longest = p->length;
	copy(w + SOURCE(words), p->ends.source, words);
	copy(w + DESTINATION(words), p->ends.destination, words);
	w[PORTS(words)] = p->ends.ports;
	copy(w + TO_SOURCE(words), leaving->source, words);
	copy(w + TO_DESTINATION(words), leaving->destination, words);
	w[TO_PORTS(words)] = leaving->ports;
	way->progress = p->udp ? times->one_way : p->progress >> 24;
	way->came_by = p->came_by;
	way->goes_by = skb->ifindex;
	copy_macs(way->macs, data);
	way->last = last_of(p);
	set_times(way, times);
	way->mark = skb->mark;
	way->priority = skb->priority;
	order();
	state = (busy & WEIR_CHANGES_MASK) | generation_bits() | (__u32)(p->tos >> 2) << WEIR_DSCP_SHIFT |
		(p->udp ? WEIR_UDP : 0);
	state = in_phase(changed(state), WEIR_VALID);
	__sync_lock_test_and_set(&way->state, state);
	if (config.asks_resident)
		propose(p, leaving, state, words);
	return WEIR_LEARNT;
}

// The packet that leaves is of the flow whose answers the entry carries, as it came in.
static __always_inline bool came_as(const struct weir_way *way, __u32 mark, bool udp, int words)
{
	const struct arrived *p = candidate(mark);
	const __be32 *w = (const __be32 *)(way + 1);

	return p && p->mark == mark && p->words == words && p->udp == udp && p->ends.ports == swapped(w[TO_PORTS(words)]) &&
	       same(p->ends.source, w + TO_DESTINATION(words), words) && same(p->ends.destination, w + TO_SOURCE(words), words);
}

static __always_inline bool has_connection(struct __sk_buff *skb, const struct weir_way *way, const struct ends *leaving, bool udp, int words)
{
	const __be32 *w = (const __be32 *)(way + 1);
	struct arrived owner = { .udp = udp };
	struct times_of times;
	enum weir_lesson lesson;

	// The packet whose answers leave as the entry says.
	copy(owner.ends.source, w + TO_DESTINATION(words), words);
	copy(owner.ends.destination, w + TO_SOURCE(words), words);
	owner.ends.ports = swapped(w[TO_PORTS(words)]);
	lesson = ask(skb, &owner, leaving, words, &times);
	return lesson != WEIR_NO_CONNECTION && lesson != WEIR_OTHER_PACKET;
}

// The answers to a packet that leaves by the kernel's way must not be taken for those of another flow: its ports may have been issued
// anew. Conntrack's tuple of the other direction tells whose they are; where it cannot be asked, the packet itself as it came in. Behind
// an end of the connection they are not carried, also if this direction was not in the table.
static __always_inline void purge(struct __sk_buff *skb, const struct ends *leaving, bool udp, __u32 mark, __u8 flags, int words)
{
	struct ends answer = answer_to(leaving, words);
	struct weir_way *way;
	__u32 state;

	way = find(hash_of(&answer, udp, words), &answer, udp, words, &state);
	if (!way)
		return;
	if (is_end(flags)) {
		bar(way, state);
		return;
	}
	// The resident process may have asked about it before this answer came, and may be writing down what it heard on another core.
	if (config.asks_resident && udp && !way->timeout)
		state = __sync_fetch_and_or(&way->state, WEIR_ANSWERED) | WEIR_ANSWERED;
	// The first answer: the next packet of that flow may make a stream of it, which conntrack must see.
	if (is_one_way(way, state)) {
		forget(way, state);
		return;
	}
	if (config.asks_resident ? came_as(way, mark, udp, words) : has_connection(skb, way, leaving, udp, words)) {
		// It acknowledges the data of the other direction.
		if (way->last & WEIR_HAD_DATA)
			way->last &= ~WEIR_HAD_DATA;
		return;
	}
	forget(way, state);
	note(WEIR_REISSUED);
}

MAPPED_ARRAY(exclusions, struct weir_exclusions);

static __always_inline bool has_end(const struct weir_exclusion *x, const __be32 *address, __u32 port, int words)
{
	__be32 difference = 0;

#pragma unroll
	for (int i = 0; i < words; i++)
		difference |= (address[i] & x->mask[i]) ^ x->address[i];
	return !difference && (!x->port || x->port == port);
}

static __always_inline bool has_ends(const struct weir_exclusion *x, const struct ends *e, int words)
{
	__u32 ports = bpf_ntohl(e->ports);

	return has_end(x, e->source, ports >> 16, words) || has_end(x, e->destination, ports & 0xffff, words);
}

static __always_inline bool is_excluded(const struct arrived *p, const struct ends *leaving, int words)
{
	__u32 at = 0, number = control.exclusions;
	struct weir_exclusions *known = bpf_map_lookup_elem(&exclusions, &at);

	if (!known)
		return false;
	for (__u32 i = 0; i < WEIR_EXCLUSIONS && i < number; i++) {
		const struct weir_exclusion *x = &known->all[i];

		if (x->version != (words == 4 ? 6 : 4) || (x->protocol && x->protocol != (p->udp ? IPPROTO_UDP : IPPROTO_TCP)))
			continue;
		if (has_ends(x, &p->ends, words) || has_ends(x, leaving, words))
			return true;
	}
	return false;
}

// Both directions: only those that were in the table have a bar.
static __always_inline bool has_ended(const struct arrived *p, const struct ends *leaving, int words)
{
	struct ends answer = answer_to(leaving, words);

	return !p->udp && (is_barred(&p->ends, words) || is_barred(&answer, words));
}

static __always_inline void learn(struct __sk_buff *skb, struct last_arrived *last, const struct ends *leaving, bool udp, __u32 mark,
				  __u8 hops, __u8 tos, int words)
{
	struct arrived *p = *word_of(last, mark) & bit_of(mark) ? candidate(mark) : NULL;
	struct times_of times = { .changes = ~0u };
	enum weir_lesson lesson;
	void *data;

	if (!p || !p->is_candidate || p->mark != mark || p->words != words || p->udp != udp)
		return;
	p->is_candidate = false;
	*word_of(last, mark) &= ~bit_of(mark);
	if (is_excluded(p, leaving, words))
		lesson = WEIR_EXCLUDED;
	// A VLAN's interface stands on this one: the packet is routed there, and passes here with its tag.
	else if (skb->vlan_present)
		lesson = WEIR_LEAVES_TAGGED;
	else if (has_ended(p, leaving, words))
		lesson = WEIR_HAS_ENDED;
	else if (hops + 1 != p->hops || tos != p->tos)
		lesson = WEIR_HEADER_CHANGED;
	else
		lesson = config.asks_resident ? WEIR_LEARNT : ask(skb, p, leaving, words, &times);
	// A packet out of the window does not bring conntrack's last acknowledgement up to date, so that one is to be forgotten.
	if (lesson == WEIR_CHECKED ||
	    (p->is_far && !config.asks_resident && lesson != WEIR_EXCLUDED && lesson != WEIR_LEAVES_TAGGED))
		wish(p, words);
	data = (void *)(long)skb->data;
	if (lesson == WEIR_LEARNT && data + ETH_HLEN <= (void *)(long)skb->data_end)
		lesson = write_entry(skb, data, p, leaving, words, &times);
	// The resident process tells what came of a proposal.
	if (lesson != WEIR_LEARNT || !config.asks_resident)
		note(lesson);
}
