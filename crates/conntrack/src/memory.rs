//! Memory cost of the table: now, when it is full, and with another limit.
//!
//! An entry is an object of the cache `nf_conntrack` and, where something was remembered with it, a block of extensions:
//! one `kmalloc` of 128 bytes (`NF_CT_EXT_PREALLOC`, net/netfilter/nf_conntrack_extend.c), however few of them are used.
//! Sizes are read from this kernel, with what the slabs themselves waste.

use schemars::JsonSchema;
use serde::Serialize;
use weir_sys::ProcRoot;
use weir_sys::slab::{Slab, page_bytes};

/// Bytes of a head of a hash chain (`struct hlist_nulls_head`): one pointer.
const HEAD: u64 = size_of::<usize>() as u64;
/// The cache that the block of extensions comes from.
const EXTENSIONS: &str = "kmalloc-128";

/// Observations about extensions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Entries read.
    pub(crate) entries: u64,
    /// Entries among them with counters, a time stamp, NAT or a helper.
    pub(crate) extended: u64,
    /// A setting gives every new entry one (`nf_conntrack_acct`, `_timestamp`, `_events` = 1).
    pub(crate) always: bool,
}

/// Memory of the table.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Memory {
    /// Bytes of an entry without extensions, with its share of what the slab wastes. `None` without root.
    pub entry_bytes: Option<u64>,
    /// Bytes of its block of extensions, likewise.
    pub extension_bytes: Option<u64>,
    /// Share of the entries read that have extensions, by what can be seen of them.
    pub extended_ratio: Option<f64>,
    /// True if a setting gives every new entry extensions (`nf_conntrack_acct`, `_timestamp`, or `_events` = 1).
    pub extensions_always: bool,
    /// Slabs of `nf_conntrack` now, of all network namespaces together.
    pub slab_bytes: Option<u64>,
    /// Blocks of extensions now, estimated from the entries that have them.
    pub extensions_now_bytes: Option<u64>,
    /// The hash table, of all network namespaces together.
    pub hash_bytes: Option<u64>,
    /// All of it now.
    pub now_bytes: Option<u64>,
    /// When this namespace has `max` entries, none of them with extensions, and with the hash table.
    pub at_limit_bytes_without_extensions: Option<u64>,
    /// When it has `max` entries, all of them with extensions: what to plan with behind NAT.
    pub at_limit_bytes_with_extensions: Option<u64>,
    /// Memory of the machine.
    pub machine_bytes: Option<u64>,
    /// The part of it that is available without swapping.
    pub available_bytes: Option<u64>,
    /// The proposed limit.
    pub proposed: Option<Proposed>,
}

/// The cost of another limit.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Proposed {
    /// `nf_conntrack_max`.
    pub max: u64,
    /// `nf_conntrack_buckets` that go with it: as many as entries, which is the kernel's own choice, rounded up to full pages.
    pub buckets: u64,
    /// Entries without extensions, and the hash table.
    pub bytes_without_extensions: Option<u64>,
    /// Entries with extensions, and the hash table.
    pub bytes_with_extensions: Option<u64>,
    /// Share of the machine's memory, with extensions.
    pub machine_ratio: Option<f64>,
    /// Mean entries in a chain of the full table with the proposed buckets: each entry is in two chains.
    pub mean_chain: f64,
    /// The same with the buckets as they are now.
    pub mean_chain_now: Option<f64>,
}

/// Bytes of a hash table with so many buckets: the kernel rounds up to whole pages (`nf_ct_alloc_hashtable`).
fn hash_bytes(buckets: u64) -> u64 {
    buckets.saturating_mul(HEAD).checked_next_multiple_of(page_bytes()).unwrap_or(u64::MAX)
}

/// Mean entries in a chain: each is in the chain of its original and in that of its reply tuple.
pub(crate) fn mean_chain(entries: u64, buckets: u64) -> f64 {
    2.0 * entries as f64 / buckets.max(1) as f64
}

impl Memory {
    /// From the kernel's files and from what was seen in the table.
    pub(crate) fn read(
        root: &ProcRoot,
        max: Option<u64>,
        buckets: Option<u64>,
        evidence: Option<Evidence>,
        proposed: Option<u64>,
    ) -> Memory {
        let slabs = (Slab::read(root, "nf_conntrack"), Slab::read(root, EXTENSIONS));
        let machine = root.meminfo().ok().map(|m| (m.total, m.available));
        Memory::of(slabs, machine, max, buckets, evidence, proposed)
    }

