// The order of loads and stores between cores.
#pragma once

#ifdef __TARGET_ARCH_x86
// Loads are not reordered with loads, nor stores with stores (Intel SDM 3A, 9.2.2): the compiler alone must keep the order.
#define order() asm volatile("" ::: "memory")
#else
// An atomic operation that returns a value orders everything (Documentation/bpf/linux-notes.rst).
static __always_inline void order(void)
{
	__u32 unused = 0;

	__sync_fetch_and_add(&unused, 1);
}
#endif
