// Addresses and ports of one direction of a flow, and a hash of them.
#pragma once

// Addresses and ports of one direction. `words` of an address: 1 (IPv4) or 4; it is a constant wherever it is used.
struct ends {
	__be32 source[4];
	__be32 destination[4];
	__be32 ports;
};

static __always_inline bool same(const __be32 *a, const __be32 *b, int words)
{
	__be32 difference = a[0] ^ b[0];

	if (words == 4)
		difference |= (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]);
	return !difference;
}

static __always_inline void copy(__be32 *to, const __be32 *from, int words)
{
	to[0] = from[0];
	if (words == 4) {
		to[1] = from[1];
		to[2] = from[2];
		to[3] = from[3];
	}
}

static __always_inline __be32 swapped(__be32 ports)
{
	return ports << 16 | ports >> 16;
}

static __always_inline __u64 mixed(__u64 sum, __u64 word)
{
	sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
	return sum ^ sum >> 32;
}

// A keyed multiplicative hash. `bit` tells apart what has the same ends, such as two protocols. The last step spreads ports that follow
// each other: without it, they crowd in three times as many full buckets of four as random ones would.
static __always_inline __u64 hashed(__u64 key, const struct ends *e, bool bit, int words)
{
	__u64 sum = key;

	sum = mixed(sum, (__u64)e->source[0] << 32 | e->destination[0]);
	if (words == 4) {
		sum = mixed(sum, (__u64)e->source[1] << 32 | e->source[2]);
		sum = mixed(sum, (__u64)e->source[3] << 32 | e->destination[1]);
		sum = mixed(sum, (__u64)e->destination[2] << 32 | e->destination[3]);
	}
	return mixed(mixed(sum, (__u64)e->ports << 1 | bit), 0);
}