    fn of(
        (entries, extensions): (Option<Slab>, Option<Slab>),
        machine: Option<(u64, u64)>,
        max: Option<u64>,
        buckets: Option<u64>,
        evidence: Option<Evidence>,
        proposed: Option<u64>,
    ) -> Memory {
        let entry_bytes = entries.map(|s| s.bytes_each());
        let extension_bytes = extensions.map(|s| s.bytes_each());
        let per_entry = |with: bool| Some(entry_bytes? + if with { extension_bytes? } else { 0 });
        let cost = |count: u64, buckets: u64, with: bool| {
            Some(per_entry(with)?.saturating_mul(count).saturating_add(hash_bytes(buckets)))
        };
        let slab_bytes = entries.map(|s| s.bytes());
        let hash = buckets.map(hash_bytes);
        // No more blocks than that cache has objects, which may also belong to other users.
        let extended = evidence.zip(extensions).map(|(e, s)| e.extended.min(s.active) * s.bytes_each());
        let now = || Some(slab_bytes? + hash? + extended?);
        Memory {
            entry_bytes,
            extension_bytes,
            extended_ratio: evidence.filter(|e| e.entries > 0).map(|e| e.extended as f64 / e.entries as f64),
            extensions_always: evidence.is_some_and(|e| e.always),
            slab_bytes,
            extensions_now_bytes: extended,
            hash_bytes: hash,
            now_bytes: now(),
            at_limit_bytes_without_extensions: max.zip(buckets).and_then(|(m, b)| cost(m, b, false)),
            at_limit_bytes_with_extensions: max.zip(buckets).and_then(|(m, b)| cost(m, b, true)),
            machine_bytes: machine.map(|m| m.0),
            available_bytes: machine.map(|m| m.1),
            proposed: proposed.map(|max| {
                let heads = page_bytes() / HEAD;
                let wanted = max.checked_next_multiple_of(heads).unwrap_or(u64::MAX);
                let total = cost(max, wanted, true);
                Proposed {
                    max,
                    buckets: wanted,
                    bytes_without_extensions: cost(max, wanted, false),
                    bytes_with_extensions: cost(max, wanted, true),
                    machine_ratio: total.zip(machine).map(|(t, m)| t as f64 / m.0.max(1) as f64),
                    mean_chain: mean_chain(max, wanted),
                    mean_chain_now: buckets.map(|b| mean_chain(max, b)),
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of slabs of one page each, in terms of 4096 bytes.
    fn slab(object_bytes: u64, objects_per_slab: u64, slabs: u64, active: u64) -> Option<Slab> {
        Some(Slab { object_bytes, objects_per_slab, slab_bytes: 4096, slabs, active })
    }

    /// Kernel 6.18 on x86-64: 256 and 128 bytes; a million entries behind masquerade are 384 MB and the hash table.
    #[test]
    fn a_million_entries_behind_nat() {
        let evidence = Evidence { entries: 1000, extended: 1000, always: false };
        let slabs = (slab(256, 16, 100, 1500), slab(128, 32, 200, 6000));
        let m = Memory::of(
            slabs,
            Some((8 << 30, 4 << 30)),
            Some(262_144),
            Some(262_144),
            Some(evidence),
            Some(1_000_000),
        );
        assert_eq!((m.entry_bytes, m.extension_bytes), (Some(256), Some(128)));
        assert_eq!(m.hash_bytes, Some(2 << 20));
        assert_eq!(m.slab_bytes, Some(100 * 4096));
        assert_eq!(m.now_bytes, Some(100 * 4096 + 1000 * 128 + (2 << 20)));
        assert_eq!(m.at_limit_bytes_with_extensions, Some(262_144 * 384 + (2 << 20)));
        assert_eq!(m.at_limit_bytes_without_extensions, Some(262_144 * 256 + (2 << 20)));
        let p = m.proposed.unwrap();
        // 1,000,000 is 1953.125 pages of 512 heads.
        assert_eq!(p.buckets, 1954 * 512);
        assert_eq!(p.bytes_with_extensions, Some(384_000_000 + 1954 * 4096));
        assert_eq!(p.bytes_without_extensions, Some(256_000_000 + 1954 * 4096));
        assert_eq!(p.mean_chain_now, Some(2_000_000.0 / 262_144.0));
        assert!((p.machine_ratio.unwrap() - 392_003_584.0 / 8_589_934_592.0).abs() < 1e-9);
    }

    #[test]
    fn without_root_nothing_is_made_up() {
        let m = Memory::of((None, None), None, Some(1000), Some(512), None, Some(u64::MAX));
        assert_eq!((m.entry_bytes, m.now_bytes, m.at_limit_bytes_with_extensions), (None, None, None));
        assert_eq!(m.hash_bytes, Some(4096));
        assert_eq!(m.proposed.unwrap().bytes_with_extensions, None);
    }
}
