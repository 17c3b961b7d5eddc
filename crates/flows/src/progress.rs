//! How far flows have come, read often and cheaply.

use std::net::SocketAddr;

use weir_bpf::Map;

use crate::Result;
use crate::shared::{self, WeirFlow, WeirSide, WeirSlot};
use crate::table::{Tracked, ends, is};

/// Bytes of the headers of IPv4 and TCP with a timestamp (RFC 9293, RFC 7323).
const HEADERS: u32 = 52;

/// Counters of a flow that tell how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowProgress {
    /// The end that began it.
    pub client: SocketAddr,
    /// The end that answers, as in [`crate::FlowCounts::server`].
    pub server: SocketAddr,
    /// Its SYN was seen.
    pub seen_from_start: bool,
    /// The side of the client, and the side of the server.
    pub sides: [SideProgress; 2],
}

/// Counters of what one side sent, since the flow is tracked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SideProgress {
    /// Bytes of IP packets, as they came in.
    pub bytes: u64,
    /// Segments that were lost after they came here. The count falls if one of them turns out to have arrived.
    pub lost_behind: u64,
    /// Bytes of IP of a full segment.
    pub segment_bytes: u32,
    /// Round trips between this host and this side, and their sum, ns.
    pub trips: u64,
    /// The sum, ns.
    pub trips_ns: u64,
    /// The shortest of them, ns; 0: none was measured.
    pub smallest_ns: u64,
}

impl SideProgress {
    fn of(side: &WeirSide) -> Self {
        SideProgress {
            bytes: side.bytes,
            lost_behind: side.lost_behind,
            segment_bytes: side.largest + HEADERS,
            trips: side.trips.count,
            trips_ns: side.trips.total,
            smallest_ns: side.trips.smallest,
        }
    }
}

/// Reads flows while a [`crate::Watch`] goes on.
#[derive(Debug)]
pub struct ProgressReader {
    slots: Map,
}

impl ProgressReader {
    pub(crate) fn new(slots: Map) -> Self {
        ProgressReader { slots }
    }

    /// The flows that were tracked first, at most `most`: those with the most packets are among them, because the first packet of each
    /// brought it there. The place of a flow in the list stays as long as [`crate::Watch`] is not read.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn read(&self, most: u32) -> Result<Vec<FlowProgress>> {
        let mut flows = Vec::new();
        for at in 0..most.min(self.slots.entries()) {
            let slot: Option<WeirSlot> = self.slots.get_locked(&at)?;
            let Some(flow) = slot.as_ref().and_then(WeirFlow::of) else { break };
            flows.push(progress(flow));
        }
        Ok(flows)
    }
}

fn progress(flow: &WeirFlow) -> FlowProgress {
    let (client, server) = ends(&flow.ends[0]);
    let answers = is(flow, shared::WEIR_IS_JOINED).then(|| ends(&flow.ends[1]).0);
    FlowProgress {
        client,
        server: answers.unwrap_or(server),
        seen_from_start: is(flow, shared::WEIR_IS_WHOLE),
        sides: [0, 1].map(|number| SideProgress::of(&flow.sides[number])),
    }
}
