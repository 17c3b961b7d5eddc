//! One table of a scenario file, and values of it with messages that name its place.

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml_edit::{Item, Table, Value};

use super::error::ScenarioError;
use super::problem::{Source, as_table};

pub(super) type Result<T> = std::result::Result<T, ScenarioError>;

/// Decodes a table, or returns serde's reason why it cannot. By way of a text of JSON, because records and messages to agents hold
/// most of these types, and the code to read them from TOML as well would be large.
fn decode<T: DeserializeOwned>(table: &Table) -> std::result::Result<T, String> {
    let table = table.clone().into_inline_table();
    let entries = table.iter().map(|(key, value)| Ok(format!("{}:{}", Json::from(key), json(value)?)));
    // In the order of the text, because serde names the first unknown key.
    let entries = entries.collect::<std::result::Result<Vec<String>, String>>()?;
    from_json(&format!("{{{}}}", entries.join(",")))
}

/// Reads a text of JSON that weir has made. The reason why it cannot names no place in that text, which is never shown.
pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> std::result::Result<T, String> {
    serde_json::from_str(text).map_err(|error| {
        let said = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        said.strip_suffix(&place).unwrap_or(&said).split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

/// The same value in JSON, or why it has none.
fn json(value: &Value) -> std::result::Result<Json, String> {
    Ok(match value {
        Value::String(text) => Json::from(text.value().as_str()),
        Value::Integer(number) => Json::from(*number.value()),
        Value::Float(number) => {
            Json::Number(serde_json::Number::from_f64(*number.value()).ok_or("expected a finite number")?)
        }
        Value::Boolean(yes) => Json::from(*yes.value()),
        Value::Datetime(_) => return Err("expected a date in quotes".to_owned()),
        Value::Array(array) => Json::Array(array.iter().map(json).collect::<std::result::Result<_, _>>()?),
        Value::InlineTable(table) => {
            let entries = table.iter().map(|(key, value)| Ok((key.to_owned(), json(value)?)));
            Json::Object(entries.collect::<std::result::Result<_, String>>()?)
        }
    })
}

/// The part of a table with these keys, and the rest.
pub(super) fn split(table: &Table, keys: &[&str]) -> (Table, Table) {
    let (mut part, mut rest) = (table.clone(), table.clone());
    for (key, _) in table {
        if keys.contains(&key) {
            rest.remove(key)
        } else {
            part.remove(key)
        };
    }
    (part, rest)
}

/// A table of the scenario that is being read.
#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    pub(super) source: Source<'a>,
    pub(super) table: &'a Table,
    pub(super) heading: &'a str,
}

impl Section<'_> {
    /// Reads a part of the section, validated by `valid`.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        part: &Table,
        also: &[&str],
        valid: &dyn Fn(&T) -> std::result::Result<(), String>,
    ) -> Result<T> {
        let check = |table: &Table| decode::<T>(table).and_then(|value| valid(&value));
        self.source.check(part, self.heading, also, &check)?;
        decode(part).map_err(|what| self.error(None, what, None))
    }

    /// A mistake at a key of the section, or at the section itself.
    pub(super) fn error(&self, key: Option<&str>, what: String, nearest: Option<String>) -> ScenarioError {
        let at = key
            .and_then(|key| self.table.get_key_value(key))
            .and_then(|(key, item)| key.span().or_else(|| item.span()));
        let first = || self.table.iter().find_map(|(key, _)| self.table.get_key_value(key)?.0.span());
        let at = at.or_else(|| self.table.span()).or_else(first);
        self.source.error(at, format!("{}: {what}", self.heading), nearest)
    }
}

/// The items of `[[name]]`, or of `[name]`, each as a table.
pub(super) fn tables(source: Source<'_>, root: &Table, name: &str) -> Result<Vec<Table>> {
    let wrong = |item: &Item| {
        Err(source.error(item.span(), format!("`{name}` must be tables, each begun by [[{name}]]"), None))
    };
    match root.get(name) {
        None => Ok(Vec::new()),
        Some(Item::ArrayOfTables(tables)) => Ok(tables.iter().cloned().collect()),
        Some(item @ Item::Value(Value::Array(array))) => array
            .iter()
            .map(|value| {
                as_table(&Item::Value(value.clone())).map_or_else(|| wrong(item).map(|()| Table::new()), Ok)
            })
            .collect(),
        Some(item) => match as_table(item) {
            Some(table) => Ok(vec![table]),
            None => wrong(item).map(|()| Vec::new()),
        },
    }
}
