//! The reported contents of a table.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::pools::Pool;
use super::spread::Class;

/// Entries with a property; they overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Flags {
    /// Packets went both ways.
    pub replied: u64,
    /// Only one side has sent anything. The first to go when the table is full.
    pub unreplied: u64,
    /// Kept when the table is full.
    pub assured: u64,
    /// Source translated.
    pub source_nat: u64,
    /// Destination translated.
    pub destination_nat: u64,
    /// Announced by a helper.
    pub expected: u64,
    /// Forwarded by a flow table in software.
    pub offloaded: u64,
    /// Forwarded by the network card.
    pub hardware_offloaded: u64,
    /// Timeout fixed by hand.
    pub fixed_timeout: u64,
}

/// Entries of one protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Protocol {
    /// Name, or number where it has none here.
    pub protocol: String,
    /// IP protocol number.
    pub number: u8,
    /// How many entries.
    pub entries: u64,
    /// By state, most first. Protocols without states have `unreplied`, `replied` and `assured`; `unknown` is for entries
    /// of which the kernel did not tell it (offloaded ones).
    pub states: BTreeMap<String, u64>,
}

/// A ranking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ranking<T> {
    /// True if all counts are exact. Otherwise there were more keys than places for them.
    pub exact: bool,
    /// Distinct keys; at least, where the counts are not exact.
    pub distinct: u64,
    /// No count is too high by more, and nothing that is missing has more entries.
    pub error_at_most: u64,
    /// Most entries first.
    pub top: Vec<T>,
}

/// An address with its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OfAddress {
    /// The address.
    pub address: String,
    /// Entries, at most.
    pub entries: u64,
    /// By how much that may be too high.
    pub error: u64,
    /// Bytes of these entries, both ways, where the kernel counts them.
    pub bytes: Option<u64>,
}

/// A destination port with its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OfPort {
    /// Protocol by name.
    pub protocol: String,
    /// Port; of ICMP `type x 256 + code`; 0 of protocols without ports.
    pub port: u16,
    /// For people: `tcp/443`.
    pub service: String,
    /// Entries, at most.
    pub entries: u64,
    /// By how much that may be too high.
    pub error: u64,
    /// Bytes of these entries, both ways, where the kernel counts them.
    pub bytes: Option<u64>,
}

/// Who talks to whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Talker {
    /// Who opened the connections.
    pub source: String,
    /// Whom they asked for.
    pub destination: String,
    /// Protocol by name.
    pub protocol: String,
    /// Destination port; of ICMP `type x 256 + code`; 0 of protocols without ports.
    pub port: u16,
    /// For people: `tcp/443`.
    pub service: String,
    /// Entries, at most.
    pub entries: u64,
    /// By how much that may be too high.
    pub error: u64,
    /// Bytes of these entries, both ways, where the kernel counts them.
    pub bytes: Option<u64>,
}

/// A zone or a mark with its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OfNumber {
    /// Zone, or mark.
    pub value: u32,
    /// Entries, at most.
    pub entries: u64,
    /// By how much that may be too high.
    pub error: u64,
}

/// Entries by time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Times {
    /// Seconds that are left if nothing more arrives, by group: `tcp-established`, `tcp-other`, `udp`, `other`.
    pub remaining: BTreeMap<&'static str, Vec<Class>>,
    /// Seconds since the last packet of established TCP connections: their timeout less what is left of it. Entries with
    /// another timeout than the namespace's own would be wrong by the difference. `None` where the setting is not there.
    pub idle_established: Option<Vec<Class>>,
    /// Seconds since they began, where the kernel keeps that (`nf_conntrack_timestamp` = 1).
    pub age: Option<Vec<Class>>,
}

/// The contents of the table.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Contents {
    /// Entries that passed the filter.
    pub entries: u64,
    /// IPv6 entries among them.
    pub ipv6: u64,
    /// Entries whose traffic the kernel counts (`nf_conntrack_acct` = 1).
    pub counted: u64,
    /// Their packets, both ways.
    pub packets: u64,
    /// Their bytes, both ways.
    pub bytes: u64,
    /// By protocol, most entries first.
    pub protocols: Vec<Protocol>,
    /// By property.
    pub flags: Flags,
    /// By zone; the other entries are in zone 0, the default.
    pub zones: Ranking<OfNumber>,
    /// By mark; what is missing has none (0).
    pub marks: Ranking<OfNumber>,
    /// By who opened them.
    pub sources: Ranking<OfAddress>,
    /// By whom they asked for, before any translation.
    pub destinations: Ranking<OfAddress>,
    /// By destination port, before any translation.
    pub destination_ports: Ranking<OfPort>,
    /// By source, destination and destination port together.
    pub talkers: Ranking<Talker>,
    /// By the pool that their outside ports are from, nearest to exhaustion first.
    pub nat_pools: Ranking<Pool>,
    /// By time.
    pub times: Times,
}
