// ICMP errors about packets of a mapping: what they quote is a packet as it was on the other side, and is translated like the
// message around it (RFC 5508 section 4, RFC 4443 section 2.4), so that path MTU discovery works.
#pragma once

// Rewrites port and checksum of the quoted transport header at `at`, as far as the quote has them, and adds to the sum of the
// message what that changes. `difference` is that of the addresses.
static __always_inline bool quoted_transport(struct packet *p, __u32 at, __u8 protocol, __u32 difference, __be16 old,
					     __be16 new, __u32 *sum)
{
	if (!correct(p, at + checksum_at(protocol), p->bytes, protocol, change16(difference, old, new), sum))
		return false;
	*sum = change16(*sum, old, new);
	// The quoted packet went the other way: the source of a packet there is the destination here.
	return !bpf_skb_store_bytes(p->skb, at + (p->out ? 2 : 0), &new, sizeof(new), 0);
}

static __always_inline enum weir_reason error4(struct packet *p)
{
	__u32 quote = ETH_HLEN + sizeof(struct iphdr) + ICMP_LENGTH, at, sum = 0, difference;
	__u32 address_at = quote + (p->out ? offsetof(struct iphdr, daddr) : offsetof(struct iphdr, saddr));
	struct weir_end4 end = {};
	struct weir_other4 *found, other;
	enum weir_reason reason;
	struct iphdr ip, inner;
	struct ports ports;
	__u16 check;
	__u8 type;

	if (bpf_skb_load_bytes(p->skb, ETH_HLEN, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(p->skb, ETH_HLEN + sizeof(ip), &type, 1) || !quotes4(type) ||
	    bpf_skb_load_bytes(p->skb, quote, &inner, sizeof(inner)))
		return WEIR_NOT_MAPPED;
	at = quote + inner.ihl * 4;
	// Later fragments have no ports.
	if (inner.version != 4 || inner.ihl < 5 || (inner.frag_off & bpf_htons(0x1fff)) ||
	    (inner.protocol != IPPROTO_TCP && inner.protocol != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(p->skb, at, &ports, sizeof(ports)))
		return WEIR_NOT_MAPPED;
	end.protocol = inner.protocol;
	end.address = p->out ? inner.daddr : inner.saddr;
	end.port = p->out ? ports.destination : ports.source;
	found = p->out ? bpf_map_lookup_elem(&out4, &end) : bpf_map_lookup_elem(&in4, &end);
	// Who reports about a packet that came to the end of a mapping is that end, and so is the receiver of the report.
	if (!found || found->what != WEIR_TRANSLATE || (p->out ? ip.saddr : ip.daddr) != end.address)
		return WEIR_NOT_MAPPED;
	other = *found;
	if (ip.ttl <= 1)
		return WEIR_LAST_HOP;
	reason = way4(p, &ip, (struct ports){});
	if (reason != WEIR_TRANSLATED)
		return reason;

	difference = change(0, end.address, other.address);
	check = updated(inner.check, difference);
	// The quoted header with its checksum sums up to the same as before, but for what was wrong with it.
	sum = change16(plus(sum, difference), inner.check, check);
	if (!quoted_transport(p, at, inner.protocol, difference, end.port, other.port, &sum) ||
	    bpf_skb_store_bytes(p->skb, quote + offsetof(struct iphdr, check), &check, sizeof(check), 0) ||
	    bpf_skb_store_bytes(p->skb, address_at, &other.address, sizeof(other.address), 0) ||
	    bpf_l4_csum_replace(p->skb, ETH_HLEN + sizeof(ip) + ICMP_CHECKSUM, 0, sum, 0) ||
	    !write_ip4(p, &ip, other.address))
		return WEIR_FAILED;
	return WEIR_TRANSLATED_ERROR;
}

static __always_inline bool same6(const void *a, const void *b)
{
	const __u32 *left = a, *right = b;

	return left[0] == right[0] && left[1] == right[1] && left[2] == right[2] && left[3] == right[3];
}

static __always_inline enum weir_reason error6(struct packet *p)
{
	__u32 quote = ETH_HLEN + sizeof(struct ipv6hdr) + ICMP_LENGTH, at = quote + sizeof(struct ipv6hdr), sum = 0;
	__u32 address_at = quote + (p->out ? offsetof(struct ipv6hdr, daddr) : offsetof(struct ipv6hdr, saddr));
	__u32 check_at = ETH_HLEN + sizeof(struct ipv6hdr) + ICMP_CHECKSUM;
	struct weir_end6 end = {};
	struct weir_other6 *found, other;
	enum weir_reason reason;
	struct ipv6hdr ip, inner;
	struct ports ports;
	__u8 type;

	if (bpf_skb_load_bytes(p->skb, ETH_HLEN, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(p->skb, ETH_HLEN + sizeof(ip), &type, 1) || !quotes6(type) ||
	    bpf_skb_load_bytes(p->skb, quote, &inner, sizeof(inner)) ||
	    (inner.nexthdr != IPPROTO_TCP && inner.nexthdr != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(p->skb, at, &ports, sizeof(ports)))
		return WEIR_NOT_MAPPED;
	end.protocol = inner.nexthdr;
	__builtin_memcpy(end.address, p->out ? &inner.daddr : &inner.saddr, 16);
	end.port = p->out ? ports.destination : ports.source;
	found = p->out ? bpf_map_lookup_elem(&out6, &end) : bpf_map_lookup_elem(&in6, &end);
	if (!found || found->what != WEIR_TRANSLATE || !same6(p->out ? &ip.saddr : &ip.daddr, end.address))
		return WEIR_NOT_MAPPED;
	other = *found;
	if (ip.hop_limit <= 1)
		return WEIR_LAST_HOP;
	reason = way6(p, &ip, (struct ports){});
	if (reason != WEIR_TRANSLATED)
		return reason;

	sum = plus(sum, other.difference);
	if (!quoted_transport(p, at, inner.nexthdr, other.difference, end.port, other.port, &sum) ||
	    bpf_skb_store_bytes(p->skb, address_at, other.address, sizeof(other.address), 0) ||
	    bpf_l4_csum_replace(p->skb, check_at, 0, sum, 0) ||
	    bpf_l4_csum_replace(p->skb, check_at, 0, other.difference, BPF_F_PSEUDO_HDR | WEIR_F_IPV6) ||
	    !write_ip6(p, &ip, other.address))
		return WEIR_FAILED;
	return WEIR_TRANSLATED_ERROR;
}
