// Shared by the programs in the kernel and their driver in Rust. The build makes Rust of it: see bpf-build/src/layout.rs
// for what is understood.
#pragma once

// Changes whenever something here does: a filter that was loaded by another version of weir is not written to.
#define WEIR_FORMAT 5
// Classes there may be, the default one (0: in no list) among them. The highest number stands for "look further".
#define WEIR_CLASSES 255
// Counters of classes: by direction (0 in, 1 out), class and action. Each is a power of two, so that no number is too high.
#define WEIR_COUNTS 2048
// Counters of what was not looked up: by direction and reason.
#define WEIR_REASON_COUNTS 10
// Bits of an IPv6 address behind 2000::/3 that choose its bucket: up to a /23.
#define WEIR_BUCKET_BITS 20
// Buckets: those of 2000::/3, and one each for what is below and above it.
#define WEIR_BUCKETS 1048578
// Steps that find a boundary among 2^22.
#define WEIR_SEARCH_STEPS 23
// Sources of refused packets that are remembered.
#define WEIR_DENIED_SOURCES 4096
// Bytes of the ring of events: a power of two, and of pages.
#define WEIR_EVENTS_BYTES 262144
// Events that a core writes within a window; further ones are counted as lost.
#define WEIR_EVENTS_IN_WINDOW 125
// Such a window, ns: an eighth of a second.
#define WEIR_WINDOW_NS 125000000
// A flag of weir_event: its port is known.
#define WEIR_HAS_PORT 1
// It is a fragment, the first one or another.
#define WEIR_FRAGMENT 2
// It goes out.
#define WEIR_OUT 4

// The action for the packets of a class.
enum weir_action {
	// Let through.
	WEIR_ALLOW,
	// Thrown away.
	WEIR_DROP,
	// Let through, and its source remembered as a refused one would be.
	WEIR_LOG,
	// Let through with a mark (`skb->mark`); only at tc.
	WEIR_MARK,
	// How many there are.
	WEIR_ACTIONS,
};

// Why a packet was not looked up.
enum weir_reason {
	// It was.
	WEIR_LOOKED_UP,
	// Neither IPv4 nor IPv6.
	WEIR_NOT_IP,
	// Shorter than its header.
	WEIR_TOO_SHORT,
	// Packets without which the link itself would not work: 0.0.0.0, ::, fe80::/10, neighbour discovery, answers of DHCP. An answer from a
	// class that is let through may be counted there.
	WEIR_LINK_LOCAL,
	// It belongs to a connection that is there already, and those pass first.
	WEIR_ESTABLISHED,
	// How many there are.
	WEIR_REASONS,
};

// The action of a class.
struct weir_policy {
	// Which of the counters by class and action is its, of one direction; modulo WEIR_ACTIONS it is the action.
	__u32 count;
	// For WEIR_MARK.
	__u32 mark;
};

// The first address of a range of IPv6 that belongs to one class, up to the next boundary.
struct weir_boundary {
	// Upper half of the address, host order.
	__u64 high;
	// Lower half.
	__u64 low;
	// Class.
	__u64 class_number;
};

// Boundaries whose address lies in a bucket: from `begin` to before `end`.
struct weir_bucket {
	// First one; where there is none, the class of all its addresses.
	__u32 begin;
	// Behind the last one; where there is none, 0.
	__u32 end;
};

// Constant for the programs of a load, so that the verifier removes what it rules out. The fields that each packet needs are at the
// beginning, in one line of the cache.
struct weir_config {
	// WEIR_FORMAT; first, so that every version finds it.
	__u32 format;
	// Bits of a class in the tables of IPv4.
	__u32 bits;
	// Cores that there are counters for.
	__u32 cpus;
	// Blocks that there is room for.
	__u32 blocks;
	// Actions by class; one more than there are classes.
	struct weir_policy policies[256];
	// Boundaries of IPv6.
	__u32 boundaries;
	// One in so many refused packets is remembered with its source; 0: none.
	__u32 sample;
};

// Packets and bytes.
struct weir_count {
	// Packets.
	__u64 packets;
	// Bytes from the Ethernet header on.
	__u64 bytes;
};

// The counts of a core. Each packet is counted once.
struct weir_counters {
	// By direction, class and action.
	struct weir_count classes[WEIR_COUNTS];
	// By direction and reason.
	struct weir_count reasons[WEIR_REASON_COUNTS];
	// Up to a multiple of the cache's lines.
	struct weir_count padding[2];
};

// A source of refused packets.
struct weir_denied {
	// Packets that were sampled.
	__u64 packets;
	// When the last one came, CLOCK_MONOTONIC, ns.
	__u64 last_ns;
	// Its class.
	__u64 class_number;
};

// An address: IPv6, or IPv4 mapped into it.
struct weir_address {
	// Network order.
	__u8 bytes[16];
};

// Whether a process reads the events.
struct weir_follow {
	// Until when events are written, CLOCK_MONOTONIC, ns. The reader puts it off again and again: one that was killed is
	// forgotten.
	__u64 until_ns;
};

// The fate of the events of a core.
struct weir_events {
	// The window it was last in: the time, in units of WEIR_WINDOW_NS.
	__u64 window;
	// Events that were written in that window.
	__u64 in_window;
	// Events that were written.
	__u64 written;
	// Events that were not, because a window or the ring was full.
	__u64 lost;
};

// A packet that was refused or logged.
struct weir_event {
	// When, CLOCK_MONOTONIC, ns.
	__u64 time_ns;
	// Its source.
	struct weir_address source;
	// Its destination.
	struct weir_address destination;
	// Its class.
	__u32 class_number;
	// Its length from the Ethernet header on.
	__u32 bytes;
	// WEIR_HAS_PORT, WEIR_FRAGMENT, WEIR_OUT.
	__u32 flags;
	// Destination port of TCP and UDP, host order.
	__u16 port;
	// Protocol number; of IPv6 that of the first header that is no extension.
	__u8 protocol;
	// enum weir_action.
	__u8 action;
};
