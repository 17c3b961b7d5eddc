// The headers of a packet, from its network header on: interfaces with and without Ethernet are alike.
#pragma once

#define IPV4_FRAGMENT 0x3fff
#define IPV4_OFFSET 0x1fff

static __always_inline enum weir_verdict read4(struct __sk_buff *skb, struct weir_ends *e, struct weir_packet *p)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET) || ip.ihl < 5)
		return WEIR_MALFORMED;
	// The first fragment of UDP has its ports, and all that is read of it.
	if (ip.frag_off & (ip.protocol == IPPROTO_TCP ? bpf_htons(IPV4_FRAGMENT) : bpf_htons(IPV4_OFFSET)))
		return WEIR_FRAGMENT;
	e->protocol = ip.protocol;
	p->transport = ip.ihl * 4;
	p->bytes = bpf_ntohs(ip.tot_len);
	if ((ip.tos & 3) == 3)
		p->has |= WEIR_HAS_MARK;
	e->version = 4;
	e->source[0] = ip.saddr;
	e->destination[0] = ip.daddr;
	return WEIR_JUDGED;
}

static __always_inline enum weir_verdict read6(struct __sk_buff *skb, struct weir_ends *e, struct weir_packet *p)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
		return WEIR_MALFORMED;
	if (is_extension(ip.nexthdr) || ip.nexthdr == NEXT_FRAGMENT)
		return WEIR_FRAGMENT;
	e->protocol = ip.nexthdr;
	p->transport = sizeof(ip);
	// 0 where it is longer than the field allows (BIG TCP).
	p->bytes = ip.payload_len ? sizeof(ip) + bpf_ntohs(ip.payload_len) : 0;
	if ((ip.flow_lbl[0] >> 4 & 3) == 3)
		p->has |= WEIR_HAS_MARK;
	e->version = 6;
	__builtin_memcpy(e->source, &ip.saddr, 16);
	__builtin_memcpy(e->destination, &ip.daddr, 16);
	return WEIR_JUDGED;
}

// Not inline: the options would take a fifth of the stack of all that is called from there.
static __noinline enum weir_verdict read_tcp(struct __sk_buff *skb, struct weir_ends *e, struct weir_packet *p)
{
	__u32 at = p->transport;
	struct options options = {};
	struct tcp_head tcp;
	__u32 header, length;

	if (bpf_skb_load_bytes_relative(skb, at, &tcp, sizeof(tcp), BPF_HDR_START_NET))
		return WEIR_MALFORMED;
	header = (tcp.offset >> 4) * 4;
	if (header < sizeof(tcp) || p->bytes < at + header)
		return WEIR_MALFORMED;
	length = header - sizeof(tcp);
	// The compiler knows that it cannot be longer, and would leave the comparison out, which the verifier needs.
	asm volatile("" : "+r"(length));
	if (length > 40)
		return WEIR_MALFORMED;
	e->source_port = (__be16)tcp.ports;
	e->destination_port = tcp.ports >> 16;
	p->seq = bpf_ntohl(tcp.seq);
	p->ack = bpf_ntohl(tcp.ack);
	p->flags = tcp.flags;
	p->window = bpf_ntohs(tcp.window);
	p->length = p->bytes - at - header;
	p->segments = skb->gso_segs > 1 ? skb->gso_segs : 1;
	if (length) {
		if (bpf_skb_load_bytes_relative(skb, at + sizeof(tcp), options.bytes, length, BPF_HDR_START_NET))
			return WEIR_MALFORMED;
		options.length = length;
		read_options(p, &options);
	}
	return WEIR_JUDGED;
}

static __always_inline enum weir_verdict read_packet(struct __sk_buff *skb, struct weir_ends *e, struct weir_packet *p)
{
	enum weir_verdict verdict;

	if (skb->vlan_present)
		return WEIR_TAGGED;
	if (skb->pkt_type != PACKET_HOST)
		return WEIR_NOT_OURS;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = read4(skb, e, p);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		verdict = read6(skb, e, p);
	else
		verdict = WEIR_NOT_IP;
	if (verdict != WEIR_JUDGED)
		return verdict;
	if (!p->bytes)
		p->bytes = skb->len;
	p->now = bpf_ktime_get_ns();
	if (e->protocol != IPPROTO_TCP)
		return WEIR_OTHER_PROTOCOL;
	return read_tcp(skb, e, p);
}
