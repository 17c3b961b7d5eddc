// An array that the driver maps into its own memory. The driver sets how many entries it has.
#pragma once

#define MAPPED_ARRAY(name, content)                          \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_ARRAY);            \
		__uint(map_flags, BPF_F_MMAPABLE);           \
		__uint(max_entries, 1);                      \
		__type(key, __u32);                          \
		__type(value, content);                      \
	} name SEC(".maps")
