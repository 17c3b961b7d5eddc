//! The table of flows in the kernel. The programs add flows; only this driver removes them.

use std::net::{IpAddr, SocketAddr};

use weir_bpf::{Map, Mapped, Object, Plain};

use crate::Result;
use crate::shared::{self, WeirEnds, WeirFlow, WeirRemoved, WeirSlot};

/// How long a flow stays in the table without a packet, ns: after its end, without an answer to its SYN, and otherwise.
const AFTER_END: u64 = 5_000_000_000;
const OPENING: u64 = 30_000_000_000;
const IDLE: u64 = 300_000_000_000;

/// Whether any of these bits is set in the state of a flow.
pub(crate) fn is(flow: &WeirFlow, bits: u64) -> bool {
    u64::from(flow.state) & bits != 0
}

pub(crate) fn has_ended(flow: &WeirFlow) -> bool {
    let both = shared::WEIR_IS_ENDED0 | shared::WEIR_IS_ENDED1;
    is(flow, shared::WEIR_IS_RESET) || u64::from(flow.state) & both == both
}

/// An end as an address and a port.
pub(crate) fn address(version: u8, words: [u32; 4], port: u16) -> SocketAddr {
    let ip = if version == 6 {
        let mut bytes = [0; 16];
        for (four, word) in bytes.chunks_exact_mut(4).zip(words) {
            four.copy_from_slice(&word.to_ne_bytes());
        }
        IpAddr::from(bytes)
    } else {
        IpAddr::from(words[0].to_ne_bytes())
    };
    SocketAddr::new(ip, u16::from_be(port))
}

/// Whether it leaves the table. `now` is CLOCK_MONOTONIC, ns.
fn is_over(flow: &WeirFlow, now: u64) -> bool {
    let limit = if has_ended(flow) {
        AFTER_END
    } else if is(flow, shared::WEIR_IS_OPENING) {
        OPENING
    } else {
        IDLE
    };
    now.saturating_sub(flow.last) > limit
}

/// Maps of the loaded object.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Map,
    vacant: Map,
    directions: Map,
    counts: Map,
    removed: Mapped<WeirRemoved>,
    /// Slots whose directions were removed a reading ago. A packet that was under way with their number has passed by now.
    leaving: Vec<u32>,
}

/// All that the kernel has.
pub(crate) struct Contents {
    /// Flows in use.
    pub(crate) flows: Vec<WeirFlow>,
    /// Those of them that were removed by this reading.
    pub(crate) removed: Vec<WeirFlow>,
    /// Packets with each verdict.
    pub(crate) verdicts: [u64; shared::WEIR_VERDICTS as usize],
}

impl Table {
    pub(crate) fn new(object: &Object) -> Result<Self> {
        let table = Table {
            slots: object.map("slots")?,
            vacant: object.map("vacant")?,
            directions: object.map("directions")?,
            counts: object.map("counts")?,
            removed: object.map("removed")?.share()?,
            leaving: Vec::new(),
        };
        for at in (0..table.slots.entries()).rev() {
            table.vacant.set::<[u8; 0], u32>(&[], &at)?;
        }
        Ok(table)
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.entries()
    }

    /// Reads all, and removes flows that are over. `now` is CLOCK_MONOTONIC, ns.
    pub(crate) fn read(&mut self, now: u64) -> Result<Contents> {
        for at in std::mem::take(&mut self.leaving) {
            self.slots.set(&at, &WeirSlot::zeroed())?;
            self.vacant.set::<[u8; 0], u32>(&[], &at)?;
        }
        let mut flows: Vec<(u32, WeirFlow)> = Vec::new();
        let mut at = 0;
        self.slots.each_locked_value(|slot: WeirSlot| {
            if slot.used != 0 {
                flows.push((at, slot.flow));
            }
            at += 1;
        })?;
        let over = flows.iter().filter(|(_, flow)| is_over(flow, now));
        let removed: Vec<(u32, WeirFlow)> = over.copied().collect();
        for (at, flow) in &removed {
            self.remove(*at, flow)?;
        }
        let flows = flows.into_iter().map(|(_, flow)| flow).collect();
        let removed = removed.into_iter().map(|(_, flow)| flow).collect();
        Ok(Contents { flows, removed, verdicts: self.verdicts()? })
    }

    fn remove(&mut self, at: u32, flow: &WeirFlow) -> Result<()> {
        self.directions.remove(&flow.ends[0])?;
        if is(flow, shared::WEIR_IS_JOINED) {
            self.directions.remove(&flow.ends[1])?;
        }
        if is(flow, shared::WEIR_IS_OPENING) {
            self.removed.set(0, WeirRemoved { opening: self.removed.get(0).opening + 1 });
        }
        self.leaving.push(at);
        Ok(())
    }

    fn verdicts(&self) -> Result<[u64; shared::WEIR_VERDICTS as usize]> {
        let mut sums = [0; shared::WEIR_VERDICTS as usize];
        for (at, counts) in self.counts.all_by_cpu::<u32, shared::WeirCount>()? {
            if let Some(sum) = sums.get_mut(at as usize) {
                *sum = counts.iter().map(|c| c.packets).sum();
            }
        }
        Ok(sums)
    }
}

/// The two directions of a flow, as packets of either side come in.
pub(crate) fn ends(ends: &WeirEnds) -> (SocketAddr, SocketAddr) {
    (
        address(ends.version, ends.source, ends.source_port),
        address(ends.version, ends.destination, ends.destination_port),
    )
}
