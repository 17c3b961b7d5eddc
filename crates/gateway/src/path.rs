//! Two hosts and whatever lies between them.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Expectation, Journal, Place, Role, Topology, Variant};

/// The path from initiator to responder as it is. Nothing is changed on any host, and nothing is assumed about what the
/// responder sees.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Path {
    /// Address to which the initiator sends; absent: the first responder's. With several responders, or one with several
    /// addresses, each way to connect is a variant with a target of its own.
    pub target: Option<IpAddr>,
}

impl Variant for Path {
    fn kind(&self) -> &'static str {
        "path"
    }
    fn describe(&self) -> String {
        match self.target {
            None => "the path as it is, untouched".into(),
            Some(target) => format!("the path to {target} as it is, untouched"),
        }
    }
    fn validate(&self) -> Result<(), String> {
        match self.target {
            Some(target) if target.is_unspecified() || target.is_multicast() => {
                Err(format!("target = \"{target}\": expected the address of one host"))
            }
            _ => Ok(()),
        }
    }
    fn topology(&self) -> Topology {
        Topology::Direct
    }
    fn apply(&self, _: Role, _: &Place, _: &mut Journal) -> Result<(), Error> {
        Ok(())
    }
    fn expectation(&self, place: &Place) -> Expectation {
        let target = self.target.unwrap_or(place.responder);
        Expectation { target, seen_source: None, hops: None, ports: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::place_v4;

    #[test]
    fn the_initiator_sends_to_the_target_or_else_to_the_responder() {
        let place = place_v4();
        assert_eq!(Path::default().expectation(&place).target, place.responder);
        let path: Path = serde_json::from_str(r#"{"target": "198.19.0.7"}"#).unwrap();
        path.validate().unwrap();
        assert_eq!(path.expectation(&place).target.to_string(), "198.19.0.7");
        assert!(path.describe().contains("198.19.0.7"));
        for nobody in ["0.0.0.0", "224.0.0.1", "ff02::1"] {
            let path = Path { target: Some(nobody.parse().unwrap()) };
            assert!(path.validate().unwrap_err().starts_with("target = "), "{nobody}");
        }
    }
}
