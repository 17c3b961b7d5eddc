//! Words for the hosts of a trial that lab, variants and records share.

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
    /// All roles, from the inside to the outside.
    pub const ALL: [Role; 3] = [Role::Initiator, Role::Gateway, Role::Responder];

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Initiator and responder on one link; no gateway.
    Direct,
    /// initiator -- gateway -- responder, one link each.
    Routed,
    /// initiator -- gateway with a bridge -- responder behind that bridge (a container on its host).
    Bridged,
}
