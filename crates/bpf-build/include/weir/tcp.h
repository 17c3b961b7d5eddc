// The header of TCP (RFC 9293 section 3.1).
#pragma once

// TCP flags, 13 bytes behind the beginning of its header.
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define URG 0x20
#define ECE 0x40

struct tcp_head {
	__be32 ports;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};
