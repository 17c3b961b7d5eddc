//! JSON of numbers that may be infinite, which JSON itself has no word for: they are written as `"infinite"` and
//! `"-infinite"`. For `#[serde(with = "weir_stats::unbounded")]` on `f64` and on options, pairs and lists of it.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One number.
#[derive(Debug, Clone, Copy)]
pub struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            f64::INFINITY => serializer.serialize_str("infinite"),
            f64::NEG_INFINITY => serializer.serialize_str("-infinite"),
            finite => serializer.serialize_f64(finite),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Finite(f64),
            Infinite(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Finite(value) => Ok(Number(value)),
            Written::Infinite(word) => match word.as_str() {
                "infinite" => Ok(Number(f64::INFINITY)),
                "-infinite" => Ok(Number(f64::NEG_INFINITY)),
                other => Err(D::Error::custom(format!("{other:?} is neither a number nor \"infinite\""))),
            },
        }
    }
}

impl JsonSchema for Number {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number; infinite where nothing was seen to end",
            "anyOf": [{"type": "number"}, {"enum": ["infinite", "-infinite"]}]
        })
    }
}

/// A type that holds numbers, and its written form with [`Number`] in their place.
pub trait Numbers: Sized {
    /// How it is written.
    type Written: Serialize + for<'de> Deserialize<'de>;
    /// For writing.
    fn written(&self) -> Self::Written;
    /// As read.
    fn read(written: Self::Written) -> Self;
}

impl Numbers for f64 {
    type Written = Number;
    fn written(&self) -> Number {
        Number(*self)
    }
    fn read(written: Number) -> Self {
        written.0
    }
}

impl Numbers for (f64, f64) {
    type Written = (Number, Number);
    fn written(&self) -> Self::Written {
        (Number(self.0), Number(self.1))
    }
    fn read(written: Self::Written) -> Self {
        (written.0.0, written.1.0)
    }
}

impl<T: Numbers> Numbers for Option<T> {
    type Written = Option<T::Written>;
    fn written(&self) -> Self::Written {
        self.as_ref().map(T::written)
    }
    fn read(written: Self::Written) -> Self {
        written.map(T::read)
    }
}

impl<T: Numbers> Numbers for Vec<T> {
    type Written = Vec<T::Written>;
    fn written(&self) -> Self::Written {
        self.iter().map(T::written).collect()
    }
    fn read(written: Self::Written) -> Self {
        written.into_iter().map(T::read).collect()
    }
}

/// Write it.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: Numbers, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.written().serialize(serializer)
}

/// Read it.
///
/// # Errors
/// A word that is neither a number nor `infinite`.
pub fn deserialize<'de, T: Numbers, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Written::deserialize(deserializer).map(T::read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Example(
        #[serde(with = "super")] f64,
        #[serde(with = "super")] Option<(f64, f64)>,
        #[serde(with = "super")] Vec<f64>,
    );

    #[test]
    fn the_schema_names_the_words() {
        let schema = schemars::schema_for!(Vec<Number>).to_value();
        assert_eq!(schema["items"]["$ref"], "#/$defs/Number");
        assert_eq!(
            schema["$defs"]["Number"]["anyOf"][1]["enum"],
            serde_json::json!(["infinite", "-infinite"])
        );
    }

    #[test]
    fn infinite_numbers_survive_json() {
        let example = Example(f64::NEG_INFINITY, Some((0.1, f64::INFINITY)), vec![1.0, f64::INFINITY]);
        let text = serde_json::to_string(&example).unwrap();
        assert_eq!(text, r#"["-infinite",[0.1,"infinite"],[1.0,"infinite"]]"#);
        assert_eq!(serde_json::from_str::<Example>(&text).unwrap(), example);
        assert!(serde_json::from_str::<Example>(r#"["much",null,[]]"#).is_err());
        assert!(serde_json::from_str::<Example>(r#"["much",null,[]]"#).is_err());
        let none = Example(1.5, None, vec![]);
        assert_eq!(serde_json::to_string(&none).unwrap(), "[1.5,null,[]]");
        assert_eq!(serde_json::from_str::<Example>("[1.5,null,[]]").unwrap(), none);
        let back = Example(f64::INFINITY, None, vec![f64::NEG_INFINITY]);
        assert_eq!(serde_json::from_str::<Example>(&serde_json::to_string(&back).unwrap()).unwrap(), back);
    }
}
