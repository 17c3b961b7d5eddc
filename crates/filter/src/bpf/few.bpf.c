// SPDX-License-Identifier: GPL-2.0 OR MIT
// Two lists at most, and the default: 2 bits for each /24, 8 MiB.
#define BITS 2
#define ESTABLISHED_FIRST 0
#include "filter.h"
