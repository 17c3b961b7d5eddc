//! Where a variant is put into effect.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Role of a host in a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Opens every connection; on the inside (RFC 9693).
    Initiator,
    /// The hop under test.
    Gateway,
    /// Answers; on the outside (RFC 9693).
    Responder,
}

impl Role {
    /// The role's name as in records and scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Role::Initiator => "initiator",
            Role::Gateway => "gateway",
            Role::Responder => "responder",
        }
    }
}

/// IP version of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// IPv4.
    #[default]
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Hosts and links that a variant needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Initiator and responder on one link; no gateway.
    Direct,
    /// initiator -- gateway -- responder, one link each.
    Routed,
    /// initiator -- gateway with a bridge -- responder behind that bridge (a container on its host).
    Bridged,
}

/// Interfaces and addresses of one variant's hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// IP version.
    pub family: Family,
    /// The gateway's interface towards the initiator.
    pub inside_interface: String,
    /// The gateway's interface towards the responder (the bridge itself where the topology is bridged).
    pub outside_interface: String,
    /// The initiator's address.
    pub initiator: IpAddr,
    /// The gateway's address towards the initiator.
    pub gateway_inside: IpAddr,
    /// The gateway's address towards the responder.
    pub gateway_outside: IpAddr,
    /// A further outside address, routed to the gateway, that nothing else uses: for address-to-address translation.
    pub spare_outside: Option<IpAddr>,
    /// The responder's address.
    pub responder: IpAddr,
    /// Ports on which the responder answers.
    pub ports: RangeInclusive<u16>,
    /// Short unique word for names of tables, chains and comments, `[a-z0-9]{1,12}`.
    pub tag: String,
}

/// What must be seen when a variant is in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// The address to which the initiator sends.
    pub target: IpAddr,
    /// The source address that the responder must see; `None`: any (nothing is promised).
    pub seen_source: Option<IpAddr>,
    /// Whether the path has a gateway that must lower the hop limit by one: `None` if unknown.
    pub hops: Option<u8>,
}
