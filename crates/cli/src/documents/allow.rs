//! Documents of `weir allow` about lists in effect.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;
use weir_allow::{Backend, ClassCount, Denied, Events, Hook, Port, Xdp};

use super::{Set, StatusSet};

/// A policy without its addresses.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Policy<'a> {
    /// Program that looks addresses up.
    backend: Backend,
    /// Interfaces whose incoming packets it filters.
    interfaces: &'a [String],
    /// Packets for this host, forwarded ones, or both.
    hook: Hook,
    /// The XDP mode; null: at tc.
    xdp: Option<Xdp>,
    /// Services that it filters; empty: all.
    ports: &'a [Port],
    /// True if packets of established connections pass first.
    established_first: bool,
    /// Action for addresses in no list.
    default: String,
    /// The lists, in their order.
    classes: Vec<Class<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Class<'a> {
    /// Name.
    name: &'a str,
    /// Action for its addresses.
    action: String,
    /// Files and countries that it comes from.
    origin: &'a [String],
    /// Number of its IPv4 addresses.
    ipv4_addresses: f64,
    /// Number of its IPv6 networks of /64.
    ipv6_networks: f64,
    /// Number of its ranges, IPv4 and IPv6.
    ranges: usize,
}

impl<'a> Policy<'a> {
    /// Builds the document from a policy.
    pub(crate) fn of(policy: &'a weir_allow::Policy) -> Self {
        let classes = policy.classes.iter().map(|class| Class {
            name: &class.name,
            action: class.action.to_string(),
            origin: &class.origin,
            ipv4_addresses: class.size().0,
            ipv6_networks: class.size().1,
            ranges: class.v4.as_slice().len() + class.v6.as_slice().len(),
        });
        Policy {
            backend: policy.backend,
            interfaces: &policy.interfaces,
            hook: policy.hook,
            xdp: policy.xdp,
            ports: &policy.ports,
            established_first: policy.established_first,
            default: policy.rest.to_string(),
            classes: classes.collect(),
        }
    }
}

/// `weir allow plan`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AllowPlan<'a> {
    /// Name of the policy.
    pub(crate) id: String,
    /// The policy that apply would load.
    pub(crate) policy: Policy<'a>,
    /// The policy that it would replace.
    pub(crate) before: Option<Policy<'a>>,
}

/// `weir allow apply`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AllowApply<'a> {
    /// Name of the policy.
    pub(crate) id: String,
    /// The loaded policy.
    pub(crate) policy: Policy<'a>,
    /// The change on trial; null if the policy was in effect already.
    pub(crate) set: Option<Set<'a>>,
    /// How long the loading took, ms.
    pub(crate) took_ms: Option<u64>,
}

/// `weir allow status`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AllowStatus<'a> {
    /// The policy in effect; null if none is.
    pub(crate) loaded: Option<Loaded<'a>>,
    /// State of weir's parts in the kernel, a line for each part.
    pub(crate) kernel: Vec<String>,
    /// The last change.
    pub(crate) set: Option<StatusSet<'a>>,
    /// Name of the policy that `weir allow restore` loads after a reboot.
    pub(crate) boot: Option<&'a str>,
}

/// The policy in effect.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Loaded<'a> {
    /// Program that looks addresses up.
    pub(crate) backend: Backend,
    /// Name of the policy.
    pub(crate) id: &'a str,
    /// The policy; null if it is not on disk here.
    pub(crate) policy: Option<Policy<'a>>,
    /// When it was loaded, seconds since 1970.
    pub(crate) since_unix_s: Option<u64>,
    /// Seconds since then.
    pub(crate) age_s: Option<u64>,
    /// How long the loading took, ms.
    pub(crate) took_ms: Option<u64>,
    /// Counters of each list, and of all other addresses at the end.
    pub(crate) classes: &'a [ClassCount],
    /// Packets of established connections, which passed first.
    pub(crate) established_packets: u64,
    /// Packets of the link itself, which always pass.
    pub(crate) link_packets: u64,
    /// Sources of refused or logged packets, as many as --top; null if the back end does not record them.
    pub(crate) denied: Option<Vec<&'a Denied>>,
    /// Number of all recorded sources.
    pub(crate) denied_sources: Option<usize>,
    /// Events of --follow; null if the back end has none.
    pub(crate) events: Option<Events>,
    /// Memory of the tables, bytes; null if the kernel does not report it.
    pub(crate) memory_bytes: Option<u64>,
}

/// A line of `weir allow status --follow`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AllowPacket<'a> {
    /// When, microseconds since 1970.
    pub(crate) unix_us: u64,
    /// Source address.
    pub(crate) source: IpAddr,
    /// Destination address.
    pub(crate) destination: IpAddr,
    /// Name of the list; `rest` for addresses in no list.
    pub(crate) class: &'a str,
    /// Number of the list; 0 for addresses in no list.
    pub(crate) class_number: usize,
    /// `drop` or `log`.
    pub(crate) action: &'a str,
    /// Name or number of the protocol.
    pub(crate) protocol: String,
    /// Destination port of TCP and UDP.
    pub(crate) port: Option<u16>,
    /// True for a fragment.
    pub(crate) fragment: bool,
    /// Length from the Ethernet header on, bytes.
    pub(crate) bytes: u32,
}

/// A line of `weir allow status --follow` about packets that it does not show.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AllowLost {
    /// Number of packets since the line before.
    pub(crate) events: u64,
}
