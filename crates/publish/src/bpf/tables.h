// The tables: who becomes whom, and what was counted.
#pragma once

const volatile struct weir_config config;

// The driver sets how many entries they have.
#define TABLE(name, key_type, value_type)            \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_HASH);     \
		__uint(max_entries, 1);              \
		__type(key, struct key_type);        \
		__type(value, struct value_type);    \
	} name SEC(".maps")

// By destination: the published ends, and the container's own, which are refused.
TABLE(in4, weir_end4, weir_other4);
TABLE(in6, weir_end6, weir_other6);
// By source: the container's ends.
TABLE(out4, weir_end4, weir_other4);
TABLE(out6, weir_end6, weir_other6);

// By direction (0 in, 1 out) and reason; the last one counts how often the kernel was asked for a way out.
#define WEIR_ASKED (2 * WEIR_REASONS)
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEIR_ASKED + 1);
	__type(key, __u32);
	__type(value, struct weir_count);
} counts SEC(".maps");

static __always_inline void count(const struct packet *p, __u32 at)
{
	struct weir_count *mine = bpf_map_lookup_elem(&counts, &at);

	if (mine) {
		mine->packets++;
		mine->bytes += p->bytes;
	}
}
