// The linear part of a packet, which programs read directly.
#pragma once

// Tells where the packet begins, and where its readable part ends: behind `wanted` bytes, or all of a shorter packet. The headers of a packet from
// a card may not be in its linear part yet.
static __always_inline void pull(struct __sk_buff *skb, __u32 wanted, void **data, void **end)
{
	*data = (void *)(long)skb->data;
	*end = (void *)(long)skb->data_end;
	if (*data + wanted > *end) {
		bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted);
		*data = (void *)(long)skb->data;
		*end = (void *)(long)skb->data_end;
	}
}
