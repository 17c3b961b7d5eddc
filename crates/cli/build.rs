//! Packs the schemas of `docs/reference/schemas` for `weir schema`. Code that makes them would be a tenth of the program.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use serde_json::{Map, Value, json};

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schemas");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    // The kinds have many definitions in common: each one is there once, and a schema has its number.
    let (mut numbers, mut definitions, mut kinds) = (BTreeMap::new(), Vec::new(), Map::new());
    for file in &files {
        let kind = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut schema: Map<String, Value> =
            serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        if let Some(Value::Object(own)) = schema.get_mut("$defs") {
            for definition in own.values_mut() {
                let number = *numbers.entry(definition.to_string()).or_insert(definitions.len());
                let whole = std::mem::replace(definition, number.into());
                if number == definitions.len() {
                    definitions.push(whole);
                }
            }
        }
        kinds.insert(kind, schema.into());
    }
    let text = json!({ "kinds": kinds, "definitions": definitions }).to_string();
    let packed = miniz_oxide::deflate::compress_to_vec(text.as_bytes(), 9);
    fs::write(Path::new(&env::var_os("OUT_DIR").unwrap()).join("schemas"), packed).unwrap();
}
