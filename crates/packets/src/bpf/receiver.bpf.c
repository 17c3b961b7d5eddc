// SPDX-License-Identifier: GPL-2.0 OR MIT
// Counts what arrives.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "shared.h"
#include "shared.check.h"

char _license[] SEC("license") = "Dual MIT/GPL";
