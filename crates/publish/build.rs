//! Compiles the BPF programs.

fn main() {
    weir_bpf_build::build(&["src/bpf/publish.bpf.c", "src/bpf/empty.bpf.c"], &["src/bpf/shared.h"]);
}
