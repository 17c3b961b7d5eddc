// Hands packets to the program on trial until its time is over, and from then on to the program before it. Needs no process.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"
#include "shared.check.h"

char _license[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

// CLOCK_BOOTTIME, ns: goes on while the machine sleeps, and cannot be set.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} until SEC(".maps");

static __always_inline __u32 turn(void)
{
	__u32 zero = 0;
	__u64 *end = bpf_map_lookup_elem(&until, &zero);

	return end && bpf_ktime_get_boot_ns() < *end ? WEIR_TRIAL : WEIR_BEFORE;
}

// Without such a program the packet goes on.

SEC("tc")
int gate_tc(struct __sk_buff *ctx)
{
	bpf_tail_call(ctx, &programs, turn());
	return TC_ACT_UNSPEC;
}

SEC("xdp")
int gate_xdp(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &programs, turn());
	return XDP_PASS;
}
