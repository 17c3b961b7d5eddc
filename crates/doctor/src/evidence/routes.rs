//! Routes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The routes of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// Routes there are.
    pub total: u64,
    /// A default route of IPv4.
    pub default4: bool,
    /// One of IPv6.
    pub default6: bool,
    /// Routes that throw away or refuse.
    pub unusual: Vec<UnusualRoute>,
    /// The kernel's answers about the destinations of dropped packets.
    pub lookups: Vec<Lookup>,
    /// Rules of policy routing beyond the usual three, in the words of ip-rule(8), in the order in which they are asked.
    /// Names of interfaces in them are text from outside.
    pub policies: Vec<String>,
    /// Path MTUs that the kernel remembers of destinations, the smallest first. At most a hundred.
    pub remembered: Vec<RememberedMtu>,
    /// How many it remembers in all.
    pub remembered_total: u64,
}

/// A path MTU that a router on the way told of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RememberedMtu {
    /// Destination of the path.
    pub destination: IpAddr,
    /// Bytes.
    pub mtu: u32,
    /// Interface by which the way leaves.
    pub interface: u32,
    /// Seconds until it is forgotten.
    pub expires_s: u32,
}

/// A route that throws away or refuses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnusualRoute {
    /// `blackhole`, `unreachable`, `prohibit` or `throw`.
    pub kind: String,
    /// Network.
    pub destination: IpAddr,
    /// Its prefix length.
    pub prefix: u8,
    /// Table by number.
    pub table: u32,
}

/// The kernel's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteOutcome {
    /// Sent on.
    Forwarded,
    /// For this host.
    Local,
    /// ENETUNREACH.
    NoRoute,
    /// EHOSTUNREACH of a route that says so.
    Unreachable,
    /// EINVAL of a blackhole.
    Blackhole,
    /// EACCES.
    Prohibited,
    /// Another answer (a source that may not be, an interface that is gone).
    Refused,
}

/// A route asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// As if it came in there; 0 if made here.
    pub came_in: u32,
    /// With this firewall mark.
    #[serde(default)]
    pub mark: u32,
    /// The answer.
    pub outcome: RouteOutcome,
    /// Through which interface it would leave; 0 if through none.
    pub interface: u32,
    /// Whom it would be handed to on that link, if not the destination itself.
    #[serde(default)]
    pub next_hop: Option<IpAddr>,
    /// Table that answered, by number; 0 if none did.
    #[serde(default)]
    pub table: u32,
    /// The answer for the same destination to a packet made here, without source and mark: what no rule of policy routing
    /// that asks for these changes.
    #[serde(default)]
    pub plain: Option<RouteOutcome>,
    /// Path MTU that the kernel remembers for it, bytes, if it remembers one.
    pub cached_mtu: Option<u32>,
    /// Way back to the source leaves through this interface; 0 if there is none.
    pub return_interface: u32,
}
