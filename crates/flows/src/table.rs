//! The tables of flows in the kernel, one of TCP and one of UDP. The programs add flows; only this driver removes them.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use weir_bpf::{Map, Mapped, Object, Plain};
use weir_netlink::Protocol;

use crate::Result;
use crate::sample::Sample;
use crate::shared::{
    self, WeirEnds, WeirFlow, WeirRemoved, WeirReported, WeirReporter, WeirSlot, WeirUdpFlow, WeirUdpSlot,
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
    /// The names of its maps: slots, free ones, those in use, directions.
    const MAPS: [&'static str; 4];
    /// Its entry in the maps of counters.
    const OPENING: usize;

    /// The flow of a slot that is in use.
    fn of(slot: &Self::Slot) -> Option<&Self>;
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
    const MAPS: [&'static str; 4] = ["slots", "vacant", "in_use", "directions"];
    const OPENING: usize = 0;

    fn of(slot: &WeirSlot) -> Option<&Self> {
        (slot.used != 0).then_some(&slot.flow)
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
    const MAPS: [&'static str; 4] = ["udp_slots", "udp_vacant", "udp_in_use", "udp_directions"];
    const OPENING: usize = 1;

    fn of(slot: &WeirUdpSlot) -> Option<&Self> {
        (slot.used != 0).then_some(&slot.flow)
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
    removed: Mapped<WeirRemoved>,
    sample: Sample,
}

/// Flows of one protocol.
#[derive(Debug)]
struct Slots<F> {
    slots: Map,
    vacant: Map,
    in_use: Mapped<u64>,
    directions: Map,
    /// Slots whose directions were removed a reading ago. A packet that was under way with their number has passed by now.
    leaving: Vec<u32>,
    flow: PhantomData<F>,
}

/// Runs of slots that have all those in use, of `entries` slots. A few others between them are cheaper than one more system call.
fn runs(entries: u32, is_in_use: impl Fn(u32) -> bool) -> Vec<Range<u32>> {
    const GAP: u32 = 4;
    let mut runs: Vec<Range<u32>> = Vec::new();
    for at in (0..entries).filter(|at| is_in_use(*at)) {
        match runs.last_mut() {
            Some(last) if at <= last.end + GAP => last.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
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
        let [slots, vacant, in_use, directions] = F::MAPS.map(|name| object.map(name));
        let new = Slots {
            slots: slots?,
            vacant: vacant?,
            in_use: in_use?.share()?,
            directions: directions?,
            leaving: Vec::new(),
            flow: PhantomData,
        };
        for at in (0..new.slots.entries()).rev() {
            new.vacant.set::<[u8; 0], u32>(&[], &at)?;
        }
        Ok(new)
    }

    /// `counted` has the number of those that were removed without an answer.
    fn read(&mut self, now: u64, counted: &Mapped<WeirRemoved>, share: u32) -> Result<Flows<F>> {
        for at in std::mem::take(&mut self.leaving) {
            self.slots.set(&at, &F::Slot::zeroed())?;
            self.in_use.set(at as usize, 0);
            self.vacant.set::<[u8; 0], u32>(&[], &at)?;
        }
        // Slots that are not in use would take most of the time.
        let runs = runs(self.slots.entries(), |at| self.in_use.get(at as usize) != 0);
        let (mut all, mut places) = (Vec::with_capacity(runs.iter().map(Range::len).sum()), Vec::new());
        for run in runs {
            self.slots.locked_values(run, |at, slot: &F::Slot| {
                if let Some(flow) = F::of(slot) {
                    all.push(*flow);
                    places.push(at);
                }
            })?;
        }
        // A sample that became smaller leaves out flows that were in it.
        let leaves = |flow: &F| flow.is_over(now) || flow.draw() > share;
        let mut removed = Vec::new();
        for (flow, at) in all.iter().zip(places).filter(|(flow, _)| leaves(flow)) {
            self.remove(at, flow, counted)?;
            removed.push(*flow);
        }
        Ok(Flows { all, removed })
    }

    fn remove(&mut self, at: u32, flow: &F, removed: &Mapped<WeirRemoved>) -> Result<()> {
        self.directions.remove(&flow.ends()[0])?;
        if is(flow, shared::WEIR_IS_JOINED) {
            self.directions.remove(&flow.ends()[1])?;
        }
        if is(flow, shared::WEIR_IS_OPENING) {
            let before = removed.get(F::OPENING).opening;
            removed.set(F::OPENING, WeirRemoved { opening: before + 1 });
        }
        self.leaving.push(at);
        Ok(())
    }
}

impl Table {
    pub(crate) fn new(object: &Object) -> Result<Self> {
        Ok(Table {
            tcp: Slots::new(object)?,
            udp: Slots::new(object)?,
            counts: object.map("counts")?,
            reporters: object.map("reporters")?,
            removed: object.map("removed")?.share()?,
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
        let tcp = self.tcp.read(now, &self.removed, share)?;
        let udp = self.udp.read(now, &self.removed, share)?;
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

#[cfg(test)]
mod tests {
    use weir_sys::privilege::test_needs_root;

    use super::*;
    use crate::watch::load;

    #[test]
    fn root_slots_are_read_from_any_place_on() {
        if test_needs_root() {
            return;
        }
        let object = load(&crate::Options { flows: 300, ..crate::Options::default() }).unwrap();
        let slots = object.map("slots").unwrap();
        for at in 0..300_u32 {
            let mut slot = WeirSlot::zeroed();
            (slot.used, slot.flow.draw) = (1, 7 * at);
            slots.set(&at, &slot).unwrap();
        }
        // Within one batch of 64, over several, to the end, and none.
        for range in [0..1, 0..64, 0..300, 1..66, 5..205, 299..300, 7..7] {
            let mut seen = Vec::new();
            slots
                .locked_values(range.clone(), |at, slot: &WeirSlot| seen.push((at, slot.flow.draw)))
                .unwrap();
            assert_eq!(seen, range.map(|at| (at, 7 * at)).collect::<Vec<_>>());
        }
        assert!(slots.locked_values(0..301, |_, _: &WeirSlot| ()).is_err());
        assert!(slots.locked_values(0..1, |_, _: &WeirUdpSlot| ()).is_err(), "values of another size");
    }

    #[test]
    fn runs_have_every_slot_in_use_and_few_others() {
        let of = |used: &[u32]| -> Vec<(u32, u32)> {
            runs(20, |at| used.contains(&at)).iter().map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[0]), [(0, 1)]);
        assert_eq!(of(&[0, 1, 2, 19]), [(0, 3), (19, 20)]);
        assert_eq!(of(&[3, 8, 14]), [(3, 9), (14, 15)], "four between are read, five are not");
    }
}
