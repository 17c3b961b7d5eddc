/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Buckets of a histogram, as HDR histograms have them: exact below 2^(bits + 1), and 2^bits of them in each octave above. */
#ifndef WEIR_OCTAVES_H
#define WEIR_OCTAVES_H

/* Number of the highest bit that is set; there is no instruction for it. */
static __always_inline __u32 log2_of(__u32 v)
{
	__u32 r = 0;

	if (v >> 16) {
		r = 16;
		v >>= 16;
	}
	if (v >> 8) {
		r += 8;
		v >>= 8;
	}
	if (v >> 4) {
		r += 4;
		v >>= 4;
	}
	if (v >> 2) {
		r += 2;
		v >>= 2;
	}
	return r + (v >> 1);
}

static __always_inline __u32 octave_bucket(__u32 v, __u32 bits)
{
	__u32 shift;

	if (v < 2U << bits)
		return v;
	shift = log2_of(v) - bits;
	return (shift << bits) + (v >> shift);
}

#endif
