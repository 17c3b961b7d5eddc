//! Compiles the BPF programs.

fn main() {
    weir_bpf_build::build(
        &["src/bpf/fastpath.bpf.c", "src/bpf/stateless.bpf.c"],
        &["src/bpf/shared.h", "src/bpf/translation.h"],
    );
}
