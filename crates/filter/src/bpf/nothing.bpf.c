// SPDX-License-Identifier: GPL-2.0 OR MIT
// Programs that do nothing: what being called costs, for examples/filter_costs.rs to compare with.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual MIT/GPL";

SEC("tc")
int nothing_at_tc(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_UNSPEC;
}

SEC("xdp")
int nothing_at_xdp(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}
