//! Lengths of time as scenarios write them: `"300ms"`, `"1.5s"`, `"10m"`, `"1h"`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use weir_text::time::{FORM, within};

/// A length of time in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

/// No run takes a week, and beyond it a slip of the unit is likelier than a plan.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// Reads a length of time.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, LONGEST).map_err(|why| format!("\"{text}\": {why}"))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(FORM)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                parse(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}
