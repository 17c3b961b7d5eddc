//! (skeleton)
use crate::{Engine, Error, Part, Responder, Setting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use weir_record::MetricDef;
/// Options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpRr {}
impl Engine for TcpRr {
    fn kind(&self) -> &'static str {
        "skeleton"
    }
    fn describe(&self) -> String {
        String::new()
    }
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
    fn metrics(&self) -> Vec<MetricDef> {
        Vec::new()
    }
    fn open(&self, _: &Setting, _: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        unreachable!()
    }
    fn drive(&self, _: &Setting, _: SocketAddr) -> Result<Part, Error> {
        unreachable!()
    }
    fn combine(&self, _: &[Part], _: &[Part]) -> Part {
        Part::default()
    }
}
/// Options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct UdpRr {}
impl Engine for UdpRr {
    fn kind(&self) -> &'static str {
        "skeleton"
    }
    fn describe(&self) -> String {
        String::new()
    }
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
    fn metrics(&self) -> Vec<MetricDef> {
        Vec::new()
    }
    fn open(&self, _: &Setting, _: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        unreachable!()
    }
    fn drive(&self, _: &Setting, _: SocketAddr) -> Result<Part, Error> {
        unreachable!()
    }
    fn combine(&self, _: &[Part], _: &[Part]) -> Part {
        Part::default()
    }
}
