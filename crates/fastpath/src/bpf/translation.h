// Shared by the programs of static translation and their driver in Rust. The build makes Rust of it: see bpf-build/src/layout.rs for
// what is understood.
#pragma once

// Why a packet was translated or not. Each packet is counted with one of them.
enum weir_step {
	// It was translated and sent on.
	WEIR_TRANSLATED,
	// It is an ICMP error, and was translated with the packet that it quotes.
	WEIR_TRANSLATED_ERROR,
	// Not of the IP version of the prefixes.
	WEIR_NOT_IP,
	// It is not for this host by its Ethernet address, or has a VLAN tag.
	WEIR_NOT_OURS,
	// Shorter than its headers or than it says itself, or with a wrong header checksum.
	WEIR_MALFORMED,
	// IPv4 options or IPv6 extension headers other than a fragment's.
	WEIR_OPTIONS,
	// A fragment of an ICMP error.
	WEIR_FRAGMENT,
	// Neither from nor to the prefix, or an error about a packet that is not.
	WEIR_NOT_MAPPED,
	// An address of the prefix that RFC 6296 cannot translate (section 3.4 and 3.5).
	WEIR_NO_IMAGE,
	// Protocols whose checksums or signatures cover the addresses and are not known here, and neighbour discovery.
	WEIR_OTHER_PROTOCOL,
	// Source or destination is no unicast address that may cross a router, or the source is of the inside and comes from outside.
	WEIR_FALSE_ADDRESS,
	// It may not be forwarded any more (TTL or hop limit 1): the kernel says so to the sender.
	WEIR_LAST_HOP,
	// Longer than the way takes: the kernel says so to the sender, or makes fragments.
	WEIR_TOO_BIG,
	// Its way does not lead out of the other interface.
	WEIR_OTHER_WAY,
	// The host does not forward what comes in there (sysctl `forwarding`).
	WEIR_NO_FORWARDING,
	// The kernel refused to rewrite it (no memory): dropped.
	WEIR_FAILED,
	// How many there are.
	WEIR_STEPS,
};

// Interfaces and prefixes. IPv4 addresses are in the first word.
struct weir_translation {
	// Index of the interface of the inside.
	__u32 inside_interface;
	// Index of the interface of the outside.
	__u32 outside_interface;
	// Bits of the prefixes, network order.
	__be32 mask[4];
	// The prefix of the inside.
	__be32 inside[4];
	// The prefix of the outside.
	__be32 outside[4];
	// 1: addresses are IPv6.
	__u16 ipv6;
	// 1: another part of the address takes up what the prefix changes in checksums (RFC 6296).
	__u16 neutral;
	// Added to that part of an inside address, in one's complement.
	__u16 adjustment;
	// The part of 16 bits that takes it up: 3, or 4 for the first of 4 to 7 that is not all ones.
	__u16 part;
};

// Packets and bytes.
struct weir_translated {
	// Packets as the kernel handles them: several segments that travel as one (GSO) are one.
	__u64 packets;
	// Bytes from the Ethernet header on.
	__u64 bytes;
};
