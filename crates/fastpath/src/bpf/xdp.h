// Carrying in a driver (XDP), before the kernel makes a packet of it. It has the same table and makes the same checks. A packet that it
// does not carry goes on to the kernel, where the program at tc sees it as if this one were not there.
#pragma once

// The interfaces, by number.
MAPPED_ARRAY(ports, struct weir_port);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_REASONS);
	__type(key, __u32);
	__type(value, struct weir_count);
} xdp_counts SEC(".maps");

// True if packets may come in there (WEIR_PORT_TAKES) or leave there (WEIR_PORT_GIVES) past the kernel.
static __always_inline const struct weir_port *port_that(__u32 index, __u16 does)
{
	const struct weir_port *port = bpf_map_lookup_elem(&ports, &index);

	return port && port->does & does ? port : NULL;
}

// Writes the transport checksum. A UDP checksum of zero means that there is none (RFC 768).
static __always_inline void correct_sum(__u16 *check, bool udp, __u32 difference)
{
	__u16 sum;

	if (udp && !*check)
		return;
	sum = updated(*check, difference);
	*check = udp && !sum ? 0xffff : sum;
}

static __always_inline enum weir_reason carry_by_xdp(struct arrived *p, void *data, void *end, int words, __u32 *goes_by)
{
	enum weir_reason reason;
	struct taken t;
	__u32 addresses;
	__u16 *check;

	if (p->hops <= 1)
		return WEIR_LAST_HOP;
	reason = take(p, words, &t, false);
	if (reason != WEIR_CARRIED)
		return reason;
	// XDP cannot set a mark, and no queue here heeds a priority.
	if (t.way.mark || t.way.priority || !port_that(t.way.goes_by, WEIR_PORT_GIVES))
		return WEIR_NOT_BY_XDP;
	check = data + TRANSPORT(words) + SUM_AT(p->udp);
	if ((void *)(check + 1) > end)
		return WEIR_MALFORMED;
	addresses = rewrite_headers(p, &t, data, words);
	correct_sum(check, p->udp, change(addresses, p->ends.ports, t.ports));
	*goes_by = t.way.goes_by;
	return WEIR_CARRIED;
}

static __always_inline enum weir_reason arrive_by_xdp(struct xdp_md *ctx, struct arrived *p, void *data, void *end, __u32 *goes_by)
{
	struct extent x = { .bytes = end - data };
	const struct weir_port *port;
	struct ethhdr *eth = data;
	enum weir_reason reason;
	bool v4;

	if ((__s64)(control.until - bpf_jiffies64()) <= 0)
		return WEIR_NO_LEASE;
	if ((void *)(eth + 1) > end)
		return WEIR_MALFORMED;
	v4 = eth->h_proto == bpf_htons(ETH_P_IP);
	if (eth->h_proto == bpf_htons(ETH_P_8021Q) || eth->h_proto == bpf_htons(ETH_P_8021AD))
		return WEIR_TAGGED;
	if (!v4 && (eth->h_proto != bpf_htons(ETH_P_IPV6) || !control.carries6))
		return WEIR_NOT_IP;
	p->came_by = ctx->ingress_ifindex;
	port = port_that(p->came_by, WEIR_PORT_TAKES);
	if (!port)
		return WEIR_NOT_BY_XDP;
	if (*(__u32 *)data != port->mac || *(__u16 *)(data + sizeof(port->mac)) != port->mac_end)
		return WEIR_NOT_PLAIN;
	reason = v4 ? read4(x, p, data + ETH_HLEN, end) : read6(x, p, data + ETH_HLEN, end);
	if (reason != WEIR_CARRIED)
		return reason;
	return v4 ? carry_by_xdp(p, data, end, 1, goes_by) : carry_by_xdp(p, data, end, 4, goes_by);
}
