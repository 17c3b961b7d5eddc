//! Flows with most bytes: counted one by one for a moment, while a user looks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

use crate::direction::{ends, protocol, tuple};
use crate::shared::{WeirControl, WeirCount, WeirDirection};
use crate::{Count, Error, Fastpath, Protocol, Reason, Result};

/// A look whose user does not come back is ended after this time.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Packets of one direction of a flow that were carried while it was looked at.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TopFlow {
    /// Protocol.
    pub protocol: Protocol,
    /// Source with which its packets come in.
    pub source: SocketAddr,
    /// Destination with which its packets come in.
    pub destination: SocketAddr,
    /// Packets; a super-packet (GSO) is one.
    pub packets: u64,
    /// Bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// The directions of flows with most bytes in a window.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Top {
    /// Length of the window, s.
    pub window_s: f64,
    /// Those with most bytes, the first one first.
    pub flows: Vec<TopFlow>,
    /// Directions that were counted.
    pub counted: usize,
    /// Packets that were carried in the window and belong to no direction that was counted: the table of counts was full. A few may be
    /// packets that came between two readings.
    pub uncounted_packets: u64,
}

/// A window that is open.
#[derive(Debug)]
pub(crate) struct Counting {
    began: Instant,
    carried: Count,
}

impl Counting {
    /// Empties the counts, and begins to count.
    pub(crate) fn begin(fastpath: &Fastpath) -> Result<Self> {
        let tallies = fastpath.map("tallies")?;
        for (flow, _) in tallies.all::<WeirDirection, WeirCount>()? {
            tallies.remove(&flow)?;
        }
        let counting = Counting { began: Instant::now(), carried: carried(fastpath)? };
        fastpath.set_word(std::mem::offset_of!(WeirControl, counting), 1);
        Ok(counting)
    }

    /// Its user has not come back for it.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.began.elapsed() > FORGOTTEN
    }

    /// Ends it without a result.
    pub(crate) fn stop(fastpath: &Fastpath) {
        fastpath.set_word(std::mem::offset_of!(WeirControl, counting), 0);
    }

    /// Ends it: at most so many directions.
    pub(crate) fn end(self, fastpath: &Fastpath, most: usize) -> Result<Top> {
        Counting::stop(fastpath);
        let (window, carried) = (self.began.elapsed(), carried(fastpath)?.packets - self.carried.packets);
        let mut counts = fastpath.map("tallies")?.all::<WeirDirection, WeirCount>()?;
        order::by_key(&mut counts, |(_, count)| std::cmp::Reverse((count.bytes, count.packets)));
        let counted: u64 = counts.iter().map(|(_, count)| count.packets).sum();
        let flow = |(direction, count): &(WeirDirection, WeirCount)| {
            let (source, destination) = ends(&tuple(direction));
            let (protocol, WeirCount { packets, bytes }) = (protocol(direction), *count);
            TopFlow { protocol, source, destination, packets, bytes }
        };
        Ok(Top {
            window_s: window.as_secs_f64(),
            flows: counts.iter().take(most).map(flow).collect(),
            counted: counts.len(),
            uncounted_packets: carried.saturating_sub(counted),
        })
    }
}

fn carried(fastpath: &Fastpath) -> Result<Count> {
    let status = fastpath.status()?;
    Ok(status
        .reasons
        .iter()
        .find(|(reason, _)| *reason == Reason::Carried)
        .map_or_else(Count::default, |r| r.1))
}

/// The error of a second look at the same time.
pub(crate) fn another() -> Error {
    Error::State("another user looks at the flows with most bytes just now; try again in some seconds".into())
}
