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
    /// Addresses whose Ethernet address was another one at the window's beginning: (address, before, after).
    pub moved: Vec<(IpAddr, String, String)>,
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
}
