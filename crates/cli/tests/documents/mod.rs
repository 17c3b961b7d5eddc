//! The output of `--json`, checked against the schema that `weir schema` prints for its kind.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::HashMap;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::Value;

/// By kind: some tests read thousands of lines.
static SCHEMAS: LazyLock<Mutex<HashMap<String, Validator>>> = LazyLock::new(Mutex::default);

/// A document of this kind.
pub(crate) fn read(text: &str, kind: &str) -> Value {
    let document = read_any(text);
    assert_eq!(document["schema"], format!("weir.{kind}/1"));
    document
}

/// A document of any kind.
pub(crate) fn read_any(text: &str) -> Value {
    let begin: String = text.chars().filter(|c| !c.is_whitespace()).take(16).collect();
    assert!(begin.starts_with("{\"schema\":\"weir."), "the first key is not the kind: {text}");
    let document: Value = serde_json::from_str(text).unwrap();
    let mark = document["schema"].as_str().unwrap();
    let kind = mark.strip_prefix("weir.").and_then(|rest| rest.strip_suffix("/1")).unwrap();
    let errors = errors(kind, &document);
    assert!(errors.is_empty(), "not what `weir schema {kind}` says: {errors:#?}\n{text}");
    document
}

/// The errors of a document by the program's schema of this kind.
pub(crate) fn errors(kind: &str, document: &Value) -> Vec<String> {
    let mut schemas = SCHEMAS.lock().unwrap_or_else(|e| e.into_inner());
    let validator = schemas.entry(kind.to_owned()).or_insert_with(|| validator(kind));
    validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

fn validator(kind: &str) -> Validator {
    let printed = Command::new(env!("CARGO_BIN_EXE_weir")).args(["schema", kind]).output().unwrap();
    assert!(printed.status.success(), "weir schema {kind}: {}", String::from_utf8_lossy(&printed.stderr));
    jsonschema::validator_for(&serde_json::from_slice(&printed.stdout).unwrap()).unwrap()
}
