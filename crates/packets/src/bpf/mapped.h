/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef WEIR_MAPPED_H
#define WEIR_MAPPED_H

#include <bpf/bpf_helpers.h>

/* An array that the driver maps into its own memory; it sets the number of entries where there are more than one. */
#define MAPPED_ARRAY(name, entries, content)                                                       \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(map_flags, BPF_F_MMAPABLE);                                                 \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, content);                                                            \
	} name SEC(".maps")

#endif
