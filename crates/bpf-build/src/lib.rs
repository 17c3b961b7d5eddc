//! Compiles BPF programs from a crate's build script, and shares their structs with Rust.
//!
//! `build(&["src/bpf/x.bpf.c"], &["src/bpf/shared.h"])` makes `$OUT_DIR/x.bpf.o` out of the C file, the same packed as
//! `$OUT_DIR/x.bpf.z` for `weir_bpf::Loader::unpack`, and `$OUT_DIR/shared.rs` out of the structs and constants of the header, so
//! that each is written once (see [`layout`]).
//! The crate needs `weir-bpf` among its dependencies: it passes the folder of libbpf's headers on.

pub mod layout;
mod lines;
pub mod strip;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Headers that programs of several crates use: `#include "weir/sum.h"`.
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// Compiles `sources` and translates `headers`; paths are relative to the crate. Ends the build with the compiler's words
/// when something is wrong.
pub fn build(sources: &[&str], headers: &[&str]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed={INCLUDE}");
    for folder in sources.iter().filter_map(|s| Path::new(s).parent()) {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    for header in headers {
        let text = fs::read_to_string(header).unwrap_or_else(|e| fail(&format!("{header}: {e}")));
        let layout = layout::read(&text).unwrap_or_else(|e| fail(&format!("{header}: {e}")));
        let stem = Path::new(header).file_stem().unwrap_or_default();
        write(&out.join(stem).with_extension("rs"), layout.to_rust());
        write(&out.join(stem).with_extension("check.h"), layout.to_c_assertions());
    }
    for source in sources {
        compile(source, &out);
    }
}

fn compile(source: &str, out: &Path) {
    let libbpf = env::var("DEP_WEIR_BPF_INCLUDE")
        .unwrap_or_else(|_| fail("libbpf's headers are not known: the crate needs weir-bpf as a dependency"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let object = out.join(Path::new(source).file_stem().unwrap_or_default()).with_extension("bpf.o");
    let target = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let mut command = Command::new(&clang);
    command
        // v3: atomics that return a value (Linux 5.12), and 32-bit arithmetic.
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        // A table for linkers, which strip could not copy.
        .arg("-fno-addrsig")
        .arg(format!("-D__TARGET_ARCH_{target}"))
        // Line information names files; without the folders of this machine two builds are the same.
        .arg(format!("-ffile-prefix-map={}=out", out.display()))
        .arg(format!("-ffile-prefix-map={INCLUDE}=include"))
        .arg(format!("-ffile-prefix-map={libbpf}=libbpf"))
        .arg(format!("-ffile-prefix-map={}=.", env::var("CARGO_MANIFEST_DIR").unwrap_or_default()))
        .arg("-I")
        .arg(out)
        .args(["-I", INCLUDE])
        .args(["-isystem", &libbpf])
        // Debian keeps asm/types.h by architecture.
        .args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
        .args(["-c", source, "-o"])
        .arg(&object);
    match command.output() {
        Ok(output) if output.status.success() => lighten(&object),
        Ok(output) => fail(&format!("{source}:\n{}", String::from_utf8_lossy(&output.stderr))),
        Err(e) => fail(&format!(
            "{clang}: {e}: install clang (Debian: apt-get install clang), or name one in CLANG"
        )),
    }
}

/// Replaces an object by itself without debug information, and writes it packed beside: all objects are 600 kB, packed a quarter of that.
fn lighten(object: &Path) {
    let bytes = fs::read(object).unwrap_or_else(|e| fail(&format!("{}: {e}", object.display())));
    let bytes = strip::strip(&bytes).unwrap_or_else(|e| fail(&format!("{}: {e}", object.display())));
    write(object, &bytes);
    write(&object.with_extension("z"), miniz_oxide::deflate::compress_to_vec(&bytes, 9));
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path, text).unwrap_or_else(|e| fail(&format!("{}: {e}", path.display())));
}

/// Ends the build script: its only way to say something.
fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    std::process::exit(1)
}
