//! Lengths of time as scenarios write them: `"300ms"`, `"1.5s"`, `"10m"`, `"1h"`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A length of time in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

/// No run takes a week, and beyond it a slip of the unit is likelier than a plan.
const LONGEST_S: f64 = 7.0 * 86_400.0;

/// Reads a length of time; the message says what one looks like.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("\"{text}\" is not a length of time like \"300ms\", \"1.5s\", \"10m\" or \"1h\"");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    // f64 would also read "inf" and "1e9"; a plan is written in plain digits.
    if !digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(bad());
    }
    let seconds = digits.parse::<f64>().map_err(|_| bad())? * factor;
    if seconds > LONGEST_S {
        return Err(format!("\"{text}\" is longer than a week"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a length of time like \"300ms\", \"1.5s\", \"10m\" or \"1h\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                parse(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, ms) in [
            ("300ms", 300),
            ("1s", 1000),
            ("1.5s", 1500),
            ("10m", 600_000),
            ("2min", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "1", "s", "1 s", "-1s", "1e3s", "inf s", "infs", "1.2.3s", "1d", "1é", "９s", "200h"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
