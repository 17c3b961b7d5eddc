//! Neighbours (ARP, neighbour discovery).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The neighbours of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Neighbours {
    /// By state (`reachable`, `stale`, `incomplete`, `failed`, ...), both families.
    pub states: BTreeMap<String, u64>,
    /// Those that do not answer. At most a hundred.
    pub unanswered: Vec<Neighbour>,
    /// Those whose Ethernet address changed in the window.
    pub moved: Vec<Moved>,
    /// Why changes may be missing in `moved`, if they may.
    #[serde(default)]
    pub unheard: Option<String>,
}

/// An address that changed from one Ethernet address to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// The address.
    pub address: IpAddr,
    /// On which interface.
    pub interface: u32,
    /// The Ethernet addresses that it had, each once, in the order in which they were first seen.
    pub seen: Vec<String>,
    /// How often it changed.
    pub times: u64,
}

/// One that does not answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// On which interface.
    pub interface: u32,
    /// Its state.
    pub state: String,
    /// It answered at some time in the window.
    #[serde(default)]
    pub answered: bool,
}
