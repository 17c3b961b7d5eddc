// The tables of flows, one of TCP and one of UDP. A flow is found by the ends of either direction, as its packets come in. Only the driver removes flows, so that new
// ones never push out those that are tracked.
#pragma once

#include "weir/ct.h"
#include "weir/tuple.h"

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
} KERNEL;

// As struct weir_slot; the verifier must know the lock.
struct slot {
	struct bpf_spin_lock lock;
	__u32 used;
	struct weir_flow flow;
};

_Static_assert(sizeof(struct slot) == sizeof(struct weir_slot), "slot");
_Static_assert(__builtin_offsetof(struct slot, flow) == __builtin_offsetof(struct weir_slot, flow), "slot.flow");

struct udp_slot {
	struct bpf_spin_lock lock;
	__u32 used;
	struct weir_udp_flow flow;
};

_Static_assert(sizeof(struct udp_slot) == sizeof(struct weir_udp_slot), "udp_slot");
_Static_assert(__builtin_offsetof(struct udp_slot, flow) == __builtin_offsetof(struct weir_udp_slot, flow), "udp_slot.flow");
// Both have these at the same place: see `head`.
_Static_assert(__builtin_offsetof(struct weir_flow, state) == __builtin_offsetof(struct weir_udp_flow, state), "state");
_Static_assert(__builtin_offsetof(struct weir_flow, born) == __builtin_offsetof(struct weir_udp_flow, born), "born");

// The beginning of a slot of either table.
struct head {
	struct bpf_spin_lock lock;
	__u32 used;
	struct weir_ends ends[2];
	__u32 interfaces[2];
	__u64 born;
	__u64 last;
	__u32 connections;
	__u32 state;
	__u32 draw;
	__u32 unused;
	struct weir_errors errors;
};

_Static_assert(__builtin_offsetof(struct weir_flow, errors) == __builtin_offsetof(struct weir_udp_flow, errors), "errors");
_Static_assert(__builtin_offsetof(struct head, ends) == __builtin_offsetof(struct weir_slot, flow), "head.ends");
_Static_assert(__builtin_offsetof(struct head, state) ==
		       __builtin_offsetof(struct weir_slot, flow) + __builtin_offsetof(struct weir_flow, state),
	       "head.state");

// Slots of one table; the driver sets how many entries a map has.
#define SLOTS(name, content)                       \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);  \
		__uint(max_entries, 1);            \
		__type(key, __u32);                \
		__type(value, content);            \
	} name SEC(".maps")

// Slots that are free.
#define VACANT(name)                               \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_STACK);  \
		__uint(max_entries, 1);            \
		__type(value, __u32);              \
	} name SEC(".maps")

// The slot of a direction, times two, and 1 for the side that answers.
#define DIRECTIONS(name)                           \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_HASH);   \
		__uint(max_entries, 2);            \
		__type(key, struct weir_ends);     \
		__type(value, __u32);              \
	} name SEC(".maps")

SLOTS(slots, struct slot);
VACANT(vacant);
DIRECTIONS(directions);
SLOTS(udp_slots, struct udp_slot);
VACANT(udp_vacant);
DIRECTIONS(udp_directions);
// By slot: 0 if readings leave it out. Who took the slot out of `vacant` writes it, and the driver.
MAPPED_ARRAY(in_use, __u64);
MAPPED_ARRAY(udp_in_use, __u64);

// Entries of `opening` and `removed`.
#define OF_TCP 0
#define OF_UDP 1

MAPPED_ARRAY(opening, struct weir_opening);
MAPPED_ARRAY(removed, struct weir_removed);
// In memory with an address of its own, which the programs read without a lookup.
volatile struct weir_sample sample SEC(".bss.sample");

static __always_inline void turn_round(struct weir_ends *to, const struct weir_ends *from)
{
	*to = *from;
	copy(to->source, from->destination, 4);
	copy(to->destination, from->source, 4);
	to->source_port = from->destination_port;
	to->destination_port = from->source_port;
}

static __always_inline __u64 hash_of_end(__u64 key, const __be32 *address, __be16 port)
{
	__u64 sum = mixed(key, (__u64)address[0] << 32 | address[1]);

	return mixed(mixed(sum, (__u64)address[2] << 32 | address[3]), port);
}

static __always_inline __u32 sample_share(void)
{
	return sample.share;
}

// Both directions of a flow without NAT have the same number, so that a flow is in the sample as a whole.
static __always_inline __u32 draw_of(const struct weir_ends *e)
{
	__u64 sum = hash_of_end(config.key, e->source, e->source_port) + hash_of_end(config.key, e->destination, e->destination_port);

	return mixed(config.key, sum) >> 32;
}

static __always_inline void read_tuple(struct weir_ends *to, const struct nf_conntrack_tuple *t, const struct weir_ends *like)
{
	*to = *like;
	to->source[0] = t->src.u3.all[0];
	to->destination[0] = t->dst.u3.all[0];
	if (like->version == 6) {
		to->source[1] = t->src.u3.all[1];
		to->source[2] = t->src.u3.all[2];
		to->source[3] = t->src.u3.all[3];
		to->destination[1] = t->dst.u3.all[1];
		to->destination[2] = t->dst.u3.all[2];
		to->destination[3] = t->dst.u3.all[3];
	}
	to->source_port = t->src.u.all;
	to->destination_port = t->dst.u.all;
}

