//! The results of experiments, without any judgement.

use std::net::SocketAddrV4;

use schemars::JsonSchema;
use serde::Serialize;

/// All that was seen of one NAT. A field is `None` if its experiment was not made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Observations {
    /// UDP from one inside port each to two outside addresses, two ports each.
    pub udp_mapping: Option<Vec<Mapping>>,
    /// The same from a port that a second inside host uses too.
    pub udp_collision: Option<Collision>,
    /// UDP from many inside ports to one outside port.
    pub udp_ports: Option<Vec<Translation>>,
    /// UDP from strangers to the outside port of a mapping.
    pub udp_filtering: Option<Vec<Filtering>>,
    /// UDP between two inside hosts by way of their outside ports.
    pub udp_hairpin: Option<Hairpin>,
    /// UDP mappings left alone for a time.
    pub udp_idle: Option<Idle>,
}

/// How one inside port was seen at an outside one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Translation {
    /// Inside address and port.
    pub inside: SocketAddrV4,
    /// Outside address and port that it sent to.
    pub to: SocketAddrV4,
    /// Source that was seen there; `None` if nothing arrived.
    pub seen: Option<SocketAddrV4>,
    /// The path carried a control packet, where nothing arrived.
    pub sure: bool,
}

/// One inside port and its destinations: first address first port, first address second port, and the second address the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Mapping {
    /// The four translations.
    pub seen: [Translation; 4],
}

/// Two inside hosts that use the same port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Collision {
    /// The first host, to the first outside address and port.
    pub first: Translation,
    /// The second host: second address twice, then first address twice. Only the last but one meets the first host's mapping
    /// at the same outside port.
    pub second: Mapping,
    /// Host that got the answer to the first host's packet; `None`: no one.
    pub first_answer: Option<SocketAddrV4>,
    /// Host that got the answer to the second host's.
    pub second_answer: Option<SocketAddrV4>,
    /// The path carried a control packet, where an answer did not arrive.
    pub sure: bool,
}

/// A mapping, and packets to its outside port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Filtering {
    /// The mapping.
    pub mapping: Translation,
    /// From another port of the address that it had sent to.
    pub same_address: Inbound,
    /// From another address.
    pub other_address: Inbound,
    /// From the address and port that it had sent to: the control.
    pub answer: Inbound,
}

/// A packet from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Inbound {
    /// Inside address and port that it reached; `None` if it did not.
    pub reached: Option<SocketAddrV4>,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
    /// The answer that the sender got instead.
    pub answered: Option<Answered>,
}

/// An answer of the NAT to a packet from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answered {
    /// An ICMP error.
    Icmp {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
    /// A TCP reset.
    Reset,
}

/// Two inside hosts that send to each other's outside ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Hairpin {
    /// The hosts' mappings, as seen outside.
    pub mappings: [Translation; 2],
    /// Source with which the second host's packet reached the first host; `None` if it did not arrive.
    pub source: Option<SocketAddrV4>,
    /// The path carried a control packet, where it did not arrive.
    pub sure: bool,
    /// The answer that the sender got instead.
    pub answered: Option<Answered>,
}

/// Idle times of mappings.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Idle {
    /// Longest time that was tried, s.
    pub limit_s: f64,
    /// Mappings with one packet out and nothing back.
    pub unanswered: Vec<IdleTry>,
    /// Mappings with packets both ways over more than two seconds.
    pub answered: Vec<IdleTry>,
    /// A mapping with one more packet from inside.
    pub refreshed_out: Option<Refresh>,
    /// A mapping with one more packet from outside.
    pub refreshed_in: Option<Refresh>,
}

/// One mapping that was left alone, then sent to from outside.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct IdleTry {
    /// Time since its last packet, s.
    pub idle_s: f64,
    /// The packet from outside reached the host.
    pub alive: bool,
    /// The path carried a control packet, where it did not.
    pub sure: bool,
}

/// A mapping that got one more packet before its idle time ended, and was sent to after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Refresh {
    /// Time of the packet, s; below the idle time.
    pub packet_at_s: f64,
    /// Time of the packet from outside that asked for it, s; above the idle time.
    pub asked_at_s: f64,
    /// The mapping was still there.
    pub alive: bool,
    /// The path carried a control packet, where it was not.
    pub sure: bool,
}
