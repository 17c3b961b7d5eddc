//! Which offloads the lab's interfaces have: they decide what "a packet" is to the gateway.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_text::order;

/// The offload settings to start from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// As the kernel makes a veth pair: super-packets cross the gateway as one.
    #[default]
    Default,
    /// `gro`, `gso`, `tso` and `tx-udp-segmentation` off: every packet crosses the gateway singly.
    Off,
}

/// A preset, and single offloads by ethtool name that differ from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The settings to start from.
    pub preset: Preset,
    /// On or off by name: the kernel's (`tx-udp-segmentation`, `rx-udp-gro-forwarding`) or `gro`, `gso`, `tso`, `rx`, `tx`.
    pub features: BTreeMap<String, bool>,
}

impl Offloads {
    /// Returns the offloads to switch on every interface.
    pub fn switches(&self) -> BTreeMap<String, bool> {
        let off: &[&str] = match self.preset {
            Preset::Default => &[],
            Preset::Off => &["gro", "gso", "tso", "tx-udp-segmentation"],
        };
        let mut switches = order::map(off.iter().map(|name| ((*name).to_owned(), false)));
        switches.extend(self.features.clone());
        switches
    }
}

impl fmt::Display for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.preset {
            Preset::Default => "default",
            Preset::Off => "off",
        })?;
        for (name, on) in &self.features {
            write!(f, " {name}={}", if *on { "on" } else { "off" })?;
        }
        Ok(())
    }
}

impl Serialize for Offloads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.features.is_empty() {
            return self.preset.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(self.features.len() + 1))?;
        map.serialize_entry("preset", &self.preset)?;
        for (name, on) in &self.features {
            map.serialize_entry(name, on)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Offloads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Offloads;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"default\", \"off\" or a table of offloads by ethtool name, each true or false")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Offloads, E> {
                let preset = Preset::deserialize(de::value::StrDeserializer::new(text))?;
                Ok(Offloads { preset, ..Offloads::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Offloads, A::Error> {
                let mut offloads = Offloads::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "preset" {
                        offloads.preset = map.next_value()?;
                    } else {
                        offloads.features.insert(key, map.next_value()?);
                    }
                }
                Ok(offloads)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Offloads {
    fn schema_name() -> Cow<'static, str> {
        "Offloads".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let preset = generator.subschema_for::<Preset>();
        schemars::json_schema!({
            "description": "A preset, or a table of offloads by ethtool name, each true or false, with an optional key `preset`",
            "anyOf": [
                preset,
                {"type": "object", "properties": {"preset": preset}, "additionalProperties": {"type": "boolean"}}
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_overrules_the_preset() {
        let offloads: Offloads =
            serde_json::from_str(r#"{"preset": "off", "gro": true, "tx": false}"#).unwrap();
        let switches = offloads.switches();
        assert!(switches["gro"]);
        assert!(!switches["tso"]);
        assert!(!switches["tx"]);
        assert_eq!(offloads.to_string(), "off gro=on tx=off");
        assert!(Offloads::default().switches().is_empty());
    }

    #[test]
    fn a_preset_alone_is_a_word() {
        let offloads: Offloads = serde_json::from_str("\"off\"").unwrap();
        assert_eq!(serde_json::to_string(&offloads).unwrap(), "\"off\"");
        assert_eq!(offloads.switches().len(), 4);
    }
}
