// Shared by the programs in the kernel and their driver in Rust. The build makes Rust of it: see bpf-build/src/layout.rs
// for what is understood.
#pragma once

// Mappings there may be.
#define WEIR_MAPPINGS 4096

// The action for a packet to or from an address and port that is in the table.
enum weir_what {
	// It gets the other address and port.
	WEIR_TRANSLATE,
	// It is thrown away: from outside to the container's own address, whose answers would come from the published one.
	WEIR_REFUSE,
};

// Why a packet was translated or not. Each packet is counted with one of them.
enum weir_reason {
	// It was translated and sent on.
	WEIR_TRANSLATED,
	// It is an ICMP error about a packet of a mapping, and was translated with what it quotes.
	WEIR_TRANSLATED_ERROR,
	// Neither IPv4 nor IPv6.
	WEIR_NOT_IP,
	// It is not for this host, or has a VLAN tag.
	WEIR_NOT_OURS,
	// Shorter than its headers, or than it says itself.
	WEIR_MALFORMED,
	// IPv4 options or IPv6 extension headers.
	WEIR_OPTIONS,
	// A fragment: only the first one has ports.
	WEIR_FRAGMENT,
	// Nothing that is in the table.
	WEIR_NOT_MAPPED,
	// It may not be forwarded any more (TTL or hop limit 1): the kernel says so to the sender.
	WEIR_LAST_HOP,
	// Longer than the way takes: the kernel says so to the sender, or makes fragments.
	WEIR_TOO_BIG,
	// From the container, and its way does not lead out of the outer interface; or the container's link is gone.
	WEIR_OTHER_WAY,
	// From the container, and the host forwards nothing that comes in by its bridge (sysctl `forwarding`).
	WEIR_NO_FORWARDING,
	// From the container, which opens a connection from its port: what it may do itself is for the host's rules to say.
	WEIR_OPENS,
	// From outside, with a source that is not there: one of the container's network, or of a link. The kernel judges it.
	WEIR_FALSE_SOURCE,
	// From outside to the container's own address and port: thrown away.
	WEIR_DIRECT,
	// The kernel refused to rewrite it (no memory): thrown away.
	WEIR_FAILED,
	// How many there are.
	WEIR_REASONS,
};

// The interfaces of the packets, by number.
struct weir_config {
	// Towards the clients: its address is the published one.
	__u32 outer;
	// The host's end of the container's link.
	__u32 container;
	// By which the host's routing sees the container's packets come in: its bridge, or the link itself.
	__u32 bridge;
	// The network there, of IPv4: its address, in network order, as its mask. For a network that is not known both are all ones.
	__be32 inside4;
	// Mask.
	__be32 mask4;
	// The same of IPv6.
	__be32 inside6[4];
	// Mask.
	__be32 mask6[4];
};

// An end of a connection, IPv4.
struct weir_end4 {
	// Network order, as the port.
	__be32 address;
	// Port.
	__be16 port;
	// Protocol of IP: 6 or 17.
	__u8 protocol;
	// 0.
	__u8 zero;
};

// An end of a connection, IPv6.
struct weir_end6 {
	// Network order, as the port.
	__be32 address[4];
	// Port.
	__be16 port;
	// Protocol of IP: 6 or 17.
	__u8 protocol;
	// 0.
	__u8 zero;
};

// The other IPv4 address and port.
struct weir_other4 {
	// Network order, as the port.
	__be32 address;
	// Port.
	__be16 port;
	// enum weir_what.
	__u16 what;
};

// The other IPv6 address and port.
struct weir_other6 {
	// Network order, as the port.
	__be32 address[4];
	// Port.
	__be16 port;
	// enum weir_what.
	__u16 what;
	// The new address less the old one, as a sum of 32 bits in one's complement: computed once instead of for each packet.
	__u32 difference;
};

// Packets and bytes.
struct weir_count {
	// Packets as the kernel handles them: several segments that travel as one (GSO) are one.
	__u64 packets;
	// Bytes from the Ethernet header on.
	__u64 bytes;
};
