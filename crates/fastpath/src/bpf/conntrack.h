// The few fields of the kernel's connection tracking that the programs read.
#pragma once

#include "weir/ct.h"
#include "weir/tuple.h"

// enum ip_conntrack_status (linux/netfilter/nf_conntrack_common.h).
#define IPS_SEEN_REPLY (1ul << 1)
#define IPS_ASSURED (1ul << 2)
#define IPS_CONFIRMED (1ul << 3)
#define IPS_SEQ_ADJUST (1ul << 6)
#define IPS_DYING (1ul << 9)
#define IPS_HELPER (1ul << 13)
#define IPS_OFFLOAD (1ul << 14)
#define IPS_HW_OFFLOAD (1ul << 15)
#define IPS_NAT_CLASH (1ul << 16)
// enum tcp_conntrack (linux/netfilter/nf_conntrack_tcp.h).
#define TCP_CONNTRACK_ESTABLISHED 3
// IP_CT_TCP_FLAG_BE_LIBERAL, likewise.
#define TCP_BE_LIBERAL 0x08
// IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED, likewise.
#define TCP_DATA_UNACKNOWLEDGED 0x10

struct ip_ct_tcp_state {
	__u8 flags;
} KERNEL;

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
} KERNEL;

struct nf_ct_udp {
	unsigned long stream_ts;
} KERNEL;

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
	struct nf_ct_udp udp;
} KERNEL;

struct nf_ct_ext;
struct net;

struct nf_conn {
	__u32 timeout;
	struct {
		struct net *net;
	} ct_net;
	struct nf_ct_ext *ext;
	unsigned long status;
	struct nf_conn *master;
	struct nf_conntrack_tuple_hash tuplehash[2];
	union nf_conntrack_proto proto;
} KERNEL;

extern int bpf_ct_change_timeout(struct nf_conn *ct, __u32 ms) __ksym __weak;
