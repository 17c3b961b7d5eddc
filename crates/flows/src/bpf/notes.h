// Packets that are not tracked, by their ends: of each WEIR_NOTE_BYTES one packet is noted and stands for them. So large flows are found, at
// a cost that grows with bytes alone.
#pragma once

// How often a packet of that direction was noted since the last reading, which takes them out.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, WEIR_NOTES);
	__type(key, struct weir_ends);
	__type(value, __u64);
} notes SEC(".maps");

// Packets of IP that belong to no flow in the table.
static __always_inline bool is_noted(__u32 verdict)
{
	return verdict == WEIR_UNSAMPLED || verdict == WEIR_NO_ROOM || verdict == WEIR_OPENING || verdict == WEIR_STRAY ||
	       verdict == WEIR_FRAGMENT || verdict == WEIR_OTHER_PROTOCOL;
}

static __always_inline bool read_ends(struct __sk_buff *skb, struct weir_ends *e)
{
	__u32 transport = sizeof(struct ipv6hdr);
	bool is_fragment = false;
	__be32 ports;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
			return false;
		e->version = 4;
		e->protocol = ip.protocol;
		e->source[0] = ip.saddr;
		e->destination[0] = ip.daddr;
		transport = ip.ihl * 4;
		is_fragment = ip.frag_off & bpf_htons(IPV4_FRAGMENT);
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
			return false;
		e->version = 6;
		e->protocol = ip.nexthdr;
		__builtin_memcpy(e->source, &ip.saddr, 16);
		__builtin_memcpy(e->destination, &ip.daddr, 16);
	}
	// All fragments of a sender are one entry: only the first has ports.
	if (!is_fragment && (e->protocol == IPPROTO_TCP || e->protocol == IPPROTO_UDP) &&
	    !bpf_skb_load_bytes_relative(skb, transport, &ports, sizeof(ports), BPF_HDR_START_NET)) {
		e->source_port = (__be16)ports;
		e->destination_port = ports >> 16;
	}
	return true;
}

static __always_inline __u64 draw_bytes(void)
{
	return WEIR_NOTE_BYTES / 2 + bpf_get_prandom_u32() % WEIR_NOTE_BYTES;
}

// Notes the packet if its bytes reach the next place. Not inline: few packets need it, and its stack is large.
static __noinline int note(struct __sk_buff *skb, struct weir_count *mine)
{
	struct weir_ends ends = {};
	__u64 times = 0, *known;

	if (!mine)
		return 0;
	if (!mine->next)
		mine->next = mine->bytes + draw_bytes();
	// A super-packet may reach several.
	for (int i = 0; i < 4 && mine->bytes >= mine->next; i++) {
		mine->next += draw_bytes();
		times++;
	}
	if (!times || !read_ends(skb, &ends))
		return 0;
	known = bpf_map_lookup_elem(&notes, &ends);
	if (known)
		__sync_fetch_and_add(known, times);
	else
		bpf_map_update_elem(&notes, &ends, &times, BPF_ANY);
	return 0;
}
