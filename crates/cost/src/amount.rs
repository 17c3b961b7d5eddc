//! Exact decimal amounts: money, gigabytes, hours.

use std::borrow::Cow;
use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use rust_decimal::{Decimal, RoundingStrategy};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// Greatest amount that is accepted, 10^12. Products of a price (at most 10^6), a count (at most 10^4) and a quantity
/// (at most 10^12) stay far below the 7.9 x 10^28 of the decimal type, so sums and products cannot overflow.
const MAX: Decimal = Decimal::from_parts(0xd4a5_1000, 0xe8, 0, false, 0);

/// Decimals kept on reading and on writing; finer digits are rounded away. The bound also keeps quotients inside the decimal
/// type.
const DECIMALS: u32 = 12;

/// A decimal number without binary rounding: 0.045 is 0.045.
///
/// Reads a number or a string (`0.045`, `"0.045"`), 0..=10^12. A number is taken as the digits that were typed; that is exact
/// for up to 15 significant digits, what a 64-bit float keeps of a decimal (IEEE 754, DBL_DIG); a string has no such
/// limit. Writes a number. Both ways
/// twelve decimals are kept, rounded half away from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Amount(pub(crate) Decimal);

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount(Decimal::ZERO);

    /// The nearest 64-bit float, for consumers that only draw or compare roughly.
    pub fn to_f64(self) -> f64 {
        // Through text: correctly rounded, whereas mantissa / 10^scale in floats is not.
        self.0.to_string().parse().unwrap_or(f64::NAN)
    }

    /// Rounded to `decimals` places, half away from zero, as invoices do.
    #[must_use]
    pub fn rounded(self, decimals: u32) -> Self {
        Amount(self.0.round_dp_with_strategy(decimals, RoundingStrategy::MidpointAwayFromZero))
    }
}

/// The amount in `text`, or what would be accepted.
fn parse(text: &str) -> Result<Amount, String> {
    let expected = || "expected a number from 0 to 10^12, such as 0.045".to_owned();
    let value = Decimal::from_str_exact(text.trim()).or_else(|_| Decimal::from_str(text.trim()));
    match value {
        Ok(value) if value.is_sign_negative() && !value.is_zero() => Err(expected()),
        Ok(value) if value > MAX => Err(expected()),
        Ok(value) => Ok(Amount(Amount(value).rounded(DECIMALS).0.normalize())),
        Err(_) => Err(expected()),
    }
}

impl FromStr for Amount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|expected| Error::Number {
            what: "the amount".to_owned(),
            value: format!("\"{text}\""),
            expected,
        })
    }
}

impl From<u32> for Amount {
    fn from(value: u32) -> Self {
        Amount(Decimal::from(value))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        Amount(amounts.map(|a| a.0).sum())
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.rounded(DECIMALS).to_f64())
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 10^12, such as 0.045")
            }

            fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<Amount, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<Amount, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Amount, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Amount, E> {
                parse(v).map_err(|expected| E::custom(format!("{v}: {expected}")))
            }
        }
        deserializer.deserialize_any(Digits).map_err(D::Error::custom)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A decimal amount, 0 to 10^12: a number, or a string where more than 15 digits matter.",
            "type": ["number", "string"],
            "minimum": 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Holder {
        a: Amount,
    }

    fn read(text: &str) -> Result<Amount, String> {
        toml::from_str::<Holder>(text).map(|h| h.a).map_err(|e| e.to_string())
    }

    #[test]
    fn numbers_and_strings_are_the_digits_that_were_typed() {
        let exact = Amount("0.045".parse().unwrap());
        assert_eq!(read("a = 0.045").unwrap(), exact);
        assert_eq!(read("a = \"0.045\"").unwrap(), exact);
        assert_eq!(read("a = 7").unwrap(), Amount::from(7));
        assert_eq!(read("a = 1e-7").unwrap().to_string(), "0.0000001");
        // The classic: in binary floats 0.1 + 0.2 is not 0.3.
        let sum: Amount = [read("a = 0.1").unwrap(), read("a = 0.2").unwrap()].into_iter().sum();
        assert_eq!(sum, read("a = 0.3").unwrap());
    }

    #[test]
    fn what_is_no_amount_is_refused_with_its_line() {
        for bad in ["-1", "-0.5", "nan", "inf", "\"cheap\"", "\"\"", "1e13", "true"] {
            let message = read(&format!("\na = {bad}")).unwrap_err();
            assert!(message.contains("line 2"), "{bad}: {message}");
            assert!(message.contains("number from 0 to 10^12"), "{bad}: {message}");
        }
    }

    #[test]
    fn the_bound_is_ten_to_the_twelve() {
        assert_eq!(MAX, Decimal::from(1_000_000_000_000_u64));
    }

    #[test]
    fn halves_round_away_from_zero() {
        assert_eq!(Amount("0.125".parse().unwrap()).rounded(2).to_string(), "0.13");
        assert_eq!(Amount("0.135".parse().unwrap()).rounded(2).to_string(), "0.14");
    }

    #[test]
    fn json_is_a_number_with_twelve_decimals() {
        let text = |s: &str| serde_json::to_string(&s.parse::<Amount>().unwrap()).unwrap();
        assert_eq!(text("12.942"), "12.942");
        assert_eq!(text("0.1234567890125"), "0.123456789013");
    }
}
