// The ways out that the kernel chose lately. To ask it (bpf_fib_lookup) takes longer than all else that a packet needs here, and
// the answer is the same for each packet of a client, so each core keeps its own for a moment: short enough that a route, a
// sysctl or a path MTU that changed is heeded before anybody sees that it was not.
#pragma once

// A remembered way is as old as this at most, ns; the clock moves by ticks (1 to 10 ms).
#define ROUTE_LIFETIME_NS 100000000ull
#define ROUTES_LOG2 8

// The fields that a way depends on. IPv4 addresses stand as IPv6 has them (::ffff:a.b.c.d, RFC 4291 section 2.5.5.2), which no host's
// IPv6 address is. The client's port and the flow label are left out: they differ with each connection.
struct route_key {
	__be32 source[4];
	__be32 destination[4];
	// The container's; what else tells ways apart, where packets have no port.
	__be16 port;
	__u8 protocol;
	// Or traffic class.
	__u8 tos;
};

struct route {
	struct route_key key;
	// The longest packet that goes this way in one piece, from the IP header on.
	__u16 mtu;
	// The next hop, of its own version.
	__u16 next_family;
	__be32 next[4];
	// When the kernel was asked, ns of the monotonic clock.
	__u64 taken;
};

_Static_assert(sizeof(struct route) == 64, "a line of the cache");

// A table of each core, by a part of a product of the key.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << ROUTES_LOG2);
	__type(key, __u32);
	__type(value, struct route);
} routes SEC(".maps");

static __always_inline struct route *route_slot(const struct route_key *key)
{
	__u32 mixed = key->destination[0] ^ key->destination[1] ^ key->destination[2] ^ key->destination[3];
	__u32 slot;

	mixed ^= key->source[3] ^ (__u32)key->port << 16 ^ (__u32)key->protocol << 8 ^ key->tos;
	// 2^32 by the golden ratio: neighbouring addresses come to lie far apart.
	slot = mixed * 0x9e3779b1u >> (32 - ROUTES_LOG2);
	return bpf_map_lookup_elem(&routes, &slot);
}

static __always_inline bool same_key(const struct route_key *a, const struct route_key *b)
{
	const __u32 *left = (const void *)a, *right = (const void *)b;
	__u32 difference = 0;

#pragma unroll
	for (unsigned int at = 0; at < sizeof(*a) / sizeof(*left); at++)
		difference |= left[at] ^ right[at];
	return !difference;
}

// Whether the way of such a packet of that length is known.
static __always_inline bool is_known(const struct route *route, const struct route_key *key, __u32 length)
{
	return same_key(&route->key, key) && length <= route->mtu &&
	       bpf_ktime_get_coarse_ns() - route->taken < ROUTE_LIFETIME_NS;
}

// The next hop of a way that is known.
static __always_inline void take_way(struct bpf_redir_neigh *next, const struct route *route)
{
	next->nh_family = route->next_family;
	__builtin_memcpy(next->ipv6_nh, route->next, sizeof(route->next));
}

static __always_inline void remember(struct route *route, const struct route_key *key, const struct bpf_redir_neigh *next,
				     __u16 mtu)
{
	route->key = *key;
	route->mtu = mtu;
	route->next_family = next->nh_family;
	__builtin_memcpy(route->next, next->ipv6_nh, sizeof(route->next));
	route->taken = bpf_ktime_get_coarse_ns();
}

// Length of the longest part as which it goes on its way: one segment of many, or all of it. `net_length` is that of its IP
// header.
static __always_inline __u32 longest_part(struct __sk_buff *skb, __u32 net_length, __u8 protocol)
{
	__u32 transport = sizeof(struct udphdr);
	__u8 offset;

	if (!skb->gso_size)
		return skb->len - ETH_HLEN;
	if (protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + net_length + 12, &offset, 1))
			return skb->len - ETH_HLEN;
		transport = (offset >> 4) * 4;
	}
	return skb->gso_size + net_length + transport;
}

// For a field of 16 bits.
static __always_inline __u16 capped(__u32 length)
{
	return length > 0xffff ? 0xffff : length;
}
