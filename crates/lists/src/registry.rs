//! The five regional registries, and where they publish.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

/// A regional internet registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Registry {
    /// Africa.
    Afrinic,
    /// Asia and the Pacific.
    Apnic,
    /// North America and parts of the Caribbean.
    Arin,
    /// Latin America and parts of the Caribbean.
    Lacnic,
    /// Europe, the Middle East, Central Asia.
    RipeNcc,
}

impl Registry {
    /// All of them, by name.
    pub const ALL: [Registry; 5] =
        [Registry::Afrinic, Registry::Apnic, Registry::Arin, Registry::Lacnic, Registry::RipeNcc];

    /// The name as its own file gives it (RIR statistics exchange format, section 3.1).
    pub fn name(self) -> &'static str {
        match self {
            Registry::Afrinic => "afrinic",
            Registry::Apnic => "apnic",
            Registry::Arin => "arin",
            Registry::Lacnic => "lacnic",
            Registry::RipeNcc => "ripencc",
        }
    }

    /// Address of its extended delegation file. Each registry names the address in the README beside the file. Each also mirrors
    /// the files of the others, so a mirror is an address with `{registry}` in it.
    pub fn url(self) -> &'static str {
        match self {
            Registry::Afrinic => {
                "https://ftp.afrinic.net/pub/stats/afrinic/delegated-afrinic-extended-latest"
            }
            Registry::Apnic => "https://ftp.apnic.net/stats/apnic/delegated-apnic-extended-latest",
            Registry::Arin => "https://ftp.arin.net/pub/stats/arin/delegated-arin-extended-latest",
            Registry::Lacnic => "https://ftp.lacnic.net/pub/stats/lacnic/delegated-lacnic-extended-latest",
            Registry::RipeNcc => "https://ftp.ripe.net/pub/stats/ripencc/delegated-ripencc-extended-latest",
        }
    }

    /// Name of its file in the cache: the published one.
    pub fn file_name(self) -> String {
        format!("delegated-{self}-extended-latest")
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Registry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        // Its web site has no "ncc" in it.
        let name = if name == "ripe" { "ripencc" } else { &name };
        Registry::ALL.into_iter().find(|r| r.name() == name).ok_or_else(|| {
            let names = Registry::ALL.map(Registry::name).join(", ");
            format!("none of {names}")
        })
    }
}

impl Serialize for Registry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl JsonSchema for Registry {
    fn schema_name() -> Cow<'static, str> {
        "Registry".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A regional registry", "enum": Registry::ALL.map(Registry::name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registry_publishes_its_own_file_over_https() {
        for registry in Registry::ALL {
            assert!(registry.url().starts_with("https://"), "{registry}");
            assert!(registry.url().ends_with(&format!("/{}", registry.file_name())), "{registry}");
            assert_eq!(registry.name().parse(), Ok(registry));
        }
        assert_eq!("RIPE".parse(), Ok(Registry::RipeNcc));
        assert!("iana".parse::<Registry>().unwrap_err().contains("lacnic"));
    }
}
