//! Makes schemas refuse keys that they do not name. schemars leaves objects open, because readers of settings often are.

use serde_json::{Map, Value, json};

/// Keywords whose schemas speak about the same object.
const SAME: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords whose value is a schema of something within.
const WITHIN: [&str; 2] = ["items", "additionalProperties"];
/// Keywords whose value holds schemas of things within, by name or in a row.
const MANY: [&str; 3] = ["properties", "$defs", "prefixItems"];

/// Closes every object.
pub(super) fn close(schema: &mut Value) {
    visit(schema, false, &mut |object| {
        // Only `unevaluatedProperties` sees the keys that a choice below names.
        let choice = SAME.iter().any(|word| object.contains_key(*word));
        let word = if choice { "unevaluatedProperties" } else { "additionalProperties" };
        object.entry(word).or_insert(json!(false));
    });
}

/// Objects with named keys that allow others.
pub(crate) fn open(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit(&mut schema.clone(), false, &mut |object| {
        let closed = ["unevaluatedProperties", "additionalProperties"];
        if !closed.iter().any(|word| object.get(*word) == Some(&json!(false))) {
            found.push(format!("{object:?}"));
        }
    });
    found
}

/// Calls `see` for every object with named keys, except those that are parts of another one.
fn visit(schema: &mut Value, part: bool, see: &mut dyn FnMut(&mut Map<String, Value>)) {
    let Some(object) = schema.as_object_mut() else { return };
    let named = object.contains_key("properties");
    if named && !part {
        see(object);
    }
    for word in SAME {
        let choices = object.get_mut(word).and_then(Value::as_array_mut);
        choices.into_iter().flatten().for_each(|choice| visit(choice, part || named, see));
    }
    for word in WITHIN {
        if let Some(inner) = object.get_mut(word) {
            visit(inner, false, see);
        }
    }
    for word in MANY {
        match object.get_mut(word) {
            Some(Value::Object(inner)) => inner.values_mut().for_each(|schema| visit(schema, false, see)),
            Some(Value::Array(inner)) => inner.iter_mut().for_each(|schema| visit(schema, false, see)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_schema_refuses_unknown_keys_also_beside_a_choice() {
        let mut schema = json!({
            "properties": { "a": { "properties": { "b": { "type": "integer" } } } },
            "oneOf": [{ "properties": { "c": { "const": 1 } }, "required": ["c"] }, { "required": ["d"], "properties": { "d": {} } }],
        });
        assert_eq!(open(&schema).len(), 2);
        close(&mut schema);
        assert!(open(&schema).is_empty());
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(validator.is_valid(&json!({ "a": { "b": 1 }, "c": 1 })));
        for wrong in [json!({ "a": { "x": 1 }, "c": 1 }), json!({ "c": 1, "x": 1 })] {
            assert!(!validator.is_valid(&wrong), "{wrong}");
        }
    }
}
