// ICMP errors: what they quote is a packet as it was on the other side, and gets the address of this one (RFC 5508 section 4, RFC 6296
// section 3.6 for IPv6), so that path MTU discovery works.
#pragma once

// `end` is where the message ends, `image` the other address of the packet around it.
static __always_inline enum weir_step error4(struct packet *p, const struct iphdr *ip, __u32 end, __be32 image)
{
	__u32 quote = ETH_HLEN + sizeof(*ip) + ICMP_LENGTH, sum = 0, difference, at;
	__u32 address_at = quote + (p->out ? offsetof(struct iphdr, daddr) : offsetof(struct iphdr, saddr));
	enum weir_step step;
	struct iphdr inner;
	__be32 old, new;
	__u16 check;

	if (ip->frag_off & bpf_htons(0x3fff))
		return WEIR_FRAGMENT;
	if (quote + sizeof(inner) > end || bpf_skb_load_bytes(p->skb, quote, &inner, sizeof(inner)) ||
	    inner.version != 4 || inner.ihl < 5)
		return WEIR_MALFORMED;
	old = p->out ? inner.daddr : inner.saddr;
	step = image4(p, old, &new);
	if (step != WEIR_TRANSLATED)
		return step;
	step = across4(p, ip, image);
	if (step != WEIR_TRANSLATED)
		return step;
	difference = change(0, old, new);
	check = updated(inner.check, difference);
	// The quoted header with its checksum sums up to the same as before, but for what was wrong with it.
	sum = change16(plus(sum, difference), inner.check, check);
	at = quote + inner.ihl * 4 + checksum_at(inner.protocol);
	if (!(inner.frag_off & bpf_htons(0x1fff)) && has_address_sum(inner.protocol) &&
	    !correct(p, at, end, inner.protocol, difference, &sum))
		return WEIR_FAILED;
	if (bpf_skb_store_bytes(p->skb, quote + offsetof(struct iphdr, check), &check, sizeof(check), 0) ||
	    bpf_skb_store_bytes(p->skb, address_at, &new, sizeof(new), 0) ||
	    bpf_l4_csum_replace(p->skb, ETH_HLEN + sizeof(*ip) + ICMP_CHECKSUM, 0, sum, 0) || !write_ip4(p, ip, image))
		return WEIR_FAILED;
	return WEIR_TRANSLATED_ERROR;
}

static __always_inline enum weir_step error6(struct packet *p, const struct ipv6hdr *ip, __u32 end, const __be32 *mine,
					     const __be32 *image)
{
	__u32 quote = ETH_HLEN + sizeof(*ip) + ICMP_LENGTH, sum = 0, difference, at;
	__u32 address_at = quote + (p->out ? offsetof(struct ipv6hdr, daddr) : offsetof(struct ipv6hdr, saddr));
	__u32 check_at = ETH_HLEN + sizeof(*ip) + ICMP_CHECKSUM;
	enum weir_step step;
	struct ipv6hdr inner;
	__be32 old[4], new[4];

	if (quote + sizeof(inner) > end || bpf_skb_load_bytes(p->skb, quote, &inner, sizeof(inner)) || inner.version != 6)
		return WEIR_MALFORMED;
	copy(old, p->out ? (void *)&inner.daddr : (void *)&inner.saddr, 4);
	step = image6(p, old, new);
	if (step != WEIR_TRANSLATED)
		return step;
	// Its checksum stands behind a chain of headers, which would have to be read one after the other.
	if (!config.neutral && (inner.nexthdr == NEXT_FRAGMENT || is_extension(inner.nexthdr)))
		return WEIR_OPTIONS;
	step = across6(p, ip, image);
	if (step != WEIR_TRANSLATED)
		return step;
	difference = change_words6(old, new);
	at = quote + sizeof(inner) + checksum_at6(inner.nexthdr);
	if (!config.neutral) {
		sum = plus(sum, difference);
		if (has_address_sum6(inner.nexthdr) && !correct(p, at, end, inner.nexthdr, difference, &sum))
			return WEIR_FAILED;
	}
	if (bpf_skb_store_bytes(p->skb, address_at, new, sizeof(new), 0))
		return WEIR_FAILED;
	if (!config.neutral &&
	    (bpf_l4_csum_replace(p->skb, check_at, 0, sum, 0) ||
	     bpf_l4_csum_replace(p->skb, check_at, 0, change_words6(mine, image), BPF_F_PSEUDO_HDR | WEIR_F_IPV6)))
		return WEIR_FAILED;
	return write_ip6(p, ip, image) ? WEIR_TRANSLATED_ERROR : WEIR_FAILED;
}
