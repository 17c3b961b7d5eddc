//! Names of kernel functions by address: `/proc/kallsyms`, with those of modules and of BPF programs.

use std::io;

use crate::error::{Error, Result};
use crate::procfs::ProcRoot;

/// No kernel function is longer: an address further behind the last known start belongs to code that was not listed.
const LONGEST: u64 = 1 << 16;

/// Functions of a kernel, ascending by address.
#[derive(Debug, Clone, Default)]
pub struct Symbols {
    starts: Vec<u64>,
    /// Start of each name in `names`; it ends where the next one begins.
    offsets: Vec<usize>,
    names: String,
}

impl Symbols {
    /// Reads the functions of the running kernel. Costs about a tenth of a second of CPU time.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] where the kernel hides its addresses from this process.
    pub fn read(root: &ProcRoot) -> Result<Self> {
        let symbols = Self::parse(&root.read("proc/kallsyms")?);
        if symbols.starts.is_empty() {
            let setting = |name: &str| {
                root.read_optional(&format!("proc/sys/kernel/{name}")).unwrap_or_else(|| "unknown".into())
            };
            let why = format!(
                "the kernel hides its addresses: this needs root, CAP_SYSLOG, or kernel.kptr_restrict=0 (it is {}) with \
                 kernel.perf_event_paranoid of at most 1 (it is {})",
                setting("kptr_restrict"),
                setting("perf_event_paranoid")
            );
            return Err(Error::new(
                "read /proc/kallsyms",
                io::Error::new(io::ErrorKind::PermissionDenied, why),
            ));
        }
        Ok(symbols)
    }

    /// Parses a listing: lines of address, type, name and perhaps a module. Takes functions only (types `t` and `T`, and weak `w`
    /// and `W`); leaves out all other lines, and hidden addresses (zeros).
    pub fn parse(text: &str) -> Self {
        let mut found: Vec<(u64, &str, bool)> = text.lines().filter_map(function).collect();
        // The best name of an address comes first among its names, and the others are dropped.
        found.sort_by_key(|(start, name, global)| (*start, underscores(name), !global));
        found.dedup_by_key(|(start, _, _)| *start);
        let mut symbols = Symbols::default();
        for (start, name, _) in found {
            symbols.starts.push(start);
            symbols.offsets.push(symbols.names.len());
            symbols.names.push_str(name);
        }
        symbols
    }

    /// The function that an address lies in, by a number for [`Self::name`].
    pub fn find(&self, address: u64) -> Option<usize> {
        let at = self.starts.partition_point(|start| *start <= address).checked_sub(1)?;
        (address - self.starts[at] < LONGEST).then_some(at)
    }

    /// The name of a function; `number` is from [`Self::find`].
    pub fn name(&self, number: usize) -> &str {
        let end = self.offsets.get(number + 1).copied().unwrap_or(self.names.len());
        &self.names[self.offsets[number]..end]
    }
}

/// Start, name and whether it is global.
fn function(line: &str) -> Option<(u64, &str, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let start = u64::from_str_radix(fields.next()?, 16).ok().filter(|start| *start != 0)?;
    let kind = fields.next()?;
    matches!(kind, "t" | "T" | "w" | "W").then_some(())?;
    Some((start, fields.next()?, matches!(kind, "T" | "W")))
}

/// Names of section bounds and aliases begin with more underscores than the function that people know.
fn underscores(name: &str) -> usize {
    name.bytes().take_while(|b| *b == b'_').count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::privilege::test_needs_root;

    /// Lines of a real listing (6.18), shortened, out of order as modules and BPF programs are.
    const LISTING: &str = "\
ffffffff81000000 T srso_alias_untrain_ret
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81dbf060 t __pfx_veth_poll
ffffffff81dbf070 t veth_poll
ffffffff81f2af40 T __pfx_nf_hook_slow
ffffffff81f2af50 T nf_hook_slow
ffffffff81f2b060 T __pfx_nf_hook_slow_list
ffffffff82a01000 D not_a_function
ffffffffa0201000 t br_handle_frame\t[bridge]
0000000000000000 A hidden
ffffffffa0123456 t bpf_prog_6deef7357e7b4530_receiver\t[bpf]
ffffffffa0200f00 W weak.part.0\t[bridge]
garbage
zz T x
";

    fn name(symbols: &Symbols, address: u64) -> Option<&str> {
        symbols.find(address).map(|at| symbols.name(at))
    }

    #[test]
    fn an_address_belongs_to_the_function_that_starts_before_it() {
        let symbols = Symbols::parse(LISTING);
        assert_eq!(name(&symbols, 0xffff_ffff_81db_f070), Some("veth_poll"));
        assert_eq!(name(&symbols, 0xffff_ffff_81db_f06f), Some("__pfx_veth_poll"));
        assert_eq!(name(&symbols, 0xffff_ffff_81f2_af99), Some("nf_hook_slow"));
        // Among the names of one address, that of the function, not of the section.
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0010), Some("srso_alias_untrain_ret"));
        assert_eq!(name(&symbols, 0xffff_ffff_a012_3460), Some("bpf_prog_6deef7357e7b4530_receiver"));
        assert_eq!(name(&symbols, 0xffff_ffff_a020_1abc), Some("br_handle_frame"));
        assert_eq!(name(&symbols, 0xffff_ffff_a020_0fff), Some("weak.part.0"));
    }

    #[test]
    fn addresses_outside_all_functions_have_no_name() {
        let symbols = Symbols::parse(LISTING);
        assert_eq!(name(&symbols, 0x1000), None);
        // Data, and code that is not listed, do not belong to the last function before them.
        assert_eq!(name(&symbols, 0xffff_ffff_82a0_1000), None);
        assert_eq!(name(&symbols, u64::MAX), None);
        assert_eq!(name(&Symbols::parse(""), 1), None);
    }

    #[test]
    fn hidden_addresses_are_a_missing_privilege() {
        let dir = std::env::temp_dir().join(format!("weir-kallsyms-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc/sys/kernel")).unwrap();
        std::fs::write(dir.join("proc/kallsyms"), "0000000000000000 T _stext\n0000000000000000 t a\n")
            .unwrap();
        std::fs::write(dir.join("proc/sys/kernel/kptr_restrict"), "2\n").unwrap();
        let error = Symbols::read(&ProcRoot::new(&dir)).unwrap_err();
        std::fs::remove_dir_all(dir).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("kernel.kptr_restrict=0 (it is 2)"), "{error}");
    }

    #[test]
    fn the_running_kernel_has_its_functions_as_root() {
        if test_needs_root() {
            return;
        }
        let symbols = Symbols::read(&ProcRoot::new("/")).unwrap();
        let listing = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let line = listing.lines().find(|l| l.ends_with(" T ip_rcv")).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        assert_eq!(name(&symbols, address + 4), Some("ip_rcv"));
    }

    proptest! {
        #[test]
        fn any_listing_is_taken(text in "([0-9a-f]{0,17}[ \t]?[tTwWdD]?[ \t]?[a-z_.\\[\\]]{0,9}\n?){0,20}", address: u64) {
            let symbols = Symbols::parse(&text);
            if let Some(at) = symbols.find(address) {
                prop_assert!(text.contains(symbols.name(at)));
            }
        }
    }
}
