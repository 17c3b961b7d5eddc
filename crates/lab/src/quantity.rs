//! Waits and rates as scenarios write them: `"0.5ms"`, `"100mbit"`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use weir_text::time::seconds;
use weir_text::units::amount;

/// How long a packet waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait(pub Duration);

/// How many bits may pass in a second: a number with `bit`, `kbit`, `mbit` or `gbit` (powers of 1,000).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

const WAIT: &str = "a wait like \"50us\", \"0.5ms\" or \"1s\"";
const RATE: &str = "a rate like \"512kbit\", \"100mbit\" or \"2.5gbit\"";

impl Wait {
    fn parse(text: &str) -> Option<Self> {
        let ns = seconds(text)? * 1e9;
        // Beyond this a mistake in the unit is likelier than a real link; `Link::validate` reports the exact bounds.
        (ns <= 1e18).then(|| Wait(Duration::from_nanos(ns.round() as u64)))
    }

    /// Nanoseconds.
    pub fn ns(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Rate {
    fn parse(text: &str) -> Option<Self> {
        let bps = amount(text, &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)])?;
        (bps <= 1e18).then(|| Rate(bps.round() as u64))
    }
}

/// The number with the largest unit in which it is at least 1.
fn largest(value: f64, units: &[(&str, f64)]) -> String {
    let (unit, factor) =
        units.iter().rev().find(|(_, f)| value >= *f).or(units.first()).copied().unwrap_or(("", 1.0));
    format!("{}{unit}", value / factor)
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&largest(self.0.as_nanos() as f64, &[("us", 1e3), ("ms", 1e6), ("s", 1e9)]))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
        f.write_str(&largest(self.0 as f64, &units))
    }
}

/// Serde and schema of a type that is written as text.
macro_rules! as_text {
    ($type:ident, $expected:expr, $name:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $type::parse(text).ok_or_else(|| E::custom(format!("\"{text}\" is not {}", $expected)))
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!({"description": $expected, "type": "string"})
            }
        }
    };
}

as_text!(Wait, WAIT, "Wait");
as_text!(Rate, RATE, "Rate");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_and_rates_are_read_and_written() {
        for (text, ns, again) in [
            ("50us", 50_000, "50us"),
            ("0.5ms", 500_000, "500us"),
            ("1.8ms", 1_800_000, "1.8ms"),
            ("2s", 2_000_000_000, "2s"),
            ("0ms", 0, "0us"),
            ("1 min", 60_000_000_000, "60s"),
        ] {
            let wait = Wait::parse(text).unwrap();
            assert_eq!((wait.ns(), wait.to_string().as_str()), (ns, again), "{text}");
        }
        for (text, bps, again) in [
            ("100mbit", 100_000_000, "100mbit"),
            ("2.5gbit", 2_500_000_000, "2.5gbit"),
            ("64kbit", 64_000, "64kbit"),
            ("900bit", 900, "900bit"),
        ] {
            let rate = Rate::parse(text).unwrap();
            assert_eq!((rate.0, rate.to_string().as_str()), (bps, again), "{text}");
        }
        for bad in ["", "ms", "-1ms", "1e3ms", "infs", "1.2.3ms", "９ms", "99999999999999999999s"] {
            assert_eq!(Wait::parse(bad), None, "{bad}");
        }
        for bad in ["100", "100mbps", "mbit", "-1mbit", "1Mbit", "1e3gbit"] {
            assert_eq!(Rate::parse(bad), None, "{bad}");
        }
    }
}
