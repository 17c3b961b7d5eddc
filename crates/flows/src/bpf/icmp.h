// ICMP errors about tracked flows (RFC 792, RFC 4443). Each has the beginning of the packet that it is about, as that left this host.
#pragma once

#define ICMP_HEADER 8
#define ICMP_UNREACHABLE 3
#define ICMP_EXCEEDED 11
#define ICMP_PARAMETER 12
#define ICMP_TOO_BIG 4
#define ICMP6_TOO_BIG 2
#define ICMP6_LAST_ERROR 4

struct icmp_head {
	__u8 type;
	__u8 code;
	__be16 check;
	__be16 words[2];
};

// Senders and kinds; more than these are counted with their flows alone.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct weir_reporter);
	__type(value, struct weir_reported);
} reporters SEC(".maps");

// The ends of an answer to the packet in the error: its own, turned round.
static __always_inline bool read_inner(struct __sk_buff *skb, __u32 at, __u8 version, struct weir_ends *e)
{
	__be16 ports[2];

	__builtin_memset(e, 0, sizeof(*e));
	e->version = version;
	if (version == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes_relative(skb, at, &ip, sizeof(ip), BPF_HDR_START_NET) || ip.ihl < 5)
			return false;
		if (ip.frag_off & bpf_htons(IPV4_OFFSET))
			return false;
		e->protocol = ip.protocol;
		e->source[0] = ip.daddr;
		e->destination[0] = ip.saddr;
		at += ip.ihl * 4;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes_relative(skb, at, &ip, sizeof(ip), BPF_HDR_START_NET))
			return false;
		e->protocol = ip.nexthdr;
		__builtin_memcpy(e->source, &ip.daddr, 16);
		__builtin_memcpy(e->destination, &ip.saddr, 16);
		at += sizeof(ip);
	}
	if (e->protocol != IPPROTO_TCP && e->protocol != IPPROTO_UDP)
		return false;
	if (bpf_skb_load_bytes_relative(skb, at, ports, sizeof(ports), BPF_HDR_START_NET))
		return false;
	e->source_port = ports[1];
	e->destination_port = ports[0];
	return true;
}

// The direction of the first packet of a flow; DNS has one for all ports of the client.
static __always_inline __s64 find_first(void *by_ends, struct weir_ends *first)
{
	__u32 *known = bpf_map_lookup_elem(by_ends, first);

	if (!known && first->protocol == IPPROTO_UDP && first->destination_port == DNS_PORT) {
		first->source_port = 0;
		known = bpf_map_lookup_elem(by_ends, first);
	}
	return known ? *known & ~1u : -1;
}

// The direction of the packet that an error is about: its slot times two, and 1 for the side that answers; below 0: none is tracked.
static __always_inline __s64 find_failed(struct __sk_buff *skb, void *by_ends, struct weir_udp_work *u, struct weir_ends *answer)
{
	__u32 *known = bpf_map_lookup_elem(by_ends, answer);
	struct weir_ends *both = u->both;
	__s64 found;
	bool is_first;

	if (known)
		return *known ^ 1;
	if (ask_conntrack(skb, answer, both)) {
		is_first = are_same(&both[0], answer);
		found = find_first(by_ends, &both[0]);
		return found < 0 ? found : found + is_first;
	}
	turn_round(&both[0], answer);
	return find_first(by_ends, &both[0]);
}

static __always_inline void count_reporter(const struct weir_errors *error)
{
	struct weir_reporter key = { .version = error->version, .kind = error->kind, .code = error->code };
	struct weir_reported *known, new = { .packets = 1, .mtu = error->mtu };

	copy(key.from, error->from, 4);
	known = bpf_map_lookup_elem(&reporters, &key);
	if (!known) {
		bpf_map_update_elem(&reporters, &key, &new, BPF_NOEXIST);
		return;
	}
	__sync_fetch_and_add(&known->packets, 1);
	if (error->mtu && (!known->mtu || error->mtu < known->mtu))
		known->mtu = error->mtu;
}

static __always_inline bool is_error(__u8 version, __u8 type)
{
	if (version == 4)
		return type == ICMP_UNREACHABLE || type == ICMP_EXCEEDED || type == ICMP_PARAMETER;
	return type && type <= ICMP6_LAST_ERROR;
}

static __always_inline enum weir_verdict follow_error(struct __sk_buff *skb, struct weir_work *w)
{
	__u32 at = 0;
	struct weir_udp_work *u = bpf_map_lookup_elem(&udp_work, &at);
	__u8 version = w->ends.version;
	struct weir_errors error = {};
	struct weir_ends answer;
	struct icmp_head icmp;
	struct head *slot;
	__s64 direction;
	bool is_tcp;

	if (!u || w->ends.protocol != (version == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return WEIR_OTHER_PROTOCOL;
	if (bpf_skb_load_bytes_relative(skb, w->packet.transport, &icmp, sizeof(icmp), BPF_HDR_START_NET))
		return WEIR_MALFORMED;
	if (!is_error(version, icmp.type))
		return WEIR_OTHER_PROTOCOL;
	if (!read_inner(skb, w->packet.transport + ICMP_HEADER, version, &answer))
		return WEIR_STRAY_ERROR;
	is_tcp = answer.protocol == IPPROTO_TCP;
	direction = is_tcp ? find_failed(skb, &directions, u, &answer) : find_failed(skb, &udp_directions, u, &answer);
	if (direction < 0)
		return WEIR_STRAY_ERROR;
	error.version = version;
	error.kind = icmp.type;
	error.code = icmp.code;
	error.side = direction & 1;
	copy(error.from, w->ends.source, 4);
	if (version == 6 && icmp.type == ICMP6_TOO_BIG)
		error.mtu = (__u32)bpf_ntohs(icmp.words[0]) << 16 | bpf_ntohs(icmp.words[1]);
	else if (version == 4 && icmp.type == ICMP_UNREACHABLE && icmp.code == ICMP_TOO_BIG)
		error.mtu = bpf_ntohs(icmp.words[1]);
	at = direction / 2;
	slot = is_tcp ? bpf_map_lookup_elem(&slots, &at) : bpf_map_lookup_elem(&udp_slots, &at);
	if (!slot)
		return WEIR_STRAY_ERROR;
	bpf_spin_lock(&slot->lock);
	error.count = slot->errors.count + 1;
	slot->errors = error;
	bpf_spin_unlock(&slot->lock);
	count_reporter(&error);
	return WEIR_ERROR;
}
