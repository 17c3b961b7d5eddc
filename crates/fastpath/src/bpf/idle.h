// Flows that were carried and then fell silent. Conntrack counts its timeout from the last packet that it saw; here it is counted from the
// last one that was carried.
#pragma once

// A direction is silent if it had no packet for as many ticks.
#define SILENT_TICKS 2
// More than the number of ticks.
#define LONG_AGO 255

// TCP_CONNTRACK_UNACK of enum tcp_conntrack (linux/netfilter/nf_conntrack_tcp.h).
#define TCP_CONNTRACK_UNACK 13

// Fields of the kernel that tell which timeout a TCP connection has: of its policy, if it has one (`ct timeout` of nftables, `CT --timeout`
// of iptables), else of its namespace.
struct nf_tcp_net {
	unsigned int timeouts[TCP_CONNTRACK_UNACK + 1];
} KERNEL;

struct nf_ip_net {
	struct nf_tcp_net tcp;
} KERNEL;

struct netns_ct {
	struct nf_ip_net nf_ct_proto;
} KERNEL;

struct net {
	struct netns_ct ct;
} KERNEL;

enum nf_ct_ext_id {
	NF_CT_EXT_TIMEOUT = 255,
};

struct nf_ct_ext {
	__u8 offset[1];
} KERNEL;

struct nf_ct_timeout {
	char data[1];
} KERNEL;

// As the kernel counts: both in jiffies.
struct tcp_timeouts {
	__u32 established;
	__u32 unacknowledged;
};

// The connection's own policy; NULL if it has none.
static __always_inline const void *policy_of(const struct nf_conn *ct)
{
	const struct nf_ct_ext *all = NULL;
	const void *policy = NULL;
	__u8 at = 0;

	if (!bpf_core_enum_value_exists(enum nf_ct_ext_id, NF_CT_EXT_TIMEOUT))
		return NULL;
	if (bpf_core_read(&all, sizeof(all), &ct->ext) || !all)
		return NULL;
	if (bpf_probe_read_kernel(&at, sizeof(at), (const char *)all + bpf_core_field_offset(all->offset) +
							    bpf_core_enum_value(enum nf_ct_ext_id, NF_CT_EXT_TIMEOUT)) || !at)
		return NULL;
	// struct nf_conn_timeout has nothing but this pointer.
	if (bpf_probe_read_kernel(&policy, sizeof(policy), (const char *)all + at))
		return NULL;
	return policy;
}

static __always_inline bool read_timeouts(struct tcp_timeouts *t, const struct nf_conn *ct)
{
	const struct nf_ct_timeout *policy = policy_of(ct);
	const struct net *net = NULL;
	const char *all;

	if (policy) {
		all = (const char *)policy + bpf_core_field_offset(policy->data);
	} else {
		if (bpf_core_read(&net, sizeof(net), &ct->ct_net.net) || !net)
			return false;
		all = (const char *)net + bpf_core_field_offset(net->ct.nf_ct_proto.tcp.timeouts);
	}
	return !bpf_probe_read_kernel(&t->established, sizeof(__u32), all + TCP_CONNTRACK_ESTABLISHED * sizeof(__u32)) &&
	       !bpf_probe_read_kernel(&t->unacknowledged, sizeof(__u32), all + TCP_CONNTRACK_UNACK * sizeof(__u32));
}

static __always_inline __u32 whole_timeout(const struct tcp_timeouts *t, bool unacknowledged)
{
	return unacknowledged && t->unacknowledged < t->established ? t->unacknowledged : t->established;
}

// Jiffies that conntrack would wait, had it seen all packets of TCP: it has marked data as unacknowledged, if it did not see their
// acknowledgement. 0: it has seen a later packet than the last one that was carried.
static __always_inline __u32 wanted_of_tcp(const struct nf_conn *ct, const struct weir_idle *i, __s32 left)
{
	bool marked = (ct->proto.tcp.seen[0].flags | ct->proto.tcp.seen[1].flags) & TCP_DATA_UNACKNOWLEDGED;
	struct tcp_timeouts t;

	if (!read_timeouts(&t, ct))
		return i->timeout;
	if ((__s32)(whole_timeout(&t, marked) - left) < (__s32)i->idle)
		return 0;
	return whole_timeout(&t, i->unacknowledged);
}

// Ticks since a packet came that has left this byte.
static __always_inline __u32 ticks_since(__u8 last)
{
	__u32 at = last & WEIR_TICK_MASK, now = control.tick;

	if (!at)
		return LONG_AGO;
	return now >= at ? now - at : WEIR_TICK_MASK - at + now;
}

