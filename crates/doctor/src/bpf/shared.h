// Shared by the programs in the kernel and their driver in Rust. The build makes Rust of it: see bpf-build/src/layout.rs
// for what is understood.
#pragma once

// Bytes of a packet that a sample keeps.
#define WEIR_SAMPLE_BYTES 128

// Fixed when the programs are loaded.
struct weir_watch {
	// Arguments of the tracepoint: 2 before reasons (5.17), 3 with them, 4 with the receiving socket (6.11).
	__u32 arguments;
	// Samples kept of a group by each core; 0: none.
	__u32 samples;
	// Places of `weir_front` that each core has; 0: none.
	__u32 places;
	// Without BTF: where in the tracepoint's event the reason, the place and the EtherType are; WEIR_NOWHERE of what it lacks.
	__u32 reason_at;
	__u32 location_at;
	__u32 protocol_at;
};

#define WEIR_NOWHERE 0xffffffff

// The properties that dropped packets have in common.
struct weir_group {
	// Address in the kernel.
	__u64 location;
	// Namespace by its inode; 0: neither device nor socket told.
	__u32 netns;
	// `enum skb_drop_reason`; 0 where the kernel gives none.
	__u32 reason;
	// `skb->dev`; 0: none.
	__u32 interface;
	// EtherType, host order.
	__u16 ethertype;
	// IP protocol; 0 of what is not IP.
	__u8 protocol;
	__u8 pad;
};

// The counts of one core for a group.
struct weir_sum {
	__u64 packets;
	__u64 bytes;
	// The packet, by its number from 1, at which there is something to do about samples.
	__u64 next;
	// The last packet of those for which it has been drawn already which of them is kept.
	__u64 end;
	// The slot of that one; WEIR_NO_SLOT: none of them is kept.
	__u32 slot;
	__u32 pad;
};

#define WEIR_NO_SLOT 0xffffffff

// A group that is found without hashing it.
struct weir_front {
	struct weir_group group;
	struct weir_sum sum;
};

// Place of a sample: each core writes its own.
struct weir_sample_key {
	struct weir_group group;
	__u32 cpu;
	__u32 slot;
};

// One packet.
struct weir_sample {
	// `skb->skb_iif`.
	__u32 came_in;
	// `skb->mark`.
	__u32 mark;
	// Bytes from the network header on.
	__u32 length;
	// Bytes of `header` that are filled.
	__u16 filled;
	// 1: a socket of this namespace is bound to it.
	__u8 socket;
	__u8 pad;
	// From the network header on.
	__u8 header[WEIR_SAMPLE_BYTES];
};

// Packets that found no room.
struct weir_lost {
	// In the table of groups.
	__u64 packets;
	// In the table of samples; they are still counted.
	__u64 samples;
};

// The kinds of events of a connection.
enum weir_flow_kind {
	WEIR_RETRANSMIT,
	WEIR_RESET_SENT,
	WEIR_RESET_RECEIVED,
	WEIR_RETRANSMIT_SYNACK,
};

// Whose it is, as its packet goes. IPv4 in the first word.
struct weir_flow {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
	__u32 netns;
	// AF_INET or AF_INET6; 0: of connections beyond those told apart.
	__u16 family;
	// `enum weir_flow_kind`.
	__u8 kind;
	// TCP state; 0: no socket.
	__u8 state;
};

// How often.
struct weir_flow_sum {
	__u64 times;
	// Payload of the largest and of the smallest segment, bytes.
	__u32 largest;
	__u32 smallest;
};
