//! From a refusal without a place (serde's for a tagged kind, a `validate` of another crate) to the line of the key that is
//! to blame, and to the value that was probably meant.
//!
//! The key is found by trial: the one without which the refusal goes away, or becomes another one. So no option needs to be
//! listed here, and a message is as good for an option that was added yesterday.

use std::ops::Range;

use toml_edit::{Item, Table};

use super::error::{ScenarioError, nearest};

/// A check of a whole table.
pub(super) type Check<'a> = &'a dyn Fn(&Table) -> Result<(), String>;

/// The text of a scenario, for places in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    pub(super) origin: &'a str,
}

impl Source<'_> {
    /// The mistake at that place of the text.
    pub(super) fn error(
        self,
        at: Option<Range<usize>>,
        what: String,
        nearest: Option<String>,
    ) -> ScenarioError {
        let line = at.map(|at| {
            let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
            1 + before.iter().filter(|b| **b == b'\n').count()
        });
        ScenarioError { origin: self.origin.to_owned(), line, what, nearest }
    }

    /// Runs `check` on `table`. A refusal is put on the line of the key to blame, below `heading`, e.g. `[plan]`.
    /// `also` are keys of the section that the check does not know because they were read before.
    pub(super) fn check(
        self,
        table: &Table,
        heading: &str,
        also: &[&str],
        check: Check<'_>,
    ) -> Result<(), ScenarioError> {
        let Err(message) = check(table) else { return Ok(()) };
        let path = culprit(table, &message, check).unwrap_or_default();
        let at = place(table, &path).or_else(|| table.span());
        let (what, nearest) = explain(&message, heading, &path, also, table);
        Err(self.error(at, what, nearest))
    }
}

/// The table of an item, whichever way it was written.
pub(super) fn as_table(item: &Item) -> Option<Table> {
    match item {
        Item::Table(table) => Some(table.clone()),
        Item::Value(toml_edit::Value::InlineTable(table)) => Some(table.clone().into_table()),
        _ => None,
    }
}

/// Keys from the outside in, at whose end the cause stands.
fn culprit(table: &Table, message: &str, check: Check<'_>) -> Option<Vec<String>> {
    let without = |key: &str| {
        let mut rest = table.clone();
        rest.remove(key);
        check(&rest).err()
    };
    let outcomes: Vec<(&str, Option<String>)> = table.iter().map(|(key, _)| (key, without(key))).collect();
    let cured = |(key, outcome): &&(&str, Option<String>)| match outcome {
        None => true,
        Some(other) if other == message => false,
        Some(other) => {
            !other.starts_with("missing field") || message.starts_with(&format!("unknown field `{key}`"))
        }
    };
    // Without a key that is both wrong and needed, one refusal only becomes another; then the message itself tells.
    let missed = |(key, outcome): &&(&str, Option<String>)| {
        outcome.as_deref().is_some_and(|o| o.starts_with(&format!("missing field `{key}`")))
    };
    let named = |(key, _): &&(&str, Option<String>)| message.starts_with(key);
    let mut needed = outcomes.iter().filter(missed);
    let only = || needed.next().filter(|_| needed.next().is_none());
    // Without some keys a default takes over that does not fit the others. So one without which all is well goes first, and of
    // those the one that the refusal names.
    let well = |(_, outcome): &&(&str, Option<String>)| outcome.is_none();
    let (key, _) = outcomes
        .iter()
        .filter(well)
        .find(named)
        .or_else(|| outcomes.iter().find(well))
        .or_else(|| outcomes.iter().find(cured))
        .or_else(|| outcomes.iter().filter(missed).find(named))
        .or_else(only)?;
    let mut path = vec![(*key).to_owned()];
    if let Some(inner) = table.get(key).and_then(as_table) {
        let nested = |changed: &Table| {
            let mut whole = table.clone();
            whole.insert(key, Item::Table(changed.clone()));
            check(&whole)
        };
        path.extend(culprit(&inner, message, &nested).unwrap_or_default());
    }
    Some(path)
}

/// Finds the position of the last key of a path.
fn place(table: &Table, path: &[String]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, item) = table.get_key_value(first)?;
    let deeper = if rest.is_empty() { None } else { as_table(item).and_then(|inner| place(&inner, rest)) };
    deeper.or_else(|| key.span()).or_else(|| item.span())
}

/// The words between backticks of a text.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// serde's message in words for people, and the nearest valid value.
fn explain(
    message: &str,
    heading: &str,
    path: &[String],
    also: &[&str],
    table: &Table,
) -> (String, Option<String>) {
    let last = path.last().map(String::as_str).unwrap_or_default();
    if let Some(rest) = message.strip_prefix("unknown field ") {
        let words = quoted(rest);
        let (written, known) = words.split_first().map_or((last, &[][..]), |(w, k)| (*w, k));
        let outer = if path.len() < 2 { also } else { &[] };
        let meant = nearest(written, known.iter().chain(outer).copied());
        return (format!("unknown key `{written}` in {heading}{}", inside(path)), meant.map(str::to_owned));
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        let words = quoted(rest);
        let (written, known) = words.split_first().map_or(("", &[][..]), |(w, k)| (*w, k));
        let what = if path.is_empty() || written == last {
            format!("unknown key `{written}` in {heading}{}", inside(path))
        } else {
            format!("unknown {last} \"{written}\" in {heading}")
        };
        return (what, nearest(written, known.iter().copied()).map(str::to_owned));
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        let key = quoted(rest).first().copied().unwrap_or_default();
        // If exactly one unknown key resembles it, that key is the typo; but the reader refuses unknown keys earlier.
        return (format!("{heading}{} has no `{key}`", inside(path)), None);
    }
    let message = humane(message);
    // Messages of other crates name their key themselves.
    if path.is_empty() || path.iter().any(|key| message.starts_with(key.as_str())) {
        return (format!("{heading}: {message}"), None);
    }
    // Nor is a value said twice that the message quotes.
    let quotes = |value: &String| value.starts_with('"') && message.contains(value.as_str());
    let written = written(table, path).filter(|value| !message.starts_with(value.as_str()) && !quotes(value));
    let written = written.map(|value| format!(" = {value}")).unwrap_or_default();
    (format!("{heading}: {}{written}: {message}", path.join(".")), None)
}

/// The value as it was written, where that is short.
fn written(table: &Table, path: &[String]) -> Option<String> {
    let (first, rest) = path.split_first()?;
    let item = table.get(first)?;
    if !rest.is_empty() {
        return written(&as_table(item)?, rest);
    }
    let text = item.as_value()?.to_string();
    let text = text.trim();
    (text.len() <= 40 && !text.contains('\n')).then(|| text.to_owned())
}

/// Names the position of a key in a section, if it is below the top level.
fn inside(path: &[String]) -> String {
    match path {
        [] | [_] => String::new(),
        [outer @ .., _] => format!(" `{}`", outer.join(".")),
    }
}

/// serde's names of types in words for people.
fn humane(message: &str) -> String {
    let Some((_, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    if !message.starts_with("invalid type") && !message.starts_with("invalid value") {
        return message.to_owned();
    }
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 up, within the range of its type",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text in quotes",
        "a sequence" => "a list in brackets",
        "a map" => "a table",
        other => other,
    };
    format!("expected {expected}")
}
