// Sequence numbers and time stamps, which wrap around (RFC 9293 section 3.4, RFC 7323 section 5.2), and round trips.
#pragma once

// How far a is behind b.
static __always_inline __s32 after(__u32 a, __u32 b)
{
	return (__s32)(a - b);
}

static __always_inline __u32 in_us(__u64 ns)
{
	return ns / 1000;
}

// Half the numbers: one further ahead belongs to no such connection (RFC 7323 section 2.3).
#define LARGEST_WINDOW (1 << 30)

// A longer time is the pause of an application: a minute, ns.
#define LONGEST_TRIP 60000000000ull

// The logarithm to base 2, of 1 to 2^32 - 1.
static __always_inline __u32 power_of(__u32 number)
{
	__u32 power = 0;

	if (number >> 16) {
		number >>= 16;
		power = 16;
	}
	if (number >> 8) {
		number >>= 8;
		power += 8;
	}
	if (number >> 4) {
		number >>= 4;
		power += 4;
	}
	if (number >> 2) {
		number >>= 2;
		power += 2;
	}
	return power + (number >> 1);
}

// Two buckets for each power of two, from 16 us on; the first one is for all that is shorter.
static __always_inline __u32 bucket_of(__u64 ns)
{
	__u64 us = ns / 1000;
	__u32 power, bucket;

	if (us < 16)
		return 0;
	if (us >> 32)
		return WEIR_BUCKETS - 1;
	power = power_of(us);
	bucket = 2 * (power - 4) + (us >> (power - 1) & 1) + 1;
	return bucket < WEIR_BUCKETS ? bucket : WEIR_BUCKETS - 1;
}

static __always_inline void shorter(struct weir_trips *t, __u64 trip)
{
	if (trip <= LONGEST_TRIP && (!t->smallest || trip < t->smallest))
		t->smallest = trip ? trip : 1;
}

// RFC 6298 section 2: the first one is the estimate, of each later one an eighth goes in.
static __always_inline void take_trip(struct weir_trips *t, __u64 trip)
{
	if (trip > LONGEST_TRIP)
		return;
	shorter(t, trip);
	t->smoothed = t->count ? t->smoothed - t->smoothed / 8 + trip / 8 : trip;
	t->count++;
	t->total += trip;
	t->buckets[bucket_of(trip) & (WEIR_BUCKETS - 1)]++;
}
