//! TCP that passed through a namespace, by the networks on either side.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// TCP that passed through a namespace in the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transit {
    /// Interfaces whose incoming packets were watched; text from outside.
    pub interfaces: Vec<String>,
    /// Flows that were tracked.
    pub flows: u64,
    /// Packets of tracked flows.
    pub judged: u64,
    /// Packets of flows that found no room.
    pub untracked: u64,
    /// Networks of clients and of servers, those with the most losses and then bytes first.
    pub networks: Vec<TransitNetwork>,
    /// Networks that are left out.
    pub more: u64,
}

/// The flows of a network on one side, and the way between it and this host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TransitNetwork {
    /// Address and prefix length.
    pub network: String,
    /// Its ends answer; else they begin the connections.
    pub servers: bool,
    /// The interface by which its packets come; empty if none came. Text from outside.
    pub interface: String,
    /// An address in it: the one with the most losses.
    pub example: Option<IpAddr>,
    /// Flows.
    pub flows: u64,
    /// Bytes of IP packets, both ways.
    pub bytes: u64,
    /// Segments that this host passed towards it, and that came again because they were lost behind this host.
    pub lost_to: Repeated,
    /// Segments from it, and those that it sent again because they had not come here.
    pub lost_from: Repeated,
    /// Segments to it that were sent again although they had arrived.
    pub needless_to: u64,
    /// Smallest round trip between this host and it, ns; 0: none was measured.
    pub smallest_ns: u64,
    /// Median of the round trips, ns: the upper end of its bucket.
    pub median_ns: u64,
    /// The queue on the way to it, or to a host in it.
    pub queueing: Queueing,
    /// Hosts in it that do not acknowledge a segment however often it comes, at most eight.
    pub stuck: Vec<StuckHost>,
    /// Connections that began in the window, or tried to.
    pub attempts: u64,
    /// Those of them whose SYN had no answer for a second.
    pub unanswered: u64,
    /// Address and port with the most of those.
    pub silent: Option<SilentPort>,
    /// Connections that it began, that were answered again and again, and that never went on.
    pub half_open: u64,
    /// Flows that it began and in which it sent more than SYNs.
    pub went_on: u64,
    /// Connections that it refused: a reset in answer to a SYN.
    pub refused: u64,
    /// Connections that it reset after data had passed.
    pub aborted: u64,
    /// Flows in which it closed its receive window, and the longest such time of a flow, ns.
    pub shut: (u64, u64),
    /// Share of the time, 0 to 1, in which the senders towards it waited for the network: after a loss, or over a queue.
    #[serde(default)]
    pub network_limited: f64,
    /// Traffic towards it, many times a second, if it lost 20 segments; the last 30 s at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moments: Vec<Moment>,
}

/// A twentieth of a second or so of what went towards a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Its length, us.
    pub us: u32,
    /// Bytes of IP packets that passed this host towards the network.
    pub bytes: u64,
    /// Bytes of these that turned out to be lost behind this host; negative if earlier ones turned out not to be.
    pub lost: i64,
    /// Round trips that were measured.
    pub trips: u32,
    /// Their sum, ns.
    pub trips_ns: u64,
}

/// Segments, and how many of them had to be sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeated {
    /// Lost.
    pub lost: u64,
    /// All of them.
    pub of: u64,
    /// 95 % interval of the share, widened by how much flows differ; 0 to 1.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Repeated {
    /// The share, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.of == 0 { 0.0 } else { self.lost as f64 / self.of as f64 }
    }
}

/// Packets that wait in a queue on the way to a network, or to a host in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queueing {
    /// Flows whose round trips grew by it.
    pub flows: u64,
    /// Their bytes, both ways.
    pub bytes: u64,
    /// Round trips that were measured while packets waited.
    pub trips: u64,
    /// How long packets waited in all, us.
    pub us: u64,
    /// Mean of what these trips took beyond the shortest one of their flow, ns.
    pub usual_ns: u64,
    /// The same at the worst moment, ns.
    pub longest_ns: u64,
}

/// A host that does not acknowledge a segment however often it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckHost {
    /// Its address.
    pub address: IpAddr,
    /// Connections that stand still at a segment of 600 bytes of data or more that came again twice or more.
    pub long: u64,
    /// How often those segments came again.
    pub times: u64,
    /// The shortest of those segments, bytes of data.
    pub shortest: u32,
    /// The longest.
    pub longest: u32,
    /// Connections that stand still at a shorter segment.
    pub short: u64,
    /// The longest segment that this host acknowledged, on any connection, bytes of data.
    pub carried: u32,
    /// Other packets came from it meanwhile: it lives.
    pub answers: bool,
}

/// An address and port that does not answer SYNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentPort {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Connections that it did not answer.
    pub unanswered: u64,
    /// Connections that it was asked for.
    pub attempts: u64,
}
