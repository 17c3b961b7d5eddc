// Packets of each direction of a flow, counted only while a user looks: an entry of the flow table fills its cache line, and a counter
// beside it would cost every packet another one.
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_TALLIES);
	__type(key, struct weir_direction);
	__type(value, struct weir_count);
} tallies SEC(".maps");

// Its own function: the key takes room on the stack that a packet without a look does not need.
static __noinline int tally(struct arrived *p, __u32 bytes)
{
	struct weir_direction key = {};
	struct weir_count *mine, first = { .packets = 1, .bytes = bytes };

	if (!p)
		return 0;
	copy(key.source, p->ends.source, 4);
	copy(key.destination, p->ends.destination, 4);
	if (p->words != 4)
		key.source[1] = key.source[2] = key.source[3] = key.destination[1] = key.destination[2] = key.destination[3] = 0;
	key.ports = p->ends.ports;
	key.version = p->words == 4 ? 6 : 4;
	key.protocol = p->udp ? IPPROTO_UDP : IPPROTO_TCP;
	mine = bpf_map_lookup_elem(&tallies, &key);
	if (!mine) {
		// Another core may be first, and a full table counts no more flows: the user sees how many packets are missing.
		bpf_map_update_elem(&tallies, &key, &first, BPF_NOEXIST);
		return 0;
	}
	__sync_fetch_and_add(&mine->packets, 1);
	__sync_fetch_and_add(&mine->bytes, bytes);
	return 0;
}
