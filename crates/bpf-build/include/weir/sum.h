// Sums in one's complement (RFC 1071), updated by the difference of what is rewritten (RFC 1624, eqn. 3).
#pragma once

static __always_inline __u32 plus(__u32 sum, __u32 word)
{
	sum += word;
	return sum + (sum < word);
}

// The difference that a checksum must take in when a word becomes another one.
static __always_inline __u32 change(__u32 sum, __u32 old, __u32 new)
{
	return plus(plus(sum, ~old), new);
}

// The same for 16 bits, whose complement must not reach beyond them.
static __always_inline __u32 change16(__u32 sum, __u16 old, __u16 new)
{
	return plus(plus(sum, (__u16)~old), new);
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

// A sum of a few words, made in 64 bits: there, no addition has a carry that must be looked at. Its 16-bit parts added, less than 2^20.
static __always_inline __u32 parts(__u64 sum)
{
	return (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
}

// A checksum after the change.
static __always_inline __u16 updated(__u16 checksum, __u32 difference)
{
	return ~folded(plus(difference, (__u16)~checksum));
}
