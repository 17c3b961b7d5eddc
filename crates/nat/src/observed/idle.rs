//! How long mappings live, and what keeps them alive.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Answered;

/// Idle times of mappings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Idle {
    /// Longest time that was tried, s.
    pub limit_s: f64,
    /// UDP mappings with one packet out and nothing back.
    pub unanswered: Vec<IdleTry>,
    /// UDP mappings with packets both ways over more than two seconds.
    pub answered: Vec<IdleTry>,
    /// Echo requests whose reply comes late.
    pub icmp: Vec<IdleTry>,
    /// SYNs whose answer comes late.
    pub tcp_opening: Vec<IdleTry>,
    /// Established connections of TCP.
    pub tcp_established: Vec<IdleTry>,
    /// Connections of which the inside end has sent its FIN.
    pub tcp_half_closed: Vec<IdleTry>,
    /// Connections with a reset from outside.
    pub tcp_reset_in: Vec<IdleTry>,
    /// Connections with a reset from inside.
    pub tcp_reset_out: Vec<IdleTry>,
    /// A UDP mapping with one more packet from inside.
    pub refreshed_out: Option<Refresh>,
    /// A UDP mapping with one more packet from outside.
    pub refreshed_in: Option<Refresh>,
    /// A UDP mapping about which the inside host has sent an ICMP error.
    pub refreshed_error: Option<Refresh>,
    /// An echo request about which a router has sent an ICMP error.
    #[serde(default)]
    pub icmp_refreshed_error: Option<Refresh>,
    /// An established connection with one more segment from inside.
    pub tcp_refreshed_out: Option<Refresh>,
    /// The same from outside.
    pub tcp_refreshed_in: Option<Refresh>,
    /// A connection with a reset from inside, and a second one.
    pub tcp_refreshed_reset: Option<Refresh>,
    /// Outside ports of one host, and what the other one got later.
    pub port_reuse: Vec<PortReuse>,
    /// The same by SYNs, after the first host's connections were closed.
    #[serde(default)]
    pub tcp_port_reuse: Vec<PortReuse>,
    /// The same while the first host's connections are open.
    #[serde(default)]
    pub tcp_open_port_reuse: Vec<PortReuse>,
    /// Datagrams of flows whose mapping had ended; `None` if none had.
    #[serde(default)]
    pub udp_afterwards: Option<Afterwards>,
    /// The same for segments of established connections.
    #[serde(default)]
    pub tcp_afterwards: Option<Afterwards>,
}

/// Packets of flows whose mapping had ended. Each flow gets packets of one side only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Afterwards {
    /// Sent to the endpoint that the mapping had.
    pub from_outside: Vec<Met>,
    /// Sent by the mapping's host, as before.
    pub from_inside: Vec<Met>,
    /// Answers of the NAT itself were seen, if there were any.
    pub answers_are_seen: bool,
}

/// The fate of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Met {
    /// Outside endpoint of the mapping before it ended.
    pub before: SocketAddr,
    /// Endpoint that it reached inside, or source with which it arrived outside; `None` if it did not cross.
    pub after: Option<SocketAddr>,
    /// Answer of the NAT to the sender.
    pub answered: Option<Answered>,
    /// It crossed, or the path carried a control packet afterwards.
    pub sure: bool,
}

/// One mapping that was left alone, then sent to from outside.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IdleTry {
    /// Time since its last packet, s: the least that it can have been.
    pub idle_s: f64,
    /// How much longer it may have been, s: this host was that late to send, or to see an arrival.
    #[serde(default)]
    pub late_s: f64,
    /// The packet from outside reached the host.
    pub alive: bool,
    /// The path carried a control packet, where it did not.
    pub sure: bool,
}

/// A mapping that got one more packet before its idle time ended, and was sent to after it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// An inside port of one host that the other one uses later, to the same destination.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortReuse {
    /// Outside endpoint of the first host.
    pub first: SocketAddr,
    /// Inside endpoint of the second one.
    pub inside: SocketAddr,
    /// Its packet's time after the first host's last packet, s.
    pub after_s: f64,
    /// Outside endpoint with which that arrived; `None` if it did not.
    pub second: Option<SocketAddr>,
}
