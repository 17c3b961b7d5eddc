// Constants and structs that the programs in the kernel and their driver in Rust share. The build makes Rust of it: see
// bpf-build/src/layout.rs for what is understood.
#pragma once

// Entries of one bucket. An entry is found in the bucket of its hash or nowhere.
#define WEIR_WAYS 4

// Unknown flows of a bucket whose packets are counted at a time. With as many new flows as buckets, 26 % of them wait for a counter; with
// a single one it would be 63 % (Poisson).
#define WEIR_TURNS 2
// The bits of a counter that count.
#define WEIR_TURN_MASK 0x3ff
// A flow that could not be learnt tries again with each so many-th packet.
#define WEIR_TRY_AGAIN 16

// Buckets of the times of packets in the kernel: one for each ns below 2^5, and 2^4 for each octave up to 2^20 ns.
#define WEIR_TIME_BITS 4
#define WEIR_TIME_BUCKETS 272

// Entries that the resident process has removed by one call: as many directions as the page of a test run holds, and some room.
#define WEIR_REMOVED_AT_ONCE 64

// Exclusions at most.
#define WEIR_EXCLUSIONS 64

// Directions of flows that are counted one by one while a user looks.
#define WEIR_TALLIES 16384

// UDP without answers: seconds until a packet takes the kernel's way, at most.
#define WEIR_ONE_WAY_S 10
// Seconds after that until another flow may have the entry.
#define WEIR_ONE_WAY_KEPT_S 2

// TCP: seconds after FIN or RST during which a flow is not learnt again. As long as conntrack keeps a closed connection
// (nf_conntrack_tcp_timeout_close), which it may still call established: it has not seen the carried segments.
#define WEIR_ENDED_S 10

// Bits of `weir_way.last`. The tick in which a packet came last; 0: none since the timeout was seen to.
#define WEIR_TICK_MASK 0x7f
// TCP: it had data, and no packet of the other direction has taken the kernel's way since.
#define WEIR_HAD_DATA 0x80
// Ticks of a second: renewals of the lease.
#define WEIR_TICKS_PER_SECOND 2

// Bits of `weir_way.state`: phase, protocol, number of changes, an answer, DSCP, generation.
#define WEIR_PHASE_MASK 3
// Set for UDP, clear for TCP.
#define WEIR_UDP 4
// One change of the entry: a reader that sees another number has read two entries mixed.
#define WEIR_CHANGE 8
// The number of changes, 6 bits.
#define WEIR_CHANGES_MASK 0x1f8
// UDP whose answer has left while the entry waited for the resident process, which may have asked conntrack before.
#define WEIR_ANSWERED 0x200
// The DSCP of its packets (RFC 2474), 6 bits.
#define WEIR_DSCP_SHIFT 10
// The generation in which it was learnt, 16 bits.
#define WEIR_GENERATION_SHIFT 16

// Phase of an entry.
enum weir_phase {
	// It holds nothing.
	WEIR_EMPTY,
	// A program writes it just now.
	WEIR_BUSY,
	// It is valid.
	WEIR_VALID,
	// Its TCP flow has ended, and is not learnt again before it is due. SYN lifts that, and another flow may take the place.
	WEIR_ENDED,
};

// Why a packet was carried, or left to the kernel. Each packet that comes in is counted with one of them.
enum weir_reason {
	// Rewritten and sent on.
	WEIR_CARRIED,
	// The resident process has not renewed its lease.
	WEIR_NO_LEASE,
	// Neither IPv4 nor IPv6, or IPv6 on a kernel that cannot rewrite its addresses.
	WEIR_NOT_IP,
	// Not addressed to this host, or marked before it came here.
	WEIR_NOT_PLAIN,
	// With a VLAN tag (IEEE 802.1Q or 802.1ad), also one of priority alone: entries know of none.
	WEIR_TAGGED,
	// Shorter than its headers, or than it claims to be.
	WEIR_MALFORMED,
	// IPv4 options or IPv6 extension headers.
	WEIR_OPTIONS,
	// A fragment: only the first one has ports.
	WEIR_FRAGMENT,
	// Neither TCP nor UDP.
	WEIR_OTHER_PROTOCOL,
	// TTL or hop limit 1: the kernel reports it to the sender.
	WEIR_LAST_HOP,
	// TCP with SYN, FIN, RST or URG: conntrack must see it. FIN and RST end the flow here.
	WEIR_CONTROL,
	// Its flow is not in the table.
	WEIR_UNKNOWN,
	// Its flow came by another interface, or with another DSCP, when it was learnt.
	WEIR_OTHERWISE,
	// Rules, routes, neighbours or interfaces have changed since its flow was learnt.
	WEIR_STALE,
	// The kernel must see a packet of the flow from time to time: it renews the timeout.
	WEIR_DUE,
	// Longer than any packet of the flow that the kernel has forwarded.
	WEIR_TOO_LONG,
	// Its entry was changed while it was read.
	WEIR_CHANGING,
	// The kernel could not rewrite it (no memory): dropped.
	WEIR_FAILED,
	// XDP leaves it to tc: something at one of its interfaces must see it, or it leaves with a mark or a priority.
	WEIR_NOT_BY_XDP,
	// How many there are.
	WEIR_REASONS,
};

