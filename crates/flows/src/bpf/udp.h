// The headers of UDP packets, and their flows in the table.
#pragma once

#define DNS_PORT bpf_htons(53)
// RFC 9000 section 17.2: the form of the header, and the bit that is always set.
#define QUIC_LONG 0xc0
// RFC 9000 section 15, RFC 9369 section 3.1.
#define QUIC_VERSION_1 0x00000001
#define QUIC_VERSION_2 0x6b3343cf
#define QUIC_LONGEST_ID 20
// A connection begins with long headers: later packets need not be looked at.
#define QUIC_LOOKS 8

// As `work`, without its cost for TCP.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_udp_work);
} udp_work SEC(".maps");

struct udp_head {
	__be16 source;
	__be16 destination;
	__be16 length;
	__be16 check;
};

// Identification, flags, and four numbers of records.
struct dns_head {
	__be16 id;
	__be16 flags;
	__be16 records[4];
};

static __always_inline void read_dns(struct __sk_buff *skb, const struct weir_packet *p, struct weir_datagram *d)
{
	struct dns_head dns;

	if (bpf_skb_load_bytes_relative(skb, p->transport + sizeof(struct udp_head), &dns, sizeof(dns), BPF_HDR_START_NET))
		return;
	d->id = dns.id;
	d->dns = bpf_ntohs(dns.flags);
	d->has |= WEIR_IS_DNS;
}

// The form, the version, and the length of the first connection ID.
static __always_inline void read_quic(struct __sk_buff *skb, const struct weir_packet *p, struct weir_datagram *d)
{
	__u8 head[6];
	__u32 version;

	if (bpf_skb_load_bytes_relative(skb, p->transport + sizeof(struct udp_head), head, sizeof(head), BPF_HDR_START_NET))
		return;
	version = (__u32)head[1] << 24 | (__u32)head[2] << 16 | (__u32)head[3] << 8 | head[4];
	if ((head[0] & QUIC_LONG) == QUIC_LONG && (version == QUIC_VERSION_1 || version == QUIC_VERSION_2) && head[5] <= QUIC_LONGEST_ID)
		d->has |= WEIR_IS_QUIC;
}

static __always_inline enum weir_verdict read_udp(struct __sk_buff *skb, struct weir_work *w, struct weir_datagram *d)
{
	struct udp_head udp;

	if (bpf_skb_load_bytes_relative(skb, w->packet.transport, &udp, sizeof(udp), BPF_HDR_START_NET))
		return WEIR_MALFORMED;
	if (w->packet.bytes < w->packet.transport + sizeof(udp))
		return WEIR_MALFORMED;
	w->ends.source_port = udp.source;
	w->ends.destination_port = udp.destination;
	d->now = w->packet.now;
	d->bytes = w->packet.bytes;
	d->segments = skb->gso_segs > 1 ? skb->gso_segs : 1;
	if (udp.source == DNS_PORT || udp.destination == DNS_PORT)
		read_dns(skb, &w->packet, d);
	return WEIR_JUDGED_UDP;
}

// The ends of the answers, without an entry by which they could be found: a flow of DNS is that of many ports.
static __always_inline void name_answers(__u32 at, const struct weir_ends *answers)
{
	struct udp_slot *slot = bpf_map_lookup_elem(&udp_slots, &at);

	if (!slot || (slot->flow.state & WEIR_IS_JOINED))
		return;
	bpf_spin_lock(&slot->lock);
	slot->flow.ends[1] = *answers;
	slot->flow.state |= WEIR_IS_JOINED;
	bpf_spin_unlock(&slot->lock);
}

// Whether the packet is DNS in the direction that its ports say. If so its flow is that of all ports of the client.
static __always_inline bool is_dns(struct weir_ends *both, bool is_first, struct weir_datagram *d)
{
	bool answers = d->dns & DNS_ANSWER;

	if (!(d->has & WEIR_IS_DNS) || both[0].destination_port != DNS_PORT || answers == is_first) {
		d->has &= ~WEIR_IS_DNS;
		return false;
	}
	d->port = both[0].source_port;
	both[0].source_port = 0;
	both[1].destination_port = 0;
	return true;
}

