//! Parts of the kernel that the programs need.

use crate::Error;

const NEEDS_CONNTRACK: &str = "the conntrack functions for BPF (Linux 5.18, CONFIG_DEBUG_INFO_BTF and nf_conntrack), which this kernel lacks";

/// Whether it lacks those functions: the resident process asks conntrack instead.
pub(crate) fn lacks_functions(error: &Error) -> bool {
    matches!(error, Error::Kernel(what) if *what == NEEDS_CONNTRACK)
}

/// Names what the kernel lacks, if its own words do not.
pub(crate) fn named(error: weir_bpf::Error) -> Error {
    match &error {
        // libbpf's words for a function of the kernel that is not there.
        weir_bpf::Error::Refused { words, .. }
            if words.contains("bpf_skb_ct_lookup") || words.contains("bpf_ct_release") =>
        {
            Error::Kernel(NEEDS_CONNTRACK)
        }
        _ => Error::Bpf(error),
    }
}
