//! Hands the folder of libbpf's headers on to the crates that compile BPF programs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(include) = std::env::var("DEP_BPF_INCLUDE") {
        println!("cargo::metadata=include={include}");
    }
}
