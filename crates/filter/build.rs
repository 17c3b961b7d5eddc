//! Compiles the BPF programs.

fn main() {
    weir_bpf_build::build(
        &[
            "src/bpf/few.bpf.c",
            "src/bpf/many.bpf.c",
            "src/bpf/few_established.bpf.c",
            "src/bpf/many_established.bpf.c",
            "src/bpf/nothing.bpf.c",
        ],
        &["src/bpf/shared.h"],
    );
}
