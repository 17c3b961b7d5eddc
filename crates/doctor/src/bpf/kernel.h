// The few fields of the kernel's own structs that the programs read. libbpf finds their places when it loads them
// (CO-RE): names and types are what must be right here, not the layout.
#pragma once

#define KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} KERNEL;

struct dst_entry {
	struct net_device *dev;
} KERNEL;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	possible_net_t skc_net;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
} KERNEL;

struct request_sock {
	struct sock_common __req_common;
} KERNEL;

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	char cb[48];
	unsigned long _skb_refdst;
	unsigned int len;
	__be16 protocol;
	__u16 network_header;
	__u32 mark;
	int skb_iif;
	// An offset on 64-bit machines.
	unsigned int tail;
	unsigned char *head;
	unsigned char *data;
} KERNEL;

struct iphdr {
	__u8 protocol;
} KERNEL;

struct ipv6hdr {
	__u8 nexthdr;
} KERNEL;

// In `cb` of segments that TCP keeps until they are acknowledged.
struct tcp_skb_cb {
	__u16 tcp_gso_size;
} KERNEL;

// include/net/dst.h: the lowest bit says that no reference is held.
#define SKB_DST_PTRMASK (~1UL)

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define AF_INET 2
#define AF_INET6 10
#define AF_PACKET 17
