// SPDX-License-Identifier: GPL-2.0 OR MIT
// Up to 254 lists: 8 bits for each /24, 32 MiB.
#define BITS 8
#define ESTABLISHED_FIRST 0
#include "filter.h"
