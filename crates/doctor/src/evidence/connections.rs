//! The connection-tracking table of a namespace, summed up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use weir_conntrack::SnatPool;

use super::Tuple;

/// The table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Entries.
    pub count: u64,
    /// The limit, which is the whole machine's but compared with each namespace's count.
    pub max: Option<u64>,
    /// Hash buckets, of all namespaces together.
    pub buckets: Option<u64>,
    /// Entries that were read; what follows is about these.
    pub read: u64,
    /// Why not all of them were, if so.
    pub partial: Option<String>,
    /// Entries that the kernel may not evict (ASSURED).
    pub assured: u64,
    /// Entries without an answer so far.
    pub unreplied: u64,
    /// Entries by protocol and state (`tcp established`, `udp unreplied`).
    pub states: BTreeMap<String, u64>,
    /// Who opened most entries, and how many.
    pub sources: Vec<(IpAddr, u64)>,
    /// The destinations with most entries.
    pub services: Vec<Service>,
    /// Groups of entries, the largest first; they always include the largest unreplied ones.
    pub groups: Vec<ConnectionGroup>,
    /// Entries in groups beyond those kept.
    pub beyond: u64,
    /// Pools of outside ports that are at least half used, the fullest first.
    pub pools: Vec<SnatPool>,
    /// Rules of nftables, and of iptables where it speaks nft, that translate sources; `None` where that cannot be known.
    pub source_nat_rules: Option<u64>,
    /// Ports of the narrowest of these rules; `None` where that cannot be known.
    pub least_ports: Option<u64>,
    /// Entries asked for by the tuple of a packet that was dropped or reset: that tuple, and what the table holds for it.
    pub joined: Vec<(Tuple, ConnectionGroup)>,
    /// Tuples of packets that were dropped or reset for which the table held nothing at the window's end.
    pub absent: Vec<Tuple>,
    /// Connections of which the two directions are entries of different zones: the tuple of the answers, the zone of the
    /// connection, and that in which its answers are. At most a few.
    pub split: Vec<(Tuple, u16, u16)>,
    /// Memory of an entry with its extensions, bytes; `None` where the kernel does not tell.
    pub entry_bytes: Option<u64>,
    /// Memory of the entries of all namespaces, bytes, without extensions.
    pub slab_bytes: Option<u64>,
}

/// A destination of entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Address, before translation.
    pub destination: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Port, before translation; 0 without.
    pub port: u16,
    /// Entries.
    pub entries: u64,
}

/// Entries that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// A helper was set for it by a rule.
    pub helper: bool,
    /// Its source is an address that no one routes in the Internet (RFC 1918, RFC 6598, RFC 4193).
    pub private_source: bool,
    /// The requester and the responder are in the same /24, or /64 of IPv6.
    pub same_network: bool,
    /// Zone.
    pub zone: u16,
    /// Destination address, before translation.
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

impl Default for ConnectionGroup {
    fn default() -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        ConnectionGroup {
            protocol: 0,
            state: 0,
            replied: false,
            assured: false,
            source_nat: false,
            destination_nat: false,
            helper: false,
            private_source: false,
            same_network: false,
            zone: 0,
            destination: nowhere,
            destination_port: 0,
            reply_source: nowhere,
            entries: 0,
            example: None,
            example_reply: None,
        }
    }
}
