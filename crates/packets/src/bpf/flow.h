/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Flows: what ports and addresses each must have where it arrives, and the state table (RFC 9693 section 4.4) of what each had. */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "arrive.h"
#include "mapped.h"
#include "shared.h"

/* As many entries as there are flows, of the family that the receiver is for. */
MAPPED_ARRAY(seen4, 1, struct weir_seen4);
MAPPED_ARRAY(seen6, 1, struct weir_seen6);

static __always_inline bool same6(const __be32 *a, const __be32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* The address that is `distance` after the first one. */
static __always_inline bool is_after4(const __be32 *first, __u32 distance, const __be32 *a)
{
	return a[0] == bpf_htonl(bpf_ntohl(first[0]) + distance);
}

static __always_inline bool is_after6(const __be32 *first, __u32 distance, const __be32 *a)
{
	__u64 low = ((__u64)bpf_ntohl(first[2]) << 32 | bpf_ntohl(first[3])) + distance;
	__be32 sum[4] = { first[0], first[1], bpf_htonl(low >> 32), bpf_htonl((__u32)low) };

	return same6(sum, a);
}

/* At the responder, a frame must be for its address and the flow's destination port; what it comes from is the gateway's to
 * choose, but port 0 (nobody can answer that). At the initiator it must come from where the flow went, and go to where the
 * flow came from. */
static __always_inline bool has_its_flow(const struct weir_expect *e, const struct arrived *a, bool v6)
{
	__u32 round, source, destination, host;

	/* Never 0: user space writes at least 1. The verifier need not know: division by zero is 0 in BPF. */
	if (a->flow >= e->flows)
		return false;
	round = a->flow / e->source_ports;
	host = round / e->destination_ports;
	source = e->first_source_port + (a->flow - round * e->source_ports);
	destination = e->first_destination_port + (round - host * e->destination_ports);
	if (e->ingress) {
		if (a->ports[0] != bpf_htons(destination) || a->ports[1] != bpf_htons(source))
			return false;
		if (v6)
			return same6(e->target, a->source) && is_after6(e->own, host, a->destination);
		return e->target[0] == a->source[0] && is_after4(e->own, host, a->destination);
	}
	if (!a->ports[0] || a->ports[1] != bpf_htons(destination))
		return false;
	return v6 ? same6(e->own, a->destination) : e->own[0] == a->destination[0];
}

/* Writes only what is new, so that the table's cache lines stay shared between cores while nothing changes. The
 * exchange makes exactly one frame the first of its flow. */
static __always_inline void learn4(struct weir_progress *p, const struct arrived *a)
{
	struct weir_seen4 now = { .source = a->source[0] };
	__u64 *entry = bpf_map_lookup_elem(&seen4, &a->flow);
	__u64 word;

	if (!entry)
		return;
	__builtin_memcpy(&now.ports, a->ports, sizeof(now.ports));
	__builtin_memcpy(&word, &now, sizeof(word));
	if (*(volatile __u64 *)entry != word && !__sync_lock_test_and_set(entry, word))
		__sync_fetch_and_add(&p->flows, 1);
}

static __always_inline void learn6(struct weir_progress *p, const struct arrived *a)
{
	struct weir_seen6 *entry = bpf_map_lookup_elem(&seen6, &a->flow);
	__be32 ports;

	if (!entry)
		return;
	__builtin_memcpy(&ports, a->ports, sizeof(ports));
	if (!same6(entry->source, a->source))
		__builtin_memcpy(entry->source, a->source, sizeof(entry->source));
	if (*(volatile __be32 *)&entry->ports != ports && !__sync_lock_test_and_set(&entry->ports, ports))
		__sync_fetch_and_add(&p->flows, 1);
}

#endif
