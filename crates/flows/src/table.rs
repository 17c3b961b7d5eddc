//! The tables of flows in the kernel, one of TCP and one of UDP. The programs add flows; only this driver removes them.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};

use weir_bpf::{Map, Mapped, Object, Plain};
use weir_netlink::Protocol;

use crate::Result;
use crate::sample::Sample;
use crate::shared::{
    self, WeirEnds, WeirFlow, WeirOpening, WeirRemoved, WeirReported, WeirReporter, WeirSlot, WeirUdpFlow,
    WeirUdpSlot,
};

/// How long a flow stays in the table without a packet, ns: after its end, without an answer to its SYN, and otherwise.
const AFTER_END: u64 = 5_000_000_000;
const OPENING: u64 = 30_000_000_000;
const IDLE: u64 = 300_000_000_000;

/// The same of UDP: as long as conntrack keeps such flows by default.
const UDP_OPENING: u64 = 30_000_000_000;
const UDP_IDLE: u64 = 120_000_000_000;

/// A flow of either table.
pub(crate) trait Tracked: Plain {
    /// Its protocol.
    const PROTOCOL: Protocol;
    /// Its slot.
    type Slot: Plain;
    /// The names of its maps: slots, free ones, directions.
    const MAPS: [&'static str; 3];
    /// Its entry in the maps of counters.
    const OPENING: usize;

    /// The flow of a slot that is in use.
    fn of(slot: &Self::Slot) -> Option<Self>;
    fn ends(&self) -> &[WeirEnds; 2];
    fn state(&self) -> u32;
    /// Bytes of the client, and of the server.
    fn side_bytes(&self) -> [u64; 2];
    /// Its number in the draw of the sample.
    fn draw(&self) -> u32;
    /// Whether it leaves the table. `now` is CLOCK_MONOTONIC, ns.
    fn is_over(&self, now: u64) -> bool;
}

impl Tracked for WeirFlow {
    const PROTOCOL: Protocol = Protocol::Tcp;
    type Slot = WeirSlot;
    const MAPS: [&'static str; 3] = ["slots", "vacant", "directions"];
    const OPENING: usize = 0;

    fn of(slot: &WeirSlot) -> Option<Self> {
        (slot.used != 0).then_some(slot.flow)
    }

    fn ends(&self) -> &[WeirEnds; 2] {
        &self.ends
    }

    fn state(&self) -> u32 {
        self.state
    }

    fn side_bytes(&self) -> [u64; 2] {
        [self.sides[0].bytes, self.sides[1].bytes]
    }

    fn draw(&self) -> u32 {
        self.draw
    }

    fn is_over(&self, now: u64) -> bool {
        let limit = if has_ended(self) {
            AFTER_END
        } else if is(self, shared::WEIR_IS_OPENING) {
            OPENING
        } else {
            IDLE
        };
        now.saturating_sub(self.last) > limit
    }
}

impl Tracked for WeirUdpFlow {
    const PROTOCOL: Protocol = Protocol::Udp;
    type Slot = WeirUdpSlot;
    const MAPS: [&'static str; 3] = ["udp_slots", "udp_vacant", "udp_directions"];
    const OPENING: usize = 1;

    fn of(slot: &WeirUdpSlot) -> Option<Self> {
        (slot.used != 0).then_some(slot.flow)
    }

    fn ends(&self) -> &[WeirEnds; 2] {
        &self.ends
    }

    fn state(&self) -> u32 {
        self.state
    }

    fn side_bytes(&self) -> [u64; 2] {
        [self.sides[0].bytes, self.sides[1].bytes]
    }

    fn draw(&self) -> u32 {
        self.draw
    }

    fn is_over(&self, now: u64) -> bool {
        let limit = if is(self, shared::WEIR_IS_OPENING) { UDP_OPENING } else { UDP_IDLE };
        now.saturating_sub(self.last) > limit
    }
}

/// Whether any of these bits is set in the state of a flow.
pub(crate) fn is(flow: &impl Tracked, bits: u64) -> bool {
    u64::from(flow.state()) & bits != 0
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

/// Maps of the loaded object.
#[derive(Debug)]
pub(crate) struct Table {
    tcp: Slots<WeirFlow>,
    udp: Slots<WeirUdpFlow>,
    counts: Map,
    reporters: Map,
    totals: Totals,
    sample: Sample,
}

/// Flows of one protocol.
#[derive(Debug)]
struct Slots<F> {
    slots: Map,
    vacant: Map,
    directions: Map,
    /// Slots whose directions were removed a reading ago. A packet that was under way with their number has passed by now.
    leaving: Vec<u32>,
    flow: PhantomData<F>,
}

/// All that the kernel has.
pub(crate) struct Contents {
    /// TCP.
    pub(crate) tcp: Flows<WeirFlow>,
    /// UDP.
    pub(crate) udp: Flows<WeirUdpFlow>,
    /// Packets with each verdict.
    pub(crate) verdicts: [u64; shared::WEIR_VERDICTS as usize],
}

/// Flows of one table.
pub(crate) struct Flows<F> {
    /// Those in use.
    pub(crate) all: Vec<F>,
    /// Those of them that were removed by this reading.
    pub(crate) removed: Vec<F>,
}

impl<F: Tracked> Slots<F> {
    fn new(object: &Object) -> Result<Self> {
        let [slots, vacant, directions] = F::MAPS.map(|name| object.map(name));
        let new = Slots {
            slots: slots?,
            vacant: vacant?,
            directions: directions?,
            leaving: Vec::new(),
            flow: PhantomData,
        };
        for at in (0..new.slots.entries()).rev() {
            new.vacant.set::<[u8; 0], u32>(&[], &at)?;
        }
        Ok(new)
    }

    fn read(&mut self, now: u64, totals: &Totals, share: u32) -> Result<Flows<F>> {
        for at in std::mem::take(&mut self.leaving) {
            self.slots.set(&at, &F::Slot::zeroed())?;
            self.vacant.set::<[u8; 0], u32>(&[], &at)?;
        }
        let mut flows: Vec<(u32, F)> = Vec::new();
        let mut at = 0;
        // Slots that were never used would take most of the time.
        self.slots.first_locked_values(totals.ever_used::<F>(), |slot: F::Slot| {
            flows.extend(F::of(&slot).map(|flow| (at, flow)));
            at += 1;
        })?;
        // A sample that became smaller leaves out flows that were in it.
        let leaves = |flow: &F| flow.is_over(now) || flow.draw() > share;
        let removed: Vec<(u32, F)> = flows.iter().filter(|(_, flow)| leaves(flow)).copied().collect();
        for (at, flow) in &removed {
            self.remove(*at, flow, totals)?;
        }
        let bare = |these: Vec<(u32, F)>| these.into_iter().map(|(_, flow)| flow).collect();
        Ok(Flows { all: bare(flows), removed: bare(removed) })
    }

    fn remove(&mut self, at: u32, flow: &F, totals: &Totals) -> Result<()> {
        self.directions.remove(&flow.ends()[0])?;
        if is(flow, shared::WEIR_IS_JOINED) {
            self.directions.remove(&flow.ends()[1])?;
        }
        if is(flow, shared::WEIR_IS_OPENING) {
            totals.forget_opening::<F>();
        }
        self.leaving.push(at);
        Ok(())
    }
}

/// Counters of flows, one set of each protocol.
#[derive(Debug)]
struct Totals {
    /// The programs write these.
    opening: Mapped<WeirOpening>,
    /// And we these.
    removed: Mapped<WeirRemoved>,
}

impl Totals {
    fn new(object: &Object) -> Result<Self> {
        Ok(Totals { opening: object.map("opening")?.share()?, removed: object.map("removed")?.share()? })
    }

    /// How many slots, from the first on, may hold a flow.
    fn ever_used<F: Tracked>(&self) -> u32 {
        u32::try_from(self.opening.get(F::OPENING).unused_from).unwrap_or(u32::MAX)
    }

    /// A flow that awaited an answer was removed.
    fn forget_opening<F: Tracked>(&self) {
        let before = self.removed.get(F::OPENING).opening;
        self.removed.set(F::OPENING, WeirRemoved { opening: before + 1 });
    }
}

impl Table {
    pub(crate) fn new(object: &Object) -> Result<Self> {
        Ok(Table {
            tcp: Slots::new(object)?,
            udp: Slots::new(object)?,
            counts: object.map("counts")?,
            reporters: object.map("reporters")?,
            totals: Totals::new(object)?,
            sample: Sample::new(object.map(".bss.sample")?.share()?),
        })
    }

    /// TCP flows, and UDP flows, that can be tracked at a time.
    pub(crate) fn capacity(&self) -> [u32; 2] {
        [self.tcp.slots.entries(), self.udp.slots.entries()]
    }

    /// Reads all, and removes flows that are over. `now` is CLOCK_MONOTONIC, ns.
    pub(crate) fn read(&mut self, now: u64) -> Result<Contents> {
        self.sample.at(now);
        let share = self.sample.share();
        let tcp = self.tcp.read(now, &self.totals, share)?;
        let udp = self.udp.read(now, &self.totals, share)?;
        Ok(Contents { tcp, udp, verdicts: self.verdicts()? })
    }

    /// Sets which share of all flows is tracked. Those that are no longer in the sample leave at the next reading.
    pub(crate) fn set_share(&mut self, share: f64) {
        self.sample.set_share(share);
    }

    /// Tells whether each packet has a header of Ethernet. If not, those outside of the sample take longer.
    pub(crate) fn set_ethernet(&mut self, is_ethernet: bool) {
        self.sample.set_ethernet(is_ethernet);
    }

    /// ICMP errors by sender and kind.
    pub(crate) fn icmp_errors(&self) -> Result<Vec<(WeirReporter, WeirReported)>> {
        Ok(self.reporters.all()?)
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
