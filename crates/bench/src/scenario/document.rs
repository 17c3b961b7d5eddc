//! Values put into the text of a scenario.

use toml_edit::{Item, Table, TableLike, Value};

use super::error::ScenarioError;

/// Replaces or adds a value and keeps the comments around a replaced one.
pub(super) fn put(table: &mut dyn TableLike, key: &str, item: Item) {
    let mut item = item;
    if let (Some(Item::Value(old)), Item::Value(new)) = (table.get(key), &mut item) {
        *new.decor_mut() = old.decor().clone();
    }
    table.insert(key, item);
}

/// The table under a key, made if it is not there.
pub(super) fn subtable<'t>(
    table: &'t mut dyn TableLike,
    key: &str,
) -> std::result::Result<&'t mut dyn TableLike, String> {
    let item = table.entry(key).or_insert(Item::Table(Table::new()));
    item.as_table_like_mut().ok_or_else(|| format!("`{key}` is not a table: nothing can be set in it"))
}

/// The entry of a list of tables, whichever way it was written.
pub(super) fn nth(item: &mut Item, index: usize) -> Option<&mut dyn TableLike> {
    match item {
        Item::ArrayOfTables(tables) => tables.get_mut(index).map(|t| t as &mut dyn TableLike),
        Item::Value(Value::Array(array)) => {
            array.get_mut(index)?.as_inline_table_mut().map(|t| t as &mut dyn TableLike)
        }
        Item::Table(table) => (index == 0).then_some(table as &mut dyn TableLike),
        _ => None,
    }
}

pub(super) fn wrong(origin: &str, what: String, nearest: Option<&str>) -> ScenarioError {
    ScenarioError { origin: origin.to_owned(), line: None, what, nearest: nearest.map(str::to_owned) }
}
