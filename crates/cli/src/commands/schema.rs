//! `weir schema`: the kinds of JSON documents, and the schema of each.

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::documents::{Kind, print_value};
use crate::exit::{CommandResult, Failure};
use crate::output::print;

/// The files of `docs/reference/schemas`, packed by `build.rs`.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/schemas"));

/// `weir schema`.
pub(crate) fn run(kind: Option<Kind>) -> CommandResult {
    match kind {
        Some(kind) => print_value(&of_kind(kind)?),
        None => print(&listing()),
    }
}

/// Each kind with the commands that print it.
fn listing() -> String {
    let widest = Kind::value_variants().iter().map(|kind| kind.name().len()).max().unwrap_or_default();
    let row = |kind: &Kind| {
        let commands: Vec<String> = kind.commands().iter().map(|words| format!("weir {words}")).collect();
        format!("{:<widest$}  {}\n", kind.name(), commands.join(", "))
    };
    Kind::value_variants().iter().map(row).collect()
}

/// Its JSON Schema (draft 2020-12).
///
/// # Errors
/// Never in a released weir: a test reads every one.
fn of_kind(kind: Kind) -> Result<Value, Failure> {
    let text = miniz_oxide::inflate::decompress_to_vec(PACKED).map_err(Failure::failed)?;
    let text = String::from_utf8(text).map_err(Failure::failed)?;
    let mut all: Map<String, Value> = serde_json::from_str(&text).map_err(Failure::failed)?;
    let name = kind.name();
    let absent = || Failure::failed(format!("no schema of {name} is in this program"));
    let definitions = all.remove("definitions").ok_or_else(absent)?;
    let mut schema =
        all.get_mut("kinds").and_then(|kinds| Some(kinds.get_mut(&name)?.take())).ok_or_else(absent)?;
    // A definition is there by its number.
    for own in schema.get_mut("$defs").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        let number = own.as_u64().and_then(|number| usize::try_from(number).ok());
        *own = number.and_then(|number| definitions.get(number)).ok_or_else(absent)?.clone();
    }
    Ok(schema)
}

#[cfg(test)]
mod tests;