// The result of an attempt to learn a flow from a packet that leaves by the kernel's way.
enum weir_lesson {
	// It is in the table.
	WEIR_LEARNT,
	// Connection tracking has no such connection (another zone, `notrack`).
	WEIR_NO_CONNECTION,
	// It is another packet than the one that came in.
	WEIR_OTHER_PACKET,
	// TTL or traffic class changed by more than a hop.
	WEIR_HEADER_CHANGED,
	// Not confirmed, or being removed; if the resident process asks, also UDP with an answer that is no stream yet.
	WEIR_UNSETTLED,
	// TCP that is not established, or not seen both ways.
	WEIR_NOT_ESTABLISHED,
	// It belongs to a helper, an expectation, SYNPROXY, a hardware flow table, or clashes with another connection.
	WEIR_SPECIAL,
	// Conntrack would forget it too soon.
	WEIR_SHORT_LIVED,
	// TCP whose window is still checked: the resident process has been asked to loosen it.
	WEIR_CHECKED,
	// Its bucket is full of live flows.
	WEIR_NO_ROOM,
	// An entry was removed because its ports belong to another connection now.
	WEIR_REISSUED,
	// Its address or port is excluded.
	WEIR_EXCLUDED,
	// It leaves with a VLAN tag, which an entry could not give to the packets that follow.
	WEIR_LEAVES_TAGGED,
	// TCP that has ended with FIN or RST a moment ago.
	WEIR_HAS_ENDED,
	// How many there are.
	WEIR_LESSONS,
};

// Two ways whose packets are timed.
enum weir_timed {
	// The kernel's.
	WEIR_KERNELS_WAY,
	// Carried.
	WEIR_CARRIED_WAY,
	// How many there are.
	WEIR_TIMED,
};

// Constants that the driver sets when it loads the programs.
struct weir_config {
	// Random: makes the hash a secret.
	__u64 seed;
	// Packets of a flow in one direction before it is learnt, at least 1.
	__u32 packets;
	// 1: the kernel has no conntrack functions for BPF, so the resident process asks conntrack (ctnetlink). An entry is then written with
	// a timeout of 0, carries nothing, and waits for the answer.
	__u32 asks_resident;
};

// Values that the driver changes while the programs run.
struct weir_control {
	// Jiffies until which packets are carried; renewed by the resident process.
	__u64 until;
	// Jiffies of the last renewal.
	__u64 now;
	// Jiffies that a renewal adds.
	__u64 lease;
	// Entries of another generation are stale; only the low 16 bits count.
	__u32 generation;
	// Longest time between two packets of a flow that take the kernel's way, jiffies.
	__u32 longest_refresh;
	// 1: IPv6 is carried, too.
	__u32 carries6;
	// Number of renewals, 1 to WEIR_TICK_MASK and again.
	__u32 tick;
	// Jiffies of a second.
	__u32 hz;
	// The shortest timeout of a flow that was learnt, jiffies.
	__u32 shortest;
	// Exclusions in use, at most WEIR_EXCLUSIONS.
	__u32 exclusions;
	// 1: carried packets are counted for each direction of a flow (WEIR_TALLIES).
	__u32 counting;
	// Buckets of IPv4 in use less one; their number is a power of two, and only grows. Few flows in few pages of memory are found
	// faster: each page costs an entry of the core's translation buffer.
	__u32 mask4;
	// The same of IPv6.
	__u32 mask6;
	// 1: most packets are of unknown flows, so that the label of a bucket is read before its entries (`weir_label`).
	__u32 labels_first;
	// 0.
	__u32 zero;
};

// Flows with such an address and port at any of their ends, before or behind the translation, are not learnt.
struct weir_exclusion {
	// IPv4 in the first word.
	__be32 address[4];
	// Ones where the address counts.
	__be32 mask[4];
	// In host order; 0: any.
	__u32 port;
	// 4 or 6.
	__u16 version;
	// IPPROTO_TCP or IPPROTO_UDP; 0: both.
	__u16 protocol;
};

// All exclusions.
struct weir_exclusions {
	// Those in use come first: see `weir_control.exclusions`.
	struct weir_exclusion all[WEIR_EXCLUSIONS];
};

// How the packets of one direction of a flow leave.
struct weir_way {
	// See WEIR_PHASE_MASK and the following.
	__u32 state;
	// The longest packet that the kernel has forwarded, from its IP header on, bytes; a segment of a super-packet.
	__u16 longest;
	// For TCP: upper 8 bits of sequence plus acknowledgement number of the last packet that took the kernel's way. For UDP: 1 if no
	// answer had come when it was learnt.
	__u8 progress;
	// See WEIR_TICK_MASK and WEIR_HAD_DATA.
	__u8 last;
	// Interface that they come in by.
	__u16 came_by;
	// Interface that they leave by.
	__u16 goes_by;
	// Ethernet destination and source, as they lie in the packet.
	__u32 macs[3];
	// Jiffies (low 32 bits) from which on a packet takes the kernel's way, or a flow that has ended may be learnt again.
	__u32 due;
	// Jiffies that conntrack waited for the next packet when the flow was learnt; 0: nothing is known of that yet.
	__u32 timeout;
	// `skb->mark` on leaving.
	__u32 mark;
	// `skb->priority` on leaving.
	__u32 priority;
};

