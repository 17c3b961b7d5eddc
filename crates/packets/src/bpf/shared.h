// Shared by the programs in the kernel and their drivers in Rust. The build makes Rust of it: see bpf-build/src/layout.rs
// for what is understood.
#pragma once

// The mark in each frame, 16 bytes, network byte order. UDP carries it as the first bytes of its payload. A TCP SYN
// of 64 bytes has only 6 bytes of payload, so it carries `seq` as its sequence number, `sent_ns` as its acknowledgement number (which
// means nothing without the ACK flag), the low half of `cookie` as its window, and `flow` as the first four bytes of its payload.
struct weir_tag {
	// Drawn for each transfer, so that stragglers of an earlier one are foreign.
	__be32 cookie;
	// Number of the frame within its transfer, from 0, with its stream in the upper bits (see WEIR_SEQ_BITS).
	__be32 seq;
	// Number of its flow.
	__be32 flow;
	// Low 32 bits of CLOCK_MONOTONIC at sending, ns; 0: not stamped.
	__be32 sent_ns;
};

// ---- Generator.

// The upper four bits of a frame's `seq` are the number of the thread that sent it, since each counts for itself; the lower
// ones count, modulo 2^28: two numbers of one thread are compared modulo that.
#define WEIR_SEQ_BITS 28
// Most sending threads.
#define WEIR_STREAMS 16
// Bits behind the point of an interval, for a schedule that does not drift: 1e9 frames are off by under 1 us.
#define WEIR_INTERVAL_BITS 20
// Bytes of the longest headers with our mark: Ethernet, IPv6, TCP, and four of payload (14 + 40 + 20 + 4).
#define WEIR_HEAD_BYTES 80
// Most slices of a transfer that are kept.
#define WEIR_SLICES 16384

// Why a run of the generator ended as it did.
enum weir_generator_verdict {
	// The frame was made and goes where the configuration says.
	WEIR_SENT,
	// No frame is due yet.
	WEIR_EARLY,
	// As many frames as are allowed have left.
	WEIR_ALL_SENT,
	// The transfer's time is over.
	WEIR_TIME_UP,
	// The page is too short for the headers: wrongly set up.
	WEIR_UNFIT,
	// The frame was made and went to the reference router, not to the gateway.
	WEIR_REFERRED,
	// How many there are.
	WEIR_GENERATOR_VERDICTS,
};

// Fixed when the generator is loaded; the verifier removes what is not asked for.
struct weir_generator {
	// Headers of every frame, zero where frames differ (checksums, addresses, ports, mark).
	__u8 head[WEIR_HEAD_BYTES];
	// The verdict of XDP on a frame that was made: XDP_TX (out of the interface) or XDP_PASS (into its stack).
	__u32 verdict;
	// 1: TCP SYN; 0: UDP.
	__u32 tcp;
	// 1: by a schedule; 0: as fast as it goes.
	__u32 paced;
	// Number of tuples in the deck, at least 1.
	__u32 deck;
	// Frames that are made by one batch of runs; the time is read once in each.
	__u32 batch;
	// Sum of the constant 16-bit words of the IPv4 header.
	__u32 ip_sum;
	// Interface behind which the reference router is; 0: there is none.
	__u32 reference;
	// Empty.
	__u32 pad;
};

// Shared by a sending thread and its program. Written by user space before a call, by the program during it.
struct weir_sender {
	// When the first run was, with which the transfer begins: CLOCK_MONOTONIC, ns; 0 before it. The program sets it, because the
	// kernel needs some milliseconds until it runs.
	__u64 start_ns;
	// After that much time no frame is made, ns.
	__u64 duration_ns;
	// Time between two frames, ns with WEIR_INTERVAL_BITS bits behind the point.
	__u64 interval;
	// When the next frame is due, after `start_ns`, in the same unit.
	__u64 due;
	// Most frames; none are left when the transfer is closed.
	__u64 frames;
	// Time of the first frame, of the last one that was timed, and the greatest distance behind the schedule, ns.
	__u64 first_ns;
	__u64 last_ns;
	__u64 late_max_ns;
	// Runs by verdict.
	__u64 counts[WEIR_GENERATOR_VERDICTS];
	// Sum of the constant 16-bit words of the UDP or TCP checksum, with the cookie.
	__u32 sum;
	// The place of the next tuple in the deck.
	__u32 next;
	// Number of the thread, in the upper bits of `seq`.
	__u32 stream;
	// Every how many frames one is stamped, 0 none; and how many until the next.
	__u32 stamp_every;
	__u32 until_stamp;
	// The cookie of the transfer.
	__be32 cookie;
	// Run within the batch, and whether a frame of this batch waits to leave.
	__u32 run;
	__u32 waiting;
	// The verdict that ended the transfer: WEIR_ALL_SENT, WEIR_TIME_UP or WEIR_UNFIT; 0 while it goes on.
	__u32 closed;
	// How many slices there are.
	__u32 slices;
	// When the slice began, ns, and the frames sent until then; 0: the first is still to begin.
	__u64 slice_ns;
	__u64 slice_sent;
	// How long a slice lasts at least, ns.
	__u64 slice_length_ns;
	// When the reference router's turn began, ns; 0: frames go to the gateway.
	__u64 turn_ns;
	// When its batch that is timed began, ns; 0: the one before that is on its way.
	__u64 timed_ns;
	// How long its turns were, all together, ns.
	__u64 turns_ns;
};

// A slice of a transfer without a schedule.
struct weir_slice {
	// Frames sent.
	__u32 frames;
	// How long it lasted, ns, at most 2^32 - 1.
	__u32 ns;
	// How long a batch through the reference router took after it, ns.
	__u32 reference_ns;
	// Empty.
	__u32 pad;
};

