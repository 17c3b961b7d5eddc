// The packets that a program saw and had no room to note, so that its figures never look whole when they are not.
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_lost);
} lost SEC(".maps");

// The count of this core.
static __always_inline struct weir_lost *lost_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&lost, &zero);
}
