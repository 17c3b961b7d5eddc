//! Compiles the BPF programs.

fn main() {
    weir_bpf_build::build(
        &[
            "src/bpf/drops.bpf.c",
            "src/bpf/plain.bpf.c",
            "src/bpf/flows.bpf.c",
            "src/bpf/recipe_xdp.bpf.c",
            "src/bpf/recipe_tc.bpf.c",
        ],
        &["src/bpf/shared.h"],
    );
}
