//! Kernel memory by kind of object: `/proc/slabinfo`, or the allocator's own files where that is compiled out.

use crate::ProcRoot;

/// One cache of the slab allocator: objects of one size, of the whole machine and not of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slab {
    /// Bytes that an object asks for.
    pub object_bytes: u64,
    /// Objects in one slab.
    pub objects_per_slab: u64,
    /// Bytes of one slab: whole pages.
    pub slab_bytes: u64,
    /// Slabs that exist now.
    pub slabs: u64,
    /// Objects in use now. The allocator counts those it keeps at hand for a core as used.
    pub active: u64,
}

impl Slab {
    /// The cache of that name. `None` without root, and on kernels without such a cache.
    pub fn read(root: &ProcRoot, name: &str) -> Option<Slab> {
        let text = root.read("proc/slabinfo").ok();
        text.and_then(|text| from_slabinfo(&text, name)).or_else(|| from_sysfs(root, name))
    }

    /// Returns the memory that one object takes: its share of a full slab, with the cost of alignment, debugging and the end of
    /// the slab.
    pub fn bytes_each(&self) -> u64 {
        self.slab_bytes.div_ceil(self.objects_per_slab.max(1))
    }

    /// All memory of this cache now.
    pub fn bytes(&self) -> u64 {
        self.slabs.saturating_mul(self.slab_bytes)
    }
}

/// A line of slabinfo(5), version 2.1: name, active_objs, num_objs, objsize, objperslab, pagesperslab, and after the
/// second colon active_slabs, num_slabs, sharedavail.
fn from_slabinfo(text: &str, name: &str) -> Option<Slab> {
    let line = text.lines().find(|l| l.split_ascii_whitespace().next() == Some(name))?;
    let (sizes, rest) = line.split_once(':')?;
    let (_, slabs) = rest.split_once(':')?;
    let number = |words: &str, n: usize| words.split_ascii_whitespace().nth(n)?.parse::<u64>().ok();
    Some(Slab {
        active: number(sizes, 1)?,
        object_bytes: number(sizes, 3)?,
        objects_per_slab: number(sizes, 4)?,
        slab_bytes: number(sizes, 5)?.checked_mul(page_bytes())?,
        slabs: number(slabs, 2)?,
    })
}

/// `/sys/kernel/slab/NAME/`; its counts are followed by those of each memory node (`13 N0=13`).
fn from_sysfs(root: &ProcRoot, name: &str) -> Option<Slab> {
    let number = |file: &str| {
        let text = root.read_optional(&format!("sys/kernel/slab/{name}/{file}"))?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Slab {
        object_bytes: number("object_size")?,
        objects_per_slab: number("objs_per_slab")?,
        slab_bytes: page_bytes().checked_shl(u32::try_from(number("order")?).ok()?)?,
        slabs: number("slabs")?,
        active: number("objects")?,
    })
}

/// Bytes of a page of memory on this machine.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line of a kernel 6.18 with 4 KiB pages.
    const LINE: &str = "nf_conntrack         144    208    256   16    1 : tunables    0    0    0 : slabdata     13     14      0";

    #[test]
    fn a_line_of_slabinfo_is_read() {
        let text = format!(
            "slabinfo - version: 2.1\n# name <active_objs>\nnf_conntrack_expect 0 0 208 19 1 : tunables 0 0 0 : slabdata 0 0 0\n{LINE}\n"
        );
        let slab = from_slabinfo(&text, "nf_conntrack").unwrap();
        assert_eq!((slab.active, slab.object_bytes, slab.slabs), (144, 256, 14));
        assert_eq!(slab.bytes_each(), page_bytes() / 16);
        assert_eq!(slab.bytes(), 14 * page_bytes());
        assert_eq!(from_slabinfo(&text, "nf_conn"), None);
    }

    #[test]
    fn overhead_of_a_slab_is_shared_by_its_objects() {
        // 320 bytes in a page of 4096: 12 fit, and 256 bytes are lost.
        let slab = Slab { object_bytes: 320, objects_per_slab: 12, slab_bytes: 4096, slabs: 1, active: 0 };
        assert_eq!(slab.bytes_each(), 342);
    }

    /// Both files of this kernel tell the same of the same cache.
    #[test]
    fn root_both_sources_agree() {
        if crate::privilege::test_needs_root() {
            return;
        }
        let root = ProcRoot::new("/");
        let (Ok(text), Some(sysfs)) = (root.read("proc/slabinfo"), from_sysfs(&root, "kmalloc-128")) else {
            println!("SKIP: this kernel has not both /proc/slabinfo and /sys/kernel/slab");
            return;
        };
        let file = from_slabinfo(&text, "kmalloc-128").unwrap();
        let shape = |s: Slab| (s.object_bytes, s.objects_per_slab, s.slab_bytes);
        assert_eq!(shape(file), shape(sysfs));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in ".{0,200}") {
            prop_assert_eq!(from_slabinfo(&format!("x {text}"), "y"), None);
            let _ = from_slabinfo(&format!("x {text}"), "x").map(|s| (s.bytes(), s.bytes_each()));
        }
    }
}
