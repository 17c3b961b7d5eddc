// SPDX-License-Identifier: GPL-2.0 OR MIT
// What a run costs that does nothing: the others are compared with it.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual MIT/GPL";

SEC("tc")
int empty(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_UNSPEC;
}