// Ends of both directions as conntrack has them, the side that began first.
static __always_inline bool ask_conntrack(struct __sk_buff *skb, const struct weir_ends *e, struct weir_ends *both)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = e->protocol };
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *ct;
	__u32 size;

	if (!bpf_ksym_exists(bpf_skb_ct_lookup))
		return false;
	if (e->version == 4) {
		size = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = e->source[0];
		tuple.ipv4.daddr = e->destination[0];
		tuple.ipv4.sport = e->source_port;
		tuple.ipv4.dport = e->destination_port;
	} else {
		size = sizeof(tuple.ipv6);
		copy(tuple.ipv6.saddr, e->source, 4);
		copy(tuple.ipv6.daddr, e->destination, 4);
		tuple.ipv6.sport = e->source_port;
		tuple.ipv6.dport = e->destination_port;
	}
	ct = bpf_skb_ct_lookup(skb, &tuple, size, &opts, sizeof(opts));
	if (!ct)
		return false;
	// The verifier wants a constant index.
	read_tuple(&both[0], &ct->tuplehash[0].tuple, e);
	read_tuple(&both[1], &ct->tuplehash[1].tuple, e);
	bpf_ct_release(ct);
	return true;
}

static __always_inline void count_opening(__u32 of, bool made)
{
	struct weir_opening *o = bpf_map_lookup_elem(&opening, &of);

	if (!o)
		return;
	if (made)
		__sync_fetch_and_add(&o->made, 1);
	else
		__sync_fetch_and_add(&o->done, 1);
}

static __always_inline bool may_open(__u32 of)
{
	struct weir_opening *o = bpf_map_lookup_elem(&opening, &of);
	struct weir_removed *r = bpf_map_lookup_elem(&removed, &of);
	__u32 most = of == OF_TCP ? config.opening : config.udp_opening;

	return o && r && (__s64)(o->made - o->done - r->opening) < (__s64)most;
}

// Joins the direction of the answers to a flow.
static __always_inline void join(void *table, void *by_ends, __u32 at, const struct weir_ends *answers)
{
	struct head *slot = bpf_map_lookup_elem(table, &at);
	__u32 direction = at * 2 + 1;

	if (!slot || bpf_map_update_elem(by_ends, answers, &direction, BPF_NOEXIST))
		return;
	bpf_spin_lock(&slot->lock);
	slot->ends[1] = *answers;
	slot->state |= WEIR_IS_JOINED;
	bpf_spin_unlock(&slot->lock);
}

// Makes a flow whose first direction is `first`, with its number in the draw; its own number, or a verdict below 0.
static __always_inline __s64 make(void *table, void *free, void *used, void *by_ends, const struct weir_ends *first, __u32 draw, __u64 now)
{
	__u32 at, direction;
	struct head *slot;
	__u64 *is_used;

	if (bpf_map_pop_elem(free, &at))
		return -WEIR_NO_ROOM;
	slot = bpf_map_lookup_elem(table, &at);
	is_used = bpf_map_lookup_elem(used, &at);
	if (!slot || !is_used)
		return -WEIR_NO_ROOM;
	*is_used = 1;
	direction = at * 2;
	bpf_spin_lock(&slot->lock);
	slot->ends[0] = *first;
	slot->born = now;
	slot->last = now;
	slot->draw = draw;
	slot->used = 1;
	bpf_spin_unlock(&slot->lock);
	if (bpf_map_update_elem(by_ends, first, &direction, BPF_NOEXIST)) {
		// Another core was faster.
		slot->used = 0;
		*is_used = 0;
		bpf_map_push_elem(free, &at, 0);
		return -WEIR_NO_ROOM;
	}
	return at;
}

static __always_inline bool are_same(const struct weir_ends *a, const struct weir_ends *b)
{
	return same(a->source, b->source, 4) && same(a->destination, b->destination, 4) && a->source_port == b->source_port &&
	       a->destination_port == b->destination_port;
}

// Finds or makes the flow of a packet whose direction is not in the table; its direction, or a verdict below 0.
// Not inline: few packets need it, and its stack is large.
static __noinline __s64 learn(struct __sk_buff *skb, const struct weir_ends *e, const struct weir_packet *p)
{
	bool opens = (p->flags & (SYN | ACK)) == SYN, answers = (p->flags & (SYN | ACK)) == (SYN | ACK);
	bool makes_none = p->flags & (RST | FIN), is_first;
	struct weir_ends both[2];
	__u32 *known, vacancy, draw;
	__s64 at;

	// Before anything that costs more. A first answer may be of a flow in the table in any case.
	if (!answers && !makes_none && bpf_map_peek_elem(&vacant, &vacancy))
		return -WEIR_NO_ROOM;
	// Conntrack does not know a flow before its first packet.
	if (opens || !ask_conntrack(skb, e, both)) {
		both[answers] = *e;
		turn_round(&both[!answers], e);
	}
	is_first = are_same(&both[0], e);
	known = opens ? 0 : bpf_map_lookup_elem(&directions, &both[is_first]);
	if (known) {
		// The side that began has its direction from the beginning.
		if (*known & 1)
			return -WEIR_STRAY;
		at = *known / 2;
		join(&slots, &directions, at, e);
		return at * 2 + 1;
	}
	if (makes_none)
		return -WEIR_STRAY;
	draw = draw_of(&both[0]);
	if (draw > sample_share())
		return -WEIR_UNSAMPLED;
	if (opens && !may_open(OF_TCP))
		return -WEIR_OPENING;
	at = make(&slots, &vacant, &in_use, &directions, &both[0], draw, p->now);
	if (at < 0)
		return at;
	if (!opens)
		join(&slots, &directions, at, &both[1]);
	return at * 2 + !is_first;
}
