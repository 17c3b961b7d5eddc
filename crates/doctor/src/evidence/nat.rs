//! A table of `weir nat` that was brought to the host, and the parts of the host that such a table depends on.

mod table;

pub use table::LARGEST_TABLE;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Backend, Rule};

/// The kind of place that a table was measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NatSource {
    /// By `weir nat lab`: a gateway of the lab, which had this kernel and rules of its own.
    Lab,
    /// By `weir nat check`: every NAT between two real hosts.
    Check,
}

/// The failing rows of a table of `weir nat check --json` or `weir nat lab --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NatTable {
    /// The kind of place that it was measured in.
    pub source: NatSource,
    /// The gateway, or the server that saw the NAT; text from outside.
    pub subject: String,
    /// When, RFC 3339; text from outside.
    pub time: String,
    /// Rows with a requirement (SHOULD and above) that fail, are met in part, or whose packets vanished.
    pub failing: Vec<NatRow>,
    /// An inside endpoint of the check.
    pub inside: Option<SocketAddr>,
    /// An outside endpoint that it sent to.
    pub server: Option<SocketAddr>,
    /// Outside addresses by which inside hosts were seen.
    pub outside: Vec<IpAddr>,
    /// One inside endpoint was seen by several outside addresses.
    pub changes_address: bool,
    /// By the name of an idle experiment (`unanswered`, `tcp_opening`): the longest idle time, s, that a mapping survived, and the
    /// shortest that ended one.
    pub ended: BTreeMap<String, (f64, f64)>,
}

impl NatTable {
    /// True if the inside host has an address of IPv6.
    pub fn is_of_ipv6(&self) -> bool {
        self.inside.is_some_and(|inside| inside.is_ipv6())
    }

    /// True if no host on the way changes the inside host's address, as on most paths of IPv6.
    pub fn is_untranslated(&self) -> bool {
        self.inside.is_some_and(|inside| self.outside.contains(&inside.ip()))
    }

    /// True if a gateway of the lab was measured.
    pub fn is_of_lab(&self) -> bool {
        self.source == NatSource::Lab
    }
}

/// A failing row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatRow {
    /// Its stable name (`udp-mapping`); text from outside.
    pub id: String,
    /// Number of the RFC.
    pub rfc: u32,
    /// Name of the requirement in it; text from outside.
    pub requirement: String,
    /// How strongly it is asked for (`MUST NOT`); text from outside.
    pub level: String,
    /// Met under some conditions only.
    pub partly: bool,
    /// Packets vanished between two real ends: the NAT or a firewall on the way drops them.
    pub vanished: bool,
    /// The observation; text from outside.
    pub seen: String,
}

impl NatRow {
    /// True of an absolute requirement.
    pub fn binds(&self) -> bool {
        ["MUST", "MUST NOT"].contains(&self.level.as_str())
    }
}

/// The parts of a namespace that decide the rows of such a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NatHost {
    /// Rules that translate sources.
    pub rules: Vec<NatRule>,
    /// Rules that give connections idle times of their own.
    pub timeouts: Vec<TimeoutRule>,
    /// Packets of the table's kinds that a rule refuses, or perhaps refuses.
    pub refused: Vec<Refused>,
    /// Kinds of packets for which the rules were evaluated ([`Refused::packet`]).
    pub asked: Vec<String>,
}

/// A rule that translates sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NatRule {
    /// The rule, with its text.
    pub rule: Rule,
    /// First and last outside address, where it names them.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// First and last outside port, where it names them.
    pub ports: Option<(u16, u16)>,
    /// Draws each port by a hash, or by chance (`random`, `fully-random`).
    pub random: bool,
    /// One outside address for all connections of a host.
    pub persistent: bool,
    /// Protocols (`udp`, `tcp`, `icmp`) of which it may translate the table's connections: its conditions, and the rules before it,
    /// were evaluated for their first packets. Every one where that was not possible.
    #[serde(default = "NatRule::every_protocol")]
    pub protocols: Vec<String>,
}

impl NatRule {
    pub(crate) fn every_protocol() -> Vec<String> {
        ["udp", "tcp", "icmp"].map(str::to_owned).to_vec()
    }

    /// True if it may translate the connections that a row is about, by the row's name.
    pub fn is_about(&self, row: &str) -> bool {
        self.protocols.iter().any(|protocol| row.starts_with(protocol.as_str()))
    }

    /// True if it gives several outside addresses, one connection after another.
    pub fn changes_address(&self) -> bool {
        self.rule.random || !self.persistent && self.addresses.is_some_and(|(first, last)| first != last)
    }

    /// True if it may give that outside address.
    pub fn gives(&self, address: IpAddr) -> bool {
        self.addresses.is_some_and(|(first, last)| (first..=last).contains(&address))
    }
}

/// A rule that gives connections idle times of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimeoutRule {
    /// The rule.
    pub rule: Rule,
    /// The object that holds the times; text from outside.
    pub object: String,
    /// IP protocol that the times are for; 0: unknown.
    pub protocol: u8,
    /// Idle times in seconds by the end of the setting that they replace (`udp_timeout_stream`). Empty where they cannot be read.
    pub seconds: BTreeMap<String, u64>,
}

/// A packet of a failing row, and the rule or policy that refuses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// Kind of the packet: `error-in`, `error-out`, `query-out`, ...
    pub packet: String,
    /// Hook in which it happens.
    pub hook: String,
    /// Nothing else can have let it pass: every condition of the rule is known.
    pub sure: bool,
    /// The rule; `None`: the policy of the chain.
    pub rule: Option<Rule>,
    /// Whose chain.
    pub backend: Backend,
    /// Family, table and name of the chain; text from outside.
    pub chain: [String; 3],
}
