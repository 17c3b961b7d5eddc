// Constants and structs that the programs in the kernel and their driver in Rust share. The build makes Rust of it: see
// bpf-build/src/layout.rs for what is understood.
#pragma once

// Ranges of sequence numbers that a side has skipped and not sent since.
#define WEIR_HOLES 16
// Segments that were sent again of late.
#define WEIR_RECENT 16
// Buckets of a histogram of round trips: two for each power of two, from 16 us on.
#define WEIR_BUCKETS 32

// Queries of a client to a DNS server that may await their answers at a time.
#define WEIR_QUERIES 32
// An answer that takes longer is none, ns: by then a resolver asks again or gives up (resolv.conf(5), timeout).
#define WEIR_DNS_PATIENCE 5000000000

// Addresses and ports of one direction, as its packets come in. IPv4 takes the first word.
struct weir_ends {
	__be32 source[4];
	__be32 destination[4];
	__be16 source_port;
	__be16 destination_port;
	// 4 or 6.
	__u8 version;
	__u8 protocol;
	__u8 unused[2];
};

// The parts of a packet that its flow is judged by.
struct weir_packet {
	// CLOCK_MONOTONIC, ns.
	__u64 now;
	__u32 seq;
	__u32 ack;
	// Payload, bytes.
	__u32 length;
	// The IP packet, bytes.
	__u32 bytes;
	// Segments on the wire: more than one where the card or the stack put them together.
	__u32 segments;
	// TSval and TSecr (RFC 7323).
	__u32 stamp;
	__u32 echo;
	// The first two blocks of SACK (RFC 2018), each a beginning and an end.
	__u32 sack[4];
	// As in the header, without its scale.
	__u16 window;
	// TCP flags.
	__u8 flags;
	// Side that sent it: 0 began the flow.
	__u8 side;
	// WEIR_HAS_..
	__u32 has;
	// Offset of the header behind that of IP, bytes.
	__u32 transport;
};

// A packet in work.
struct weir_work {
	struct weir_ends ends;
	struct weir_packet packet;
	// Stands for its direction among those outside of the sample; 0: it is not marked.
	__u64 mark;
};

// It has a timestamp.
#define WEIR_HAS_STAMP 1
// It has a block of SACK.
#define WEIR_HAS_SACK 2
// It has two.
#define WEIR_HAS_SACKS 4
// A router has marked it.
#define WEIR_HAS_MARK 8
// A SYN with the option for scaled windows; its shift follows (RFC 7323 section 2.2).
#define WEIR_HAS_SCALE 16
#define WEIR_SCALE_AT 8

// The parts of a UDP packet that its flow is judged by.
struct weir_datagram {
	// CLOCK_MONOTONIC, ns.
	__u64 now;
	// The IP packet, bytes.
	__u32 bytes;
	// Datagrams on the wire: more than one where the card or the stack put them together.
	__u32 segments;
	// DNS: its identification, the port of the client, and its flags in the host's order (RFC 1035 section 4.1.1).
	__be16 id;
	__be16 port;
	__u16 dns;
	// Side that sent it: 0 began the flow.
	__u8 side;
	// WEIR_IS_DNS, WEIR_IS_QUIC.
	__u8 has;
};

// A UDP packet in work: its parts, and the ends of both directions of its flow.
struct weir_udp_work {
	struct weir_datagram datagram;
	struct weir_ends both[2];
};

// Sequence numbers that were skipped.
struct weir_hole {
	__u32 from;
	// Behind its last one; equal to `from`: no hole.
	__u32 to;
	// When it was skipped, us.
	__u32 at;
	// TSval of the segment that skipped it.
	__u32 stamp;
	// When an answer passed that shows it to the sender, us, and TSval of that answer.
	__u32 told_at;
	__u32 told_stamp;
	// 1: such an answer has passed. 2: the segments have timestamps. 4: the segment before it was overtaken, and filled its first part.
	__u32 state;
};

// A segment that filled a hole, or came again.
struct weir_again {
	__u32 from;
	__u32 to;
	__u32 stamp;
	// How it was counted: WEIR_FILLED .. WEIR_ANSWERED, or 0.
	__u16 kind;
	// Segments.
	__u16 segments;
};

// It filled a hole, and was counted as lost before this host.
#define WEIR_FILLED 1
// The same, and it was sent within one tick of what had skipped the hole.
#define WEIR_GUESSED 2
// It was counted as sent needlessly at once.
#define WEIR_NEEDLESS 3
// It was here already, and was counted as lost behind this host.
#define WEIR_REPEATED 4
// The same, and an acknowledgement has passed since.
#define WEIR_ANSWERED 5

// Round trips between this host and one side.
struct weir_trips {
	// The smallest one, ns; 0: none yet. Also from timestamps.
	__u64 smallest;
	// Smoothed by an eighth (RFC 6298), ns.
	__u64 smoothed;
	// How many are in the histogram, and their sum, ns.
	__u64 count;
	__u64 total;
	__u32 buckets[WEIR_BUCKETS];
};