// Tuple of a flow, as it is on the wire.
struct weir_tuple4 {
	// Source address.
	__be32 source;
	// Destination address.
	__be32 destination;
	// Source port, destination port.
	__be16 ports[2];
	// Number of the flow.
	__be32 flow;
};

// The same for IPv6.
struct weir_tuple6 {
	// Source address.
	__be32 source[4];
	// Destination address.
	__be32 destination[4];
	// Source port, destination port.
	__be16 ports[2];
	// Number of the flow.
	__be32 flow;
};

// ---- Receiver.

// Slots of the window of a stream; each holds 32 frames, so that a frame may come 2,097,152 others late and still be known
// from a duplicate.
#define WEIR_WINDOW_SLOTS 65536
// Bits of a block's number (a block is 32 frames) that choose the slot.
#define WEIR_WINDOW_BITS 16
// Bits of a block's number above those: how often the stream went round the window, modulo 2^7 (28 - 5 - 16).
#define WEIR_LAP_BITS 7
// Every octave of delays has 2^7 buckets, so that a bucket's middle is off by 0.4 % at most.
#define WEIR_DELAY_BITS 7
// Buckets of the delay histogram: delays below 2^8 ns have one each, and each of the 24 octaves up to 2^32 ns has 128.
#define WEIR_DELAY_BUCKETS 3328

// The fate of a frame that arrived: each has exactly one of these, and the verdict follows from it.
enum weir_arrival {
	// Not of a form that we send, or truncated: handed to the stack.
	WEIR_OTHER,
	// Like a frame of this transfer, but for its cookie: handed to the stack.
	WEIR_FOREIGN,
	// From the transfer before this one: dropped.
	WEIR_STALE,
	// From this transfer, for the first time: dropped.
	WEIR_COUNTED,
	// From this transfer, for the first time, and sent back as asked.
	WEIR_REFLECTED,
	// From this transfer, but not the first: dropped.
	WEIR_DUPLICATED,
	// From this transfer, so late that the window cannot tell whether it is the first: dropped.
	WEIR_LATE,
	// Marked as of this transfer, but of another length, of no flow of it, or with addresses or ports that its flow
	// does not have here: dropped.
	WEIR_MISTRANSLATED,
	// How many there are.
	WEIR_ARRIVALS,
};

// The frames that a receiver waits for.
struct weir_expect {
	// Number of this expectation, from 1 and modulo 2^25; marks what the window holds of it. 0: nothing is expected.
	__u32 epoch;
	// The cookie of the transfer.
	__be32 cookie;
	// The cookie of the transfer before it; the same as `cookie` if there was none.
	__be32 stale;
	// Length that the IP packet has, bytes.
	__u16 ip_bytes;
	// IP protocol: 17 or 6.
	__u8 protocol;
	// 1: frames go from responder to initiator, so that the source is known too.
	__u8 ingress;
	// 1: stamped frames are sent back.
	__u8 reflect;
	// Empty.
	__u8 pad[3];
	// Flows of the transfer, at least 1: see `Tuples` for how their ports follow from their numbers.
	__u32 flows;
	// Source ports at the initiator, at least 1.
	__u32 source_ports;
	// Destination ports at the initiator, at least 1.
	__u32 destination_ports;
	// The first source port.
	__u16 first_source_port;
	// The first destination port.
	__u16 first_destination_port;
	// The address that frames must be for: at the initiator the first of those that it sends from. IPv4 in the first word.
	__be32 own[4];
	// The address that ingress frames must come from. IPv4 in the first word.
	__be32 target[4];
};

// The counts of a core for one expectation. A whole number of cache lines, so that cores do not share one.
struct weir_arrivals {
	// Frames by `enum weir_arrival`.
	__u64 frames[WEIR_ARRIVALS];
	// The frames among those counted or reflected that came after a later one of their stream (RFC 4737).
	__u64 reordered;
	// Bytes of those counted or reflected, without check sequences.
	__u64 bytes;
	// When the first of those counted or reflected came, CLOCK_MONOTONIC, ns; 0: none did.
	__u64 first_ns;
	// When the last of them that was timed came: not the last of all where frames come in quick succession.
	__u64 last_ns;
	// Jiffy of that time.
	__u64 jiffy;
	// How many have come since.
	__u32 untimed;
	// 1: they come in quick succession.
	__u32 quick;
	// Empty.
	__u64 pad[2];
};

// Expectations that a receiver has room for: the next ones are filled in while one is in force, and while a program that
// still runs reads the one before it.
#define WEIR_EXPECTS 4

// The block of a stream with the greatest number so far, on a cache line of its own.
struct weir_highest {
	// Epoch in the upper half, number of the block in the lower.
	__u64 block;
	// Empty.
	__u64 pad[7];
};

// Set by user space for the receiver's program.
struct weir_board {
	struct weir_expect expects[WEIR_EXPECTS];
	// Which one is in force.
	__u32 current;
	// Empty.
	__u32 pad;
};

// The state that the receiver's program keeps between frames, apart from counters.
struct weir_progress {
	// Different flows seen since they were last forgotten.
	__u64 flows;
	// Empty.
	__u64 pad[7];
	// By stream.
	struct weir_highest highest[WEIR_STREAMS];
};

// A flow as it was seen, over IPv4.
struct weir_seen4 {
	// Source address.
	__be32 source;
	// Source port and destination port, side by side as in the frame; 0: not seen (nothing from source port 0 is taken in).
	__be32 ports;
};

// A flow as it was seen, over IPv6.
struct weir_seen6 {
	// Source address.
	__be32 source[4];
	// As in `weir_seen4`.
	__be32 ports;
	// Empty: the kernel rounds values up to 8 bytes.
	__u32 pad;
};
