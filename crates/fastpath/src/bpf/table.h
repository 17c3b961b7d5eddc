// The flow table: buckets of entries, read without a lock. An entry's writer marks it busy by an atomic exchange of its state; its
// reader compares the state before and after.
#pragma once

const volatile struct weir_config config SEC(".rodata.config");
volatile struct weir_control control SEC(".data.control");

#define MAPPED_ARRAY(name, content)                          \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_ARRAY);            \
		__uint(map_flags, BPF_F_MMAPABLE);           \
		__uint(max_entries, 1);                      \
		__type(key, __u32);                          \
		__type(value, content);                      \
	} name SEC(".maps")

// The driver sets how many there are.
MAPPED_ARRAY(flows4, struct weir_bucket4);
MAPPED_ARRAY(flows6, struct weir_bucket6);
// Packets of flows that are in no bucket: the upper 16 bits tell flows of one cell apart, the lower ones count.
MAPPED_ARRAY(cells, __u32);

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

// Addresses and ports of one direction. `words` of an address: 1 (IPv4) or 4; it is a constant wherever it is used.
struct ends {
	__be32 source[4];
	__be32 destination[4];
	__be32 ports;
};

static __always_inline bool same(const __be32 *a, const __be32 *b, int words)
{
	__be32 difference = a[0] ^ b[0];

	if (words == 4)
		difference |= (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]);
	return !difference;
}

static __always_inline void copy(__be32 *to, const __be32 *from, int words)
{
	to[0] = from[0];
	if (words == 4) {
		to[1] = from[1];
		to[2] = from[2];
		to[3] = from[3];
	}
}

// Both Ethernet addresses in three words: from and to bytes, the compiler would copy each by itself.
static __always_inline void copy_macs(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
}

// The place of the words of an entry, behind its way.
#define SOURCE(words) 0
#define DESTINATION(words) (words)
#define PORTS(words) (2 * (words))
#define TO_SOURCE(words) (2 * (words) + 1)
#define TO_DESTINATION(words) (3 * (words) + 1)
#define TO_PORTS(words) (4 * (words) + 1)

static __always_inline __be32 *words_of(struct weir_way *way)
{
	return (__be32 *)(way + 1);
}

static __always_inline __be32 swapped(__be32 ports)
{
	return ports << 16 | ports >> 16;
}

static __always_inline __u64 mixed(__u64 sum, __u64 word)
{
	sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
	return sum ^ sum >> 32;
}

// A keyed multiplicative hash. Entries of a live flow are never evicted, so that guessed collisions cost an attacker's own flows only.
static __always_inline __u64 hash_of(const struct ends *e, bool udp, int words)
{
	__u64 sum = config.seed;

	sum = mixed(sum, (__u64)e->source[0] << 32 | e->destination[0]);
	if (words == 4) {
		sum = mixed(sum, (__u64)e->source[1] << 32 | e->source[2]);
		sum = mixed(sum, (__u64)e->source[3] << 32 | e->destination[1]);
		sum = mixed(sum, (__u64)e->destination[2] << 32 | e->destination[3]);
	}
	return mixed(sum, (__u64)e->ports << 1 | udp);
}

#define STRIDE(words) ((words) == 1 ? sizeof(struct weir_flow4) : sizeof(struct weir_flow6))

// The first entry of its bucket.
static __always_inline void *bucket_of(__u64 hash, int words)
{
	__u32 at;

	if (words == 1) {
		at = hash & config.mask4;
		return bpf_map_lookup_elem(&flows4, &at);
	}
	at = hash & config.mask6;
	return bpf_map_lookup_elem(&flows6, &at);
}

static __always_inline __u32 state_of(const struct weir_way *way)
{
	return *(volatile const __u32 *)&way->state;
}

static __always_inline bool is_of(struct weir_way *way, __u32 state, const struct ends *e, bool udp, int words)
{
	__be32 *w = words_of(way);

	return (state & WEIR_PHASE_MASK) == WEIR_VALID && !(state & WEIR_UDP) == !udp && w[PORTS(words)] == e->ports &&
	       same(w + SOURCE(words), e->source, words) && same(w + DESTINATION(words), e->destination, words);
}

// The entry of these ends, and the state that it was found in.
static __always_inline struct weir_way *find(void *bucket, const struct ends *e, bool udp, int words, __u32 *found)
{
#pragma unroll
	for (int i = 0; i < WEIR_WAYS; i++) {
		struct weir_way *way = bucket + i * STRIDE(words);
		__u32 state = state_of(way);

		order();
		if (is_of(way, state, e, udp, words)) {
			*found = state;
			return way;
		}
	}
	return NULL;
}

static __always_inline __u32 changed(__u32 state)
{
	return (state & ~WEIR_CHANGES_MASK) | ((state + WEIR_CHANGE) & WEIR_CHANGES_MASK);
}

static __always_inline __u32 in_phase(__u32 state, enum weir_phase phase)
{
	return (state & ~WEIR_PHASE_MASK) | phase;
}

// Empties the entry, if it still is what was found.
static __always_inline void forget(struct weir_way *way, __u32 state)
{
	__sync_val_compare_and_swap(&way->state, state, in_phase(changed(state), WEIR_EMPTY));
}

static __always_inline __u32 generation_bits(void)
{
	return control.generation << WEIR_GENERATION_SHIFT;
}

static __always_inline bool is_past(__u32 due)
{
	return (__s32)((__u32)bpf_jiffies64() - due) >= 0;
}
