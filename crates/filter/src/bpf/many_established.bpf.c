// SPDX-License-Identifier: GPL-2.0 OR MIT
// As many.bpf.c, with established connections first: the kernel must have the functions for that.
#define BITS 8
#define ESTABLISHED_FIRST 1
#include "filter.h"