static __always_inline __s64 make_udp(const struct weir_ends *both, bool is_first, bool dns, bool joined, __u64 now)
{
	__u32 draw = draw_of(&both[0]);
	__s64 at;

	if (draw > sample_share())
		return -WEIR_UNSAMPLED;
	if (is_first && !may_open(OF_UDP))
		return -WEIR_OPENING;
	at = make(&udp_slots, &udp_vacant, &udp_in_use, &udp_directions, &both[0], draw, now);
	if (at < 0)
		return at;
	if (dns && !is_first)
		name_answers(at, &both[1]);
	else if (!dns && joined)
		join(&udp_slots, &udp_directions, at, &both[1]);
	return at * 2 + !is_first;
}

// Finds or makes the flow of a packet; its direction, or a verdict below 0.
static __always_inline __s64 find_udp(struct __sk_buff *skb, struct weir_work *w, struct weir_udp_work *u)
{
	struct weir_ends *both = u->both;
	struct weir_datagram *d = &u->datagram;
	bool asks = (d->has & WEIR_IS_DNS) && w->ends.destination_port == DNS_PORT && !(d->dns & DNS_ANSWER);
	bool is_first = asks, joined = false, dns;
	__u32 *known;

	if (!asks) {
		known = w->ends.source_port == DNS_PORT ? 0 : bpf_map_lookup_elem(&udp_directions, &w->ends);
		if (known) {
			d->has &= ~WEIR_IS_DNS;
			return *known;
		}
		joined = ask_conntrack(skb, &w->ends, both);
		is_first = joined && are_same(&both[0], &w->ends);
		// The server may answer from another port than the one that was asked.
		if (joined && !is_first && both[0].destination_port == DNS_PORT && !(d->has & WEIR_IS_DNS))
			read_dns(skb, &w->packet, d);
	}
	if (!joined) {
		both[!is_first] = w->ends;
		turn_round(&both[is_first], &w->ends);
	}
	dns = is_dns(both, is_first, d);
	known = bpf_map_lookup_elem(&udp_directions, &both[0]);
	if (known) {
		if (dns && !is_first)
			name_answers(*known / 2, &both[1]);
		else if (!dns && !is_first)
			join(&udp_slots, &udp_directions, *known / 2, &w->ends);
		return (*known & ~1u) + !is_first;
	}
	// A first packet that conntrack does not know.
	if (!joined && !is_first && !dns) {
		both[0] = w->ends;
		is_first = true;
	}
	return make_udp(both, is_first, dns, joined, d->now);
}

static __always_inline enum weir_verdict follow_udp(struct __sk_buff *skb, struct weir_work *w)
{
	__u32 at = 0;
	struct weir_udp_work *u = bpf_map_lookup_elem(&udp_work, &at);
	enum weir_verdict verdict;
	struct weir_datagram *d;
	bool was_opening, is_opening;
	struct udp_slot *slot;
	__s64 direction;

	if (!u)
		return WEIR_NO_ROOM;
	d = &u->datagram;
	__builtin_memset(d, 0, sizeof(*d));
	verdict = read_udp(skb, w, d);
	if (verdict != WEIR_JUDGED_UDP)
		return verdict;
	direction = find_udp(skb, w, u);
	if (direction == -WEIR_UNSAMPLED)
		set_outside(w->mark);
	if (direction < 0)
		return -direction;
	d->side = direction & 1;
	at = direction / 2;
	slot = bpf_map_lookup_elem(&udp_slots, &at);
	if (!slot)
		return WEIR_NO_ROOM;
	if (!(d->has & WEIR_IS_DNS) && !(slot->flow.state & WEIR_IS_QUIC) && slot->flow.sides[d->side & 1].packets < QUIC_LOOKS)
		read_quic(skb, &w->packet, d);
	bpf_spin_lock(&slot->lock);
	was_opening = slot->flow.state & WEIR_IS_OPENING;
	slot->flow.interfaces[d->side & 1] = skb->ifindex;
	judge_udp(&slot->flow, d);
	is_opening = slot->flow.state & WEIR_IS_OPENING;
	bpf_spin_unlock(&slot->lock);
	if (was_opening != is_opening)
		count_opening(OF_UDP, is_opening);
	return WEIR_JUDGED_UDP;
}