// Whether both directions are silent. If so, no packet is counted any more; one that has the tick of a former turn would look new.
static __always_inline bool is_silent(struct weir_idle *i, int words)
{
	struct ends ends = { .ports = i->flow.ports }, answer = {};
	bool udp = i->flow.protocol == IPPROTO_UDP;
	__u32 state, since, others = LONG_AGO;
	struct weir_way *way, *other;
	__u8 last, others_last = 0;
	__be32 *w;

	copy(ends.source, i->flow.source, words);
	copy(ends.destination, i->flow.destination, words);
	way = find(hash_of(&ends, udp, words), &ends, udp, words, &state);
	if (!way || !way->timeout)
		return false;
	last = way->last;
	since = ticks_since(last);
	if (since == LONG_AGO || since < SILENT_TICKS)
		return false;
	way->last = 0;
	w = words_of(way);
	copy(answer.source, w + TO_DESTINATION(words), words);
	copy(answer.destination, w + TO_SOURCE(words), words);
	answer.ports = swapped(w[TO_PORTS(words)]);
	i->timeout = way->timeout;
	i->one_way = udp && way->progress;
	other = find(hash_of(&answer, udp, words), &answer, udp, words, &state);
	if (other) {
		others_last = other->last;
		others = ticks_since(others_last);
		if (others < SILENT_TICKS)
			return false;
		other->last = 0;
		// UDP that became a stream by a packet of one direction: the other one has the earlier timeout.
		if (i->timeout < other->timeout)
			i->timeout = other->timeout;
	}
	// Data that are not acknowledged are sent again, in later ticks than the other end's last packet. In the same one came the answer.
	i->unacknowledged = !udp && since != others && ((since < others ? last : others_last) & WEIR_HAD_DATA);
	// The packet may have come at the end of its tick.
	i->idle = ((since < others ? since : others) - 1) * control.hz / WEIR_TICKS_PER_SECOND;
	return true;
}

static __always_inline struct nf_conn *connection_of(struct __sk_buff *skb, const struct weir_direction *flow)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = flow->protocol };
	struct bpf_sock_tuple tuple = {};
	__u32 size;

	if (flow->version == 6) {
		size = sizeof(tuple.ipv6);
		copy(tuple.ipv6.saddr, flow->source, 4);
		copy(tuple.ipv6.daddr, flow->destination, 4);
		*(__be32 *)&tuple.ipv6.sport = flow->ports;
	} else {
		size = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = flow->source[0];
		tuple.ipv4.daddr = flow->destination[0];
		*(__be32 *)&tuple.ipv4.sport = flow->ports;
	}
	return bpf_skb_ct_lookup(skb, &tuple, size, &opts, sizeof(opts));
}

// Makes conntrack wait as if it had seen the last packet. Only ever longer.
static __always_inline void renew_timeout(struct nf_conn *ct, const struct weir_idle *i)
{
	__s32 left = ct->timeout - (__u32)bpf_jiffies64();
	__u32 whole = i->timeout;

	if (i->flow.protocol == IPPROTO_TCP) {
		// Another state has another timeout.
		if (ct->proto.tcp.state != TCP_CONNTRACK_ESTABLISHED)
			return;
		whole = wanted_of_tcp(ct, i, left);
	} else if (!i->one_way && !(ct->status & IPS_SEEN_REPLY)) {
		// UDP that has an answer by now is renewed by its old, shorter timeout; but one without an answer is another connection, if the
		// entry's had one, and never gets its timeout.
		return;
	}
	if (left > 0 && i->idle < whole && whole - i->idle > (__u32)left)
		bpf_ct_change_timeout(ct, (__u64)(whole - i->idle) * 1000 / control.hz);
}

// Sees to the timeout of a connection of which one direction is silent; run by the resident process, which does it itself where the
// programs cannot ask conntrack. 1: there is nothing to do.
SEC("tc")
int keep_idle(struct __sk_buff *skb)
{
	struct nf_conn *ct;
	struct weir_idle i;

	if (!control.hz || bpf_skb_load_bytes(skb, ETH_HLEN, &i, sizeof(i)))
		return 1;
	if (i.flow.version == 6 ? !is_silent(&i, 4) : !is_silent(&i, 1))
		return 1;
	if (config.asks_resident)
		return bpf_skb_store_bytes(skb, ETH_HLEN, &i, sizeof(i), 0) ? 1 : 0;
	ct = connection_of(skb, &i.flow);
	if (!ct)
		return 1;
	renew_timeout(ct, &i);
	bpf_ct_release(ct);
	return 0;
}
