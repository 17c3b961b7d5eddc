// Settings of the programs in the kernel, their verdicts and their counters. The build makes Rust of it: see
// bpf-build/src/layout.rs for what is understood.
#pragma once

// Settings, before the programs are loaded.
struct weir_config {
	// Key of the hash that draws the sample.
	__u64 key;
	// Flows that may await an answer to their SYN at a time.
	__u32 opening;
	// UDP flows that may await a first answer at a time; 0: UDP is not followed.
	__u32 udp_opening;
};

// The sample, which the driver may change at any time.
struct weir_sample {
	// Marks of flows outside of the sample begin with it (outside.h). Drawn anew for each sample and each half minute, so that older
	// marks are none; 0: each packet is looked at.
	__u64 seed;
	// A flow is in it if its draw is at most this.
	__u32 share;
	__u32 unused;
};

// Counters of a table: entry 0 of TCP, entry 1 of UDP. `made` and `done` are flows that await a first answer.
struct weir_opening {
	// Made; the programs write it.
	__u64 made;
	// Answered or reset; the programs write it.
	__u64 done;
};

// The same of those that the driver removed without an answer. It alone writes it.
struct weir_removed {
	__u64 opening;
};

// The verdict on a packet. Each one is counted with one of them, and all go on unchanged.
enum weir_verdict {
	// It belongs to a tracked TCP flow.
	WEIR_JUDGED,
	// It belongs to a tracked UDP flow.
	WEIR_JUDGED_UDP,
	// Neither IPv4 nor IPv6.
	WEIR_NOT_IP,
	// Not addressed to this host on the link.
	WEIR_NOT_OURS,
	// With a VLAN tag: it comes again at the interface of that VLAN.
	WEIR_TAGGED,
	// Shorter than its headers.
	WEIR_MALFORMED,
	// A fragment, or behind IPv6 extension headers.
	WEIR_FRAGMENT,
	// Neither TCP nor UDP.
	WEIR_OTHER_PROTOCOL,
	// A flow outside of the sample.
	WEIR_UNSAMPLED,
	// The table has no room for its flow.
	WEIR_NO_ROOM,
	// Too many flows await a first answer.
	WEIR_OPENING,
	// A reset or an end of a flow that is not tracked.
	WEIR_STRAY,
	// An ICMP error about a tracked flow.
	WEIR_ERROR,
	// An ICMP error about anything else.
	WEIR_STRAY_ERROR,
	// How many there are.
	WEIR_VERDICTS,
};

// Packets and bytes with one verdict.
struct weir_count {
	__u64 packets;
	// As the kernel counts them: with the header of the link.
	__u64 bytes;
	// Number of bytes at which the next packet is noted (WEIR_NOTE_BYTES).
	__u64 next;
};

// Bytes of packets that are not tracked between two that are noted: drawn between a half of this and one and a half, so that packets
// which take turns are noted alike. A packet that is noted stands for so many bytes.
#define WEIR_NOTE_BYTES 65536
// Directions that are noted between two readings, at most. Beyond that, the one that was noted least recently is forgotten.
#define WEIR_NOTES 4096
