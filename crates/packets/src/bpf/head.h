// SPDX-License-Identifier: GPL-2.0 OR MIT
// Writing a frame's headers, each in full: pages come back from the network with whatever a forwarder made of them
// (addresses, time to live, checksums). The stores are as wide as the layout allows, since they are most of the work.
#pragma once

// Offsets in the frame: Ethernet (14), IPv4 (20) or IPv6 (40), UDP (8) or TCP (20), all without options.
#define AT(data, type, offset) (*(type *)((data) + (offset)))

// The properties of one frame, without its tuple.
struct mark {
	__be32 cookie;
	__be32 seq;
	__be32 sent_ns;
};

// A one's complement sum (RFC 1071) as the checksum field's value. Words of 32 bits may be added to it as they are: 2^16 is 1 modulo
// 2^16 - 1, and the order of bytes does not matter.
static __always_inline __u16 checksum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

// UDP has no zero: it would mean that there is none (RFC 768, RFC 8200 section 8.1).
static __always_inline __u16 udp_checksum(__u64 sum)
{
	__u16 value = checksum(sum);

	return value ? value : 0xffff;
}

// Writes the header behind IP and what follows it; `sum` covers all else that its checksum does.
static __always_inline void write_transport(void *at, const volatile __u8 *head, bool tcp, __u32 ports, __u32 flow,
					    const struct mark *mark, __u64 sum)
{
	sum += (__u64)ports + flow + mark->seq + mark->sent_ns;
	AT(at, __u32, 0) = ports;
	if (tcp) {
		AT(at, __be32, 4) = mark->seq;
		AT(at, __be32, 8) = mark->sent_ns;
		// Data offset and flags, and the window, which is the low half of the cookie: its last two bytes.
		AT(at, __u16, 12) = *(const volatile __u16 *)(head + 12);
		AT(at, __u16, 14) = mark->cookie >> 16;
		// The urgent pointer is zero.
		AT(at, __u32, 16) = checksum(sum);
		AT(at, __be32, 20) = flow;
	} else {
		AT(at, __u16, 4) = *(const volatile __u16 *)(head + 4);
		AT(at, __u16, 6) = udp_checksum(sum);
		AT(at, __be32, 8) = mark->cookie;
		AT(at, __be32, 12) = mark->seq;
		AT(at, __be32, 16) = flow;
		AT(at, __be32, 20) = mark->sent_ns;
	}
}

static __always_inline void write_ipv4(void *data, const volatile struct weir_generator *config,
				       const struct weir_tuple4 *tuple, const struct mark *mark, __u32 sum)
{
	const volatile __u8 *head = config->head;
	__u64 addresses = (__u64)tuple->source + tuple->destination;

	AT(data, __u64, 0) = *(const volatile __u64 *)(head + 0);
	AT(data, __u64, 8) = *(const volatile __u64 *)(head + 8);
	AT(data, __u64, 16) = *(const volatile __u64 *)(head + 16);
	AT(data, __u16, 24) = checksum(addresses + config->ip_sum);
	AT(data, __be32, 26) = tuple->source;
	AT(data, __be32, 30) = tuple->destination;
	write_transport(data + 34, head + 34, config->tcp, *(const __u32 *)tuple->ports, tuple->flow, mark, addresses + sum);
}

static __always_inline void write_ipv6(void *data, const volatile struct weir_generator *config,
				       const struct weir_tuple6 *tuple, const struct mark *mark, __u32 sum)
{
	const volatile __u8 *head = config->head;
	__u64 addresses = 0;

	AT(data, __u64, 0) = *(const volatile __u64 *)(head + 0);
	AT(data, __u64, 8) = *(const volatile __u64 *)(head + 8);
	AT(data, __u32, 16) = *(const volatile __u32 *)(head + 16);
	AT(data, __u16, 20) = *(const volatile __u16 *)(head + 20);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		AT(data, __be32, 22 + 4 * i) = tuple->source[i];
		AT(data, __be32, 38 + 4 * i) = tuple->destination[i];
		addresses += (__u64)tuple->source[i] + tuple->destination[i];
	}
	write_transport(data + 54, head + 54, config->tcp, *(const __u32 *)tuple->ports, tuple->flow, mark, addresses + sum);
}
