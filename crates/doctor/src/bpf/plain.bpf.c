// SPDX-License-Identifier: GPL-2.0 OR MIT
// The same for kernels without type information: what the tracepoint's own event holds, and no more.
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"
#include "shared.check.h"
#include "tally.h"

char _license[] SEC("license") = "Dual MIT/GPL";

SEC("tracepoint/skb/kfree_skb")
int dropped_plain(void *ctx)
{
	struct weir_group group = {};

	if (watch.reason_at != WEIR_NOWHERE)
		bpf_probe_read_kernel(&group.reason, sizeof(group.reason), ctx + watch.reason_at);
	if (watch.location_at != WEIR_NOWHERE)
		bpf_probe_read_kernel(&group.location, sizeof(group.location), ctx + watch.location_at);
	if (watch.protocol_at != WEIR_NOWHERE)
		bpf_probe_read_kernel(&group.ethertype, sizeof(group.ethertype), ctx + watch.protocol_at);
	count(&group, 0);
	return 0;
}
