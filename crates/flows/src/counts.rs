//! Flows with their counters as they are.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::fraction::Counts;
use crate::limits::{Limits, Waits};
use crate::shared::{self, WeirFlow};
use crate::side::{RoundTrips, Trips, lost_before, lost_behind};
use crate::table::{ends, is};

/// A flow, with its counters as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowCounts {
    /// The end that began it.
    pub client: SocketAddr,
    /// The end that answers. Behind destination NAT it is known by its own address once it has answered.
    pub server: SocketAddr,
    /// Interfaces by which the packets of the client and of the server come; `None`: none came.
    pub interfaces: [Option<String>; 2],
    /// Its SYN awaits an answer.
    pub opening: bool,
    /// Its SYN was seen.
    pub seen_from_start: bool,
    /// Connections that had these ends and began meanwhile.
    pub connections: u32,
    /// Time since its first packet, ns.
    pub age_ns: u64,
    /// Packets of the client, and packets of the server.
    pub sides: [SideCounts; 2],
}

/// Counters of the packets that one side sent. See [`crate::Side`] for the words.
#[derive(Debug, Clone, PartialEq)]
pub struct SideCounts {
    /// Bytes of IP packets, as they came in.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Segments with data or an end, with those that came again.
    pub segments: u64,
    /// First copies that were lost before they came here, of all that came.
    pub lost_before: Counts,
    /// Copies that were lost after they came here, of all segments.
    pub lost_behind: Counts,
    /// Segments sent again although they had arrived.
    pub needless: u64,
    /// SYNs, with and without ACK.
    pub syns: u64,
    /// Resets.
    pub resets: u64,
    /// How often it closed its receive window.
    pub zero_windows: u64,
    /// For how long in all it was closed, ns.
    pub zero_window_ns: u64,
    /// The other side awaits a segment that came again that many times since; 0: it awaits none that came twice.
    pub stuck: u32,
    /// The shortest copy of that segment, bytes of data.
    pub stuck_bytes: u32,
    /// The longest segment that the other side has acknowledged as a whole, bytes of data; 0: none in sight.
    pub carried_bytes: u32,
    /// Round trips between this host and this side.
    pub round_trips: RoundTrips,
    /// Who limits it as a sender.
    pub limits: Limits,
}

impl SideCounts {
    fn of(flow: &WeirFlow, number: usize, now: u64) -> Self {
        let side = &flow.sides[number];
        let shut_now = if side.shut_at > 0 { now.saturating_sub(side.shut_at) } else { 0 };
        SideCounts {
            bytes: side.bytes,
            packets: side.packets,
            segments: side.segments,
            lost_before: lost_before(side),
            lost_behind: lost_behind(side),
            needless: side.needless,
            syns: side.syns,
            resets: side.resets,
            zero_windows: side.zero_windows,
            zero_window_ns: side.shut + shut_now,
            stuck: side.stuck,
            stuck_bytes: side.stuck_bytes,
            carried_bytes: side.carried,
            round_trips: Trips::of(&side.trips, side.last).report(),
            limits: Waits::of(flow, number, now).report(),
        }
    }
}

impl FlowCounts {
    /// `now` is CLOCK_MONOTONIC, ns.
    pub(crate) fn of(flow: &WeirFlow, interfaces: &BTreeMap<u32, String>, now: u64) -> Self {
        let (client, server) = ends(&flow.ends[0]);
        let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends[1]).0);
        FlowCounts {
            client,
            server: answers.unwrap_or(server),
            interfaces: flow.interfaces.map(|index| interfaces.get(&index).cloned()),
            opening: is(flow, shared::WEIR_IS_OPENING),
            seen_from_start: is(flow, shared::WEIR_IS_WHOLE),
            connections: flow.connections,
            age_ns: now.saturating_sub(flow.born),
            sides: [0, 1].map(|number| SideCounts::of(flow, number, now)),
        }
    }
}
