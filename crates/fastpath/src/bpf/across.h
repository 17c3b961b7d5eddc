// The way to the other interface, which must be the kernel's own for the packet as it is when the kernel routes it: with the address
// inside.
#pragma once

static __always_inline __u32 goes_by(const struct packet *p)
{
	// Both are read: an address that depends on the direction is none that the verifier can bound.
	__u32 inside = config.inside_interface, outside = config.outside_interface;

	return p->out ? outside : inside;
}

static __always_inline __u32 comes_by(const struct packet *p)
{
	__u32 inside = config.inside_interface, outside = config.outside_interface;

	return p->out ? inside : outside;
}

// Is not counted.
static __always_inline void note_asked(const struct packet *p)
{
	(void)p;
}

#include "weir/way.h"

static __always_inline enum weir_step across4(struct packet *p, const struct iphdr *ip, __be32 image)
{
	return way_out4(p, ip, p->out ? ip->daddr : image, p->out, (struct ports){});
}

static __always_inline enum weir_step across6(struct packet *p, const struct ipv6hdr *ip, const __be32 *image)
{
	return way_out6(p, ip, p->out ? (void *)&ip->daddr : (void *)image, p->out, (struct ports){});
}
