//! No hop.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Expectation, Journal, Place, Role, Topology, Variant};

/// Initiator and responder on one link: what the tester can do by itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Direct {}

impl Variant for Direct {
    fn kind(&self) -> &'static str {
        "direct"
    }
    fn describe(&self) -> String {
        "no hop: initiator and responder on one link".into()
    }
    fn topology(&self) -> Topology {
        Topology::Direct
    }
    fn apply(&self, _: Role, _: &Place, _: &mut Journal) -> Result<(), Error> {
        Ok(())
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation::untranslated(place, 0)
    }
}