// For what a sender waits before it sends more.
enum weir_limit {
	// Its program supplies no more.
	WEIR_BY_APPLICATION,
	// The receive window of the other side is full.
	WEIR_BY_RECEIVER,
	// The congestion window, after a loss or over a queue.
	WEIR_BY_NETWORK,
	// Its send buffer, or a limit of its own: no more is under way, though nothing else stops it.
	WEIR_BY_SENDER,
	// The congestion window grows, or the scale of the receive window is not known.
	WEIR_BY_UNCLEAR,
	// How many there are.
	WEIR_LIMITS,
};

// How a side waits as a sender: see limits.h.
struct weir_wait {
	// Time by limit, ns.
	__u64 by[WEIR_LIMITS];
	// Until when time is in `by`, ns; 0: nothing was sent yet.
	__u64 since;
	// When an answer passed that the sender will know of a round trip later; 0: none is awaited.
	__u64 mark_at;
	// When an acknowledgement of more passed last.
	__u64 acked_at;
	// When the present period began, over which growth is judged.
	__u64 period_at;
	// Timestamp of that answer, and, as they were before it, the highest acknowledgement and the end of the window.
	__u32 mark_stamp;
	__u32 mark_acked;
	__u32 mark_edge;
	// Behind the last number that the other side allows.
	__u32 edge;
	// Most bytes under way in this period, and in the one before.
	__u32 most;
	__u32 most_before;
	// Losses at the last judgement, their lower half.
	__u32 lost;
	// Shift of the windows that this side announces, and 1; 0: none.
	__u32 scale;
	// WEIR_WAIT_..
	__u32 flags;
	// Short pauses since growth was judged last.
	__u32 pauses;
};

// `edge` is valid.
#define WEIR_WAIT_EDGE 1
// The answer has a timestamp.
#define WEIR_WAIT_STAMPED 2
// The newest segment is shorter than others: the program had no more to send.
#define WEIR_WAIT_SHORT 4
// The last period brought no growth and no loss.
#define WEIR_WAIT_STEADY 8
// A loss, or a mark of which an answer told (RFC 3168), since the last long pause.
#define WEIR_WAIT_LOSSY 16
// There was one in this period.
#define WEIR_WAIT_LOST 32

// One side of a flow, and the way between it and this host.
struct weir_side {
	// Sums over the packets that it sent, as they came in.
	__u64 bytes;
	__u64 packets;
	// Segments with data or FIN.
	__u64 segments;
	// Segments that were not here before: first copies.
	__u64 fresh;
	// First copies that were lost before they came here.
	__u64 lost_before;
	// Copies that were lost after they came here.
	__u64 lost_behind;
	// Segments that came later than their followers, and were not lost.
	__u64 reordered;
	// Segments sent again although they had arrived.
	__u64 needless;
	// Segments sent again of which the first acknowledgement does not tell whether they had arrived. They count as lost.
	__u64 unclear;
	// Segments that the other side has and that never came here.
	__u64 bypassed;
	// First copies after a silence in which one may have been lost without a trace, and second ones that may have been lost in a silence.
	__u64 doubtful;
	// All first copies after such a silence, also those that are too short to be a second copy of a full segment.
	__u64 pauses;
	// Segments that found no place in the list of holes, and are not judged.
	__u64 unjudged;
	// SYNs, with and without ACK.
	__u64 syns;
	__u64 resets;
	// How often it closed its receive window, and for how long in all, ns.
	__u64 zero_windows;
	__u64 shut;
	// Packets marked with "congestion experienced" (RFC 3168).
	__u64 marked;
	struct weir_trips trips;
	// When it sent last, ns.
	__u64 last;
	// The segment whose acknowledgement is awaited: when it came (0: none), and its end.
	__u64 timed_at;
	// When it closed its window; 0: it is open.
	__u64 shut_at;
	// The timestamp whose echo is awaited: when it came (0: none).
	__u64 stamped_at;
	__u32 stamped;
	// The newest timestamp that it sent.
	__u32 newest;
	__u32 timed;
	// Behind the highest sequence number that came.
	__u32 next;
	// The highest one that was acknowledged.
	__u32 acked;
	// No segment up to here is timed: something before it was lost.
	__u32 careful;
	// Largest segment, bytes.
	__u32 largest;
	// Copies up to here may fill a hole that found no place in the list, or be those of segments from before the watch.
	__u32 unsure;
	// WEIR_KNOWS_..
	__u32 knows;
	// Place of the next segment in `again`.
	__u32 turn;
	// Longest segment on the wire, bytes, also of several that were put together; 0: none yet.
	__u32 longest;
	// Longest one that the other side has acknowledged as a whole, bytes.
	__u32 carried;
	// How often the first segment without an acknowledgement came again, and its shortest copy, bytes. An acknowledgement ends both.
	__u32 stuck;
	__u32 stuck_bytes;
	struct weir_wait wait;
	struct weir_hole holes[WEIR_HOLES];
	struct weir_again again[WEIR_RECENT];
};

