//! The connection-tracking table of a namespace, summed up.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Tuple;

/// The table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Entries.
    pub count: u64,
    /// The limit, which is the whole machine's but compared with each namespace's count.
    pub max: Option<u64>,
    /// Hash buckets, of all namespaces together.
    pub buckets: Option<u64>,
    /// Entries that the kernel may not evict (ASSURED).
    pub assured: u64,
    /// Entries that nobody answered yet.
    pub unreplied: u64,
    /// Groups of entries, the largest first.
    pub groups: Vec<ConnectionGroup>,
    /// Entries in groups beyond those kept.
    pub beyond: u64,
    /// Pools of outside ports that are at least half used, the fullest first.
    pub pools: Vec<SnatPool>,
    /// Entries asked for by the tuple of a packet that was dropped or reset: that tuple, and what the table holds for it.
    pub joined: Vec<(Tuple, ConnectionGroup)>,
}

/// Entries that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionGroup {
    /// IP protocol.
    pub protocol: u8,
    /// State of TCP by ctnetlink's number; 0 otherwise.
    pub state: u8,
    /// Something came back.
    pub replied: bool,
    /// May not be evicted.
    pub assured: bool,
    /// Its source is translated.
    pub source_nat: bool,
    /// Its destination is translated.
    pub destination_nat: bool,
    /// Where it went, before translation.
    pub destination: IpAddr,
    /// Port, before translation; 0 without.
    pub destination_port: u16,
    /// Who answers (source of the reply direction).
    pub reply_source: IpAddr,
    /// Entries of this kind.
    pub entries: u64,
    /// The original direction of one of them.
    pub example: Option<Tuple>,
    /// The reply direction of the same one.
    pub example_reply: Option<Tuple>,
}

/// Ports that source NAT has given away towards one destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnatPool {
    /// Outside address.
    pub outside: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Where to.
    pub destination: IpAddr,
    /// Port there.
    pub destination_port: u16,
    /// Ports in use.
    pub used: u64,
    /// Ports there are.
    pub available: u64,
}
