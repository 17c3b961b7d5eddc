// The flow table: buckets of entries, read without a lock, each with a label. An entry's writer marks it busy by an atomic exchange of
// its state; its reader compares the state before and after.
#pragma once

const volatile struct weir_config config SEC(".rodata.config");
volatile struct weir_control control SEC(".data.control");

// The driver sets how many there are.
MAPPED_ARRAY(flows4, struct weir_bucket4);
MAPPED_ARRAY(flows6, struct weir_bucket6);
MAPPED_ARRAY(labels4, struct weir_label);
MAPPED_ARRAY(labels6, struct weir_label);

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

// The hash is keyed. Entries of a live flow are never evicted, so that guessed collisions cost an attacker's own flows only.
static __always_inline __u64 hash_of(const struct ends *e, bool udp, int words)
{
	return hashed(config.seed, e, udp, words);
}

#define STRIDE(words) ((words) == 1 ? sizeof(struct weir_flow4) : sizeof(struct weir_flow6))

// The first entry of its bucket.
static __always_inline void *bucket_of(__u64 hash, int words)
{
	__u32 at;

	if (words == 1) {
		at = hash & control.mask4;
		return bpf_map_lookup_elem(&flows4, &at);
	}
	at = hash & control.mask6;
	return bpf_map_lookup_elem(&flows6, &at);
}

static __always_inline struct weir_label *label_of(__u64 hash, int words)
{
	__u32 at;

	if (words == 1) {
		at = hash & control.mask4;
		return bpf_map_lookup_elem(&labels4, &at);
	}
	at = hash & control.mask6;
	return bpf_map_lookup_elem(&labels6, &at);
}

// Bits that choose neither a bucket, of which there are at most 1 << 24, nor whose turn it is (`is_turn`).
static __always_inline __u8 tag_of(__u64 hash)
{
	return hash >> 24;
}

// The place in a bucket that an entry of this hash has, unless another one was there before it. Nothing else takes these bits.
static __always_inline void *place_of(void *bucket, __u64 hash, int words)
{
	return bucket + (hash >> 32 & (WEIR_WAYS - 1)) * STRIDE(words);
}

static __always_inline __u32 state_of(const struct weir_way *way)
{
	return *(volatile const __u32 *)&way->state;
}

static __always_inline bool is_of(struct weir_way *way, __u32 state, const struct ends *e, bool udp, int words)
{
	__be32 *w = words_of(way);

	return !(state & WEIR_UDP) == !udp && w[PORTS(words)] == e->ports &&
	       same(w + SOURCE(words), e->source, words) && same(w + DESTINATION(words), e->destination, words);
}

static __always_inline bool is_it(struct weir_way *way, enum weir_phase phase, const struct ends *e, bool udp, int words, __u32 *found)
{
	__u32 state = state_of(way);

	order();
	if ((state & WEIR_PHASE_MASK) != phase || !is_of(way, state, e, udp, words))
		return false;
	*found = state;
	return true;
}

// The valid entry of these ends, if it is where its hash names.
static __always_inline struct weir_way *find_placed(__u64 hash, const struct ends *e, bool udp, int words, __u32 *found)
{
	void *bucket = bucket_of(hash, words);
	struct weir_way *way;

	if (!bucket)
		return NULL;
	way = place_of(bucket, hash, words);
	return is_it(way, WEIR_VALID, e, udp, words, found) ? way : NULL;
}

// The entry of these ends in that phase, and the state that it was found in.
static __always_inline struct weir_way *find_by(const struct weir_label *label, __u64 hash, enum weir_phase phase, const struct ends *e,
						bool udp, int words, __u32 *found)
{
	// A byte of 0: the entry may be it.
	__u32 differs = *(volatile const __u32 *)label->tags ^ tag_of(hash) * 0x01010101u;
	void *bucket;

	if (!((differs - 0x01010101) & ~differs & 0x80808080))
		return NULL;
	order();
	bucket = bucket_of(hash, words);
	if (!bucket)
		return NULL;
#pragma unroll
	for (int i = 0; i < WEIR_WAYS; i++) {
		struct weir_way *way = bucket + i * STRIDE(words);

		if (!(differs >> 8 * i & 0xff) && is_it(way, phase, e, udp, words, found))
			return way;
	}
	return NULL;
}

static __always_inline struct weir_way *find_in(__u64 hash, enum weir_phase phase, const struct ends *e, bool udp, int words,
						__u32 *found)
{
	const struct weir_label *label = label_of(hash, words);

	return label ? find_by(label, hash, phase, e, udp, words, found) : NULL;
}

static __always_inline struct weir_way *find(__u64 hash, const struct ends *e, bool udp, int words, __u32 *found)
{
	return find_in(hash, WEIR_VALID, e, udp, words, found);
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

// The entry's flow has ended.
static __always_inline void bar(struct weir_way *way, __u32 state)
{
	__u32 busy = in_phase(changed(state), WEIR_BUSY);

	if (__sync_val_compare_and_swap(&way->state, state, busy) != state)
		return;
	way->due = (__u32)bpf_jiffies64() + control.hz * WEIR_ENDED_S;
	order();
	__sync_lock_test_and_set(&way->state, in_phase(changed(busy), WEIR_ENDED));
}

// Whether a TCP flow with these ends has ended a moment ago.
static __always_inline bool is_barred(const struct ends *e, int words)
{
	__u32 state;
	struct weir_way *way = find_in(hash_of(e, false, words), WEIR_ENDED, e, false, words, &state);

	return way && !is_past(way->due);
}