// `next` is valid.
#define WEIR_KNOWS_NEXT 1
// `acked` is valid.
#define WEIR_KNOWS_ACKED 2
// `newest` is valid.
#define WEIR_KNOWS_STAMP 4
// `unsure` is valid.
#define WEIR_IS_UNSURE 8
// Segments from before the watch may be under way: the numbers that it skips may have passed by then.
#define WEIR_IS_EARLY 16
// Copies that the silence before its latest segment may hide: bits from here on. One that a time-out sends goes alone until it is answered.
#define WEIR_HIDDEN_SHIFT 8

// ICMP errors about a flow: their number, and the latest one.
struct weir_errors {
	__u32 count;
	// MTU of a packet that was too big (RFC 1191, RFC 8201), bytes; 0: it names none.
	__u32 mtu;
	// Its sender. IPv4 takes the first word.
	__be32 from[4];
	// 4 or 6.
	__u8 version;
	__u8 kind;
	__u8 code;
	// The side whose packet it is about.
	__u8 side;
	__u32 unused;
};

// A sender of ICMP errors and their kind.
struct weir_reporter {
	__be32 from[4];
	__u8 version;
	__u8 kind;
	__u8 code;
	__u8 unused;
};

// Their number, and the smallest MTU of all.
struct weir_reported {
	__u64 packets;
	__u32 mtu;
	__u32 unused;
};

// A flow.
struct weir_flow {
	// As packets of either side come in.
	struct weir_ends ends[2];
	// Interfaces by which they come.
	__u32 interfaces[2];
	// When its first and its last packet came, ns.
	__u64 born;
	__u64 last;
	// Connections that had these ends, one after the other.
	__u32 connections;
	// WEIR_IS_..
	__u32 state;
	// Its number in the draw of the sample.
	__u32 draw;
	__u32 unused;
	struct weir_errors errors;
	struct weir_side sides[2];
};

// The ends of the answers are known.
#define WEIR_IS_JOINED 1
// It began with a SYN.
#define WEIR_IS_WHOLE 2
// The SYN, or the first packets of UDP, await an answer.
#define WEIR_IS_OPENING 4
// The first side has sent FIN.
#define WEIR_IS_ENDED0 8
// The second one.
#define WEIR_IS_ENDED1 16
// There was a reset.
#define WEIR_IS_RESET 32

// It has had a long header of QUIC (RFC 9000 section 17.2).
#define WEIR_IS_QUIC 64
// It is DNS: all flows of the client with that server, whatever port of the client.
#define WEIR_IS_DNS 128

// A flow in the table.
struct weir_slot {
	__u32 lock;
	// 1: in use.
	__u32 used;
	struct weir_flow flow;
};

// One side of a UDP flow.
struct weir_udp_side {
	// Sums over the packets that it sent, as they came in.
	__u64 bytes;
	__u64 packets;
	// When it sent last, ns.
	__u64 last;
	// Packets that it has sent since the other side sent last, and when the first of them came, ns.
	__u64 unanswered;
	__u64 unanswered_at;
	// The longest time over which it sent without an answer, from the first such packet to the last, ns.
	__u64 silence;
};

// A query that awaits its answer.
struct weir_query {
	// When it came, ns; 0: none.
	__u64 at;
	__be16 id;
	__be16 port;
	__u32 unused;
};

// DNS of a client with a server.
struct weir_dns {
	// Queries, without those that came again.
	__u64 queries;
	// Queries that came again while they awaited their answer.
	__u64 repeated;
	// Answers in time.
	__u64 answers;
	// Queries without one, of those that are no longer in `waiting`.
	__u64 unanswered;
	// Queries that others pushed out of `waiting`: they are not judged.
	__u64 unjudged;
	// Answers too late, or to no query that was seen.
	__u64 unasked;
	// Answers in time by their code, and those that were cut (TC).
	__u64 servfail;
	__u64 nxdomain;
	__u64 refused;
	__u64 other_failure;
	__u64 truncated;
	// From the query to its answer.
	struct weir_trips times;
	// The place that is taken next if none is free.
	__u32 turn;
	__u32 unused;
	struct weir_query waiting[WEIR_QUERIES];
};

// A UDP flow. It begins as a `weir_flow` does.
struct weir_udp_flow {
	struct weir_ends ends[2];
	__u32 interfaces[2];
	__u64 born;
	__u64 last;
	__u32 connections;
	__u32 state;
	__u32 draw;
	__u32 unused;
	struct weir_errors errors;
	struct weir_udp_side sides[2];
	struct weir_dns dns;
};

// A UDP flow in its table.
struct weir_udp_slot {
	__u32 lock;
	// 1: in use.
	__u32 used;
	struct weir_udp_flow flow;
};
