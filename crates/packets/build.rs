//! Compiles the BPF programs.

fn main() {
    weir_bpf_build::build(&["src/bpf/generator.bpf.c", "src/bpf/receiver.bpf.c"], &["src/bpf/shared.h"]);
}
