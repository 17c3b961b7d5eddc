//! JSON for readers.

use std::iter::Peekable;
use std::str::Chars;

/// Compact JSON over several lines, each level indented by two spaces: what `serde_json::to_string_pretty` prints of the same value.
/// `compact` must be a value as serde_json prints it, without blanks between its parts.
///
/// `to_string_pretty` has code of its own for every type. A program of a hundred types is much smaller if it prints all of them
/// compact.
pub fn indented(compact: &str) -> String {
    let mut out = String::with_capacity(2 * compact.len());
    let mut level = 0_usize;
    let mut rest = compact.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => string(&mut rest, &mut out),
            '{' | '[' => {
                out.push(c);
                if let Some(end) = rest.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    level += 1;
                    line(level, &mut out);
                }
            }
            '}' | ']' => {
                level = level.saturating_sub(1);
                line(level, &mut out);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(level, &mut out);
            }
            ':' => out.push_str(": "),
            _ => out.push(c),
        }
    }
    out
}

/// Copies a string, whose first quote is read, with its quotes.
fn string(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    out.push('"');
    while let Some(c) = rest.next() {
        out.push(c);
        match c {
            '"' => return,
            '\\' => out.extend(rest.next()),
            _ => {}
        }
    }
}

/// Begins a line.
fn line(level: usize, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", level));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn empty_ones_stay_on_a_line() {
        let value = json!({ "a": [], "b": {}, "c": [1, [], {}] });
        let expected = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    [],\n    {}\n  ]\n}";
        assert_eq!(indented(&value.to_string()), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            // Quotes, backslashes, brackets and what JSON escapes.
            "[\"\\\\{}\\[\\],:a\u{7f}\u{e9}\n\u{0}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[\"\\\\:,{a]{0,4}", inner, 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_prints_as_serde_json_does(value in any_value()) {
            prop_assert_eq!(indented(&value.to_string()), serde_json::to_string_pretty(&value).unwrap());
        }
    }
}
