//! Packs the schemas of `docs/reference/schemas` for `weir schema`. Code that makes them would be a tenth of the program.

use std::path::Path;
use std::{env, fs};

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schemas");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    // One JSON object: the kinds have many parts in common, which a common text packs once.
    let entries: Vec<String> = files
        .iter()
        .map(|file| {
            let kind = file.file_stem().unwrap().to_str().unwrap();
            format!("\"{kind}\":{}", fs::read_to_string(file).unwrap())
        })
        .collect();
    let packed = miniz_oxide::deflate::compress_to_vec(format!("{{{}}}", entries.join(",")).as_bytes(), 9);
    fs::write(Path::new(&env::var_os("OUT_DIR").unwrap()).join("schemas"), packed).unwrap();
}
