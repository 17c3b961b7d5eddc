// The kernel's conntrack functions for BPF (net/netfilter/nf_conntrack_bpf.c, Linux 5.18), which know TCP and UDP. Weak: a program
// that calls none of them loads on a kernel without them.
#pragma once

struct nf_conn;

// As Linux 5.18 has it; later kernels also take the shorter one.
struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	// Set by the kernel: 0 if the tuple is that of the side that began, 1 for an answer.
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size,
					 struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;