// One direction of an IPv4 flow. All in network order; ports: the source's in the first two bytes.
struct weir_flow4 {
	// How they leave.
	struct weir_way way;
	// As they come in.
	__be32 source;
	// As they come in.
	__be32 destination;
	// As they come in.
	__be32 ports;
	// As they leave.
	__be32 to_source;
	// As they leave.
	__be32 to_destination;
	// As they leave.
	__be32 to_ports;
};

// The same of IPv6.
struct weir_flow6 {
	// How they leave.
	struct weir_way way;
	// As they come in.
	__be32 source[4];
	// As they come in.
	__be32 destination[4];
	// As they come in.
	__be32 ports;
	// As they leave.
	__be32 to_source[4];
	// As they leave.
	__be32 to_destination[4];
	// As they leave.
	__be32 to_ports;
	// 0.
	__be32 zero[4];
};

// Entries of one hash.
struct weir_bucket4 {
	// The entries.
	struct weir_flow4 flows[WEIR_WAYS];
};

// Entries of one hash.
struct weir_bucket6 {
	// The entries.
	struct weir_flow6 flows[WEIR_WAYS];
};

// Stands for a bucket where a packet of an unknown flow asks, in a table so small that a core has it at hand: the bucket itself is as
// far away as memory can be. A packet of a known flow finds its entry without it, at the place that its hash names.
struct weir_label {
	// A byte of the hash of the entry at each place. Set before the entry is valid and never cleared, so that one too many costs a look
	// at the entry, and none is missed.
	__u8 tags[WEIR_WAYS];
	// Each counts the packets of a flow that is not in the bucket: WEIR_TURN_MASK. The bits above tell whose.
	__u16 turns[WEIR_TURNS];
};

// One direction of a flow, as its packets come in: a connection to be loosened, or an entry to be removed.
struct weir_direction {
	// IPv4 in the first word.
	__be32 source[4];
	// Likewise.
	__be32 destination[4];
	// The source's in the first two bytes.
	__be32 ports;
	// 4 or 6.
	__u16 version;
	// IPPROTO_TCP or IPPROTO_UDP.
	__u16 protocol;
};

// An entry that waits for what conntrack says.
struct weir_proposal {
	// The packet as it came in.
	struct weir_direction flow;
	// The answer to it, as it comes in.
	struct weir_direction answer;
	// State of the entry: it is another one if that has changed.
	__u32 state;
	// 1: conntrack saw the last packet of the flow a quarter of the sequence space ago.
	__u32 is_far;
};

// The answer of conntrack to a proposal.
struct weir_settlement {
	// As in the proposal.
	struct weir_direction flow;
	// As in the proposal.
	__u32 state;
	// A number of `weir_lesson`; WEIR_LEARNT: it may be carried.
	__u32 lesson;
	// Jiffies that conntrack waits for the next packet.
	__u32 timeout;
	// 1: UDP without an answer so far.
	__u32 one_way;
};

// A connection whose packets were carried, and then came no more.
struct weir_idle {
	// One of its directions, as the packets came in.
	struct weir_direction flow;
	// Jiffies that conntrack waited for the next packet when a direction was learnt, the longer of both.
	__u32 timeout;
	// Jiffies since the last packet of either direction.
	__u32 idle;
	// 1: UDP that had no answer when it was learnt.
	__u32 one_way;
	// 1: TCP whose last data were not acknowledged.
	__u32 unacknowledged;
};

// The entry of the table for the packets of one direction.
struct weir_entry {
	// How they leave.
	struct weir_way way;
	// As they leave; IPv4 in the first word.
	__be32 source[4];
	// As they leave.
	__be32 destination[4];
	// As they leave.
	__be32 ports;
};

// Packets may come in there past the kernel.
#define WEIR_PORT_TAKES 1
// Packets may leave there past the kernel.
#define WEIR_PORT_GIVES 2

// An interface, for the program at XDP.
struct weir_port {
	// Its Ethernet address, the first four bytes as they lie.
	__u32 mac;
	// The last two.
	__u16 mac_end;
	// See WEIR_PORT_TAKES and the following.
	__u16 does;
};

// Packets and bytes.
struct weir_count {
	// Packets as the kernel handles them: a super-packet (GSO) is one.
	__u64 packets;
	// Bytes from the Ethernet header on.
	__u64 bytes;
};

// How long packets took from one program to the other.
struct weir_times {
	// Packets by time; the last one also has those that took longer.
	__u32 buckets[WEIR_TIME_BUCKETS];
};
