// The tuples of a tracked connection. libbpf finds the places of the fields when it loads the programs (CO-RE): names and types must be
// right here, not the layout.
#pragma once

#define KERNEL __attribute__((preserve_access_index))

union nf_inet_addr {
	__be32 all[4];
};

union nf_conntrack_man_proto {
	__be16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} KERNEL;

// The kernel's has a struct without a name in it.
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u8 protonum;
		__u8 dir;
	} dst;
} KERNEL;

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} KERNEL;
