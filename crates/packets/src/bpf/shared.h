// What the programs in the kernel and their drivers in Rust share. The build makes Rust of it: see bpf-build/src/layout.rs
// for what is understood.

// First four bytes of a UDP frame's payload: marks our frames, together with the transfer's cookie.
#define WEIR_MAGIC 0x77656972
// Slots of the receiver's window for telling duplicates and lateness: each holds 32 frames.
#define WEIR_WINDOW_SLOTS 65536
// Buckets of the delay histogram.
#define WEIR_DELAY_BUCKETS 4096

// The mark in each frame, 16 bytes, network byte order. UDP carries it as the first bytes of its payload. A TCP SYN
// of 64 bytes has only 6 bytes of payload, so it carries `seq` as its sequence number, `sent_ns` as its acknowledgement number (which
// means nothing without the ACK flag), the low half of `cookie` as its window, and `flow` as the first four bytes of its payload.
struct weir_tag {
	// Drawn for each transfer, so that stragglers of an earlier one are foreign.
	__be32 cookie;
	// Number of the frame within its transfer, from 0.
	__be32 seq;
	// Number of its flow.
	__be32 flow;
	// Low 32 bits of CLOCK_MONOTONIC at sending, ns; 0: not stamped.
	__be32 sent_ns;
};
