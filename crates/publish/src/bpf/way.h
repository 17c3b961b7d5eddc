// The way of a packet, and whether it fits there.
#pragma once

static __always_inline __u32 goes_by(const struct packet *p)
{
	(void)p;
	return config.outer;
}

static __always_inline __u32 comes_by(const struct packet *p)
{
	(void)p;
	return config.bridge;
}

static __always_inline void note_asked(const struct packet *p)
{
	count(p, WEIR_ASKED);
}

#include "weir/way.h"

// Whether it fits into the container's link, and there is one: a packet redirected to a link that is gone is thrown away, while the
// kernel knows where the container is since it was started again.
static __always_inline enum weir_reason fits_in(struct __sk_buff *skb)
{
	__u32 mtu = 0;
	long result;

	result = bpf_check_mtu(skb, config.container, &mtu, 0, BPF_MTU_CHK_SEGS);
	if (result < 0)
		return WEIR_OTHER_WAY;
	return result ? WEIR_TOO_BIG : WEIR_TRANSLATED;
}

// Packets of the container are ours only if they go out of the outer interface. Ports are 0 of what has none.
static __always_inline enum weir_reason way4(struct packet *p, const struct iphdr *ip, struct ports ports)
{
	return p->out ? way_out4(p, ip, ip->daddr, ports.source, ports) : fits_in(p->skb);
}

static __always_inline enum weir_reason way6(struct packet *p, const struct ipv6hdr *ip, struct ports ports)
{
	return p->out ? way_out6(p, ip, (void *)&ip->daddr, ports.source, ports) : fits_in(p->skb);
}
