//! Two hosts and whatever lies between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Expectation, Hop, Journal, Place, Role, Topology};

/// The path from initiator to responder as it is. Nothing is changed on any host, and nothing is assumed about what the
/// responder sees.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Path {}

impl Hop for Path {
    fn kind(&self) -> &'static str {
        "path"
    }
    fn describe(&self) -> String {
        "the path as it is, untouched".into()
    }
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
    fn topology(&self) -> Topology {
        Topology::Direct
    }
    fn programs(&self, _: Role) -> Vec<String> {
        Vec::new()
    }
    fn apply(&self, _: Role, _: &Place, _: &mut Journal) -> Result<(), Error> {
        Ok(())
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation { target: place.responder, seen_source: None, hops: None, ports: None }
    }
    fn counter(&self, _: &Place) -> Result<Option<u64>, Error> {
        Ok(None)
    }
}
