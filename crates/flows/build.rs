//! Compiles the BPF programs.

fn main() {
    weir_bpf_build::build(&["src/bpf/flows.bpf.c"], &["src/bpf/settings.h", "src/bpf/shared.h"]);
}
