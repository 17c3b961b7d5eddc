//! Flows that were carried and then fell silent. Conntrack counts its timeout from the last packet that it saw. Here the timeout is
//! renewed, as if conntrack had seen the last packet that was carried.

use std::time::{Duration, Instant};

use weir_bpf::Mapped;

use crate::options::RENEWALS_PER_SECOND;
use crate::shared::{
    WEIR_PHASE_MASK, WEIR_UDP, WEIR_VALID, WEIR_WAYS, WeirBucket4, WeirBucket6, WeirControl, WeirDirection,
    WeirFlow4, WeirFlow6, WeirIdle, WeirWay,
};
use crate::{Fastpath, Result};

/// Longest time for a walk over the whole table.
const WALK: Duration = Duration::from_secs(10);
/// A flow is idle if it had no packet for as many renewals of the lease.
const IDLE: u8 = 2;
const TCP: u16 = 6;
const UDP: u16 = 17;

/// A walk over both tables that never ends: a part of the buckets at a time.
#[derive(Debug)]
pub(crate) struct Walk {
    v4: Mapped<WeirBucket4>,
    v6: Mapped<WeirBucket6>,
    /// The same memory, to write single bytes.
    bytes4: Mapped<u8>,
    bytes6: Mapped<u8>,
    next: usize,
    walked: Instant,
}

impl Walk {
    pub(crate) fn new(fastpath: &Fastpath) -> Result<Self> {
        Ok(Walk {
            v4: fastpath.table("flows4")?,
            v6: fastpath.table("flows6")?,
            bytes4: fastpath.table("flows4")?,
            bytes6: fastpath.table("flows6")?,
            next: 0,
            walked: Instant::now(),
        })
    }

    /// Goes on by as many buckets as are due, and calls `keep` for flows that are idle, to renew their timeouts.
    pub(crate) fn go_on(
        &mut self,
        control: &WeirControl,
        mut keep: impl FnMut(&WeirIdle) -> Result<()>,
    ) -> Result<()> {
        let hz = f64::from(control.hz.max(1));
        // Within a quarter of the shortest timeout; another quarter may have passed since conntrack saw a packet.
        let whole = WALK.min(Duration::from_secs_f64(f64::from(control.shortest) / hz / 4.0));
        // Buckets in use, those of IPv4 first.
        let all = control.mask4 as usize + 1 + control.mask6 as usize + 1;
        let share = self.walked.elapsed().as_secs_f64() / whole.as_secs_f64().max(0.001);
        let count = ((all as f64 * share) as usize).min(all);
        if count == 0 {
            return Ok(());
        }
        self.walked = Instant::now();
        for at in (0..count).map(|n| (self.next + n) % all) {
            self.visit(at, control, &mut keep)?;
        }
        self.next = (self.next + count) % all;
        Ok(())
    }

    fn visit(
        &self,
        at: usize,
        control: &WeirControl,
        keep: &mut impl FnMut(&WeirIdle) -> Result<()>,
    ) -> Result<()> {
        let v4 = control.mask4 as usize + 1;
        if at < v4 {
            for (n, flow) in self.v4.get(at).flows.iter().enumerate() {
                if let Some(idle) = idle(&flow.way, control) {
                    let byte = (at * WEIR_WAYS as usize + n) * size_of::<WeirFlow4>() + LAST;
                    self.bytes4.set(byte, 0);
                    let words = |word| [word, 0, 0, 0];
                    let flow =
                        direction(&flow.way, words(flow.source), words(flow.destination), flow.ports, 4);
                    keep(&WeirIdle { flow, ..idle })?;
                }
            }
            return Ok(());
        }
        let at = at - v4;
        for (n, flow) in self.v6.get(at).flows.iter().enumerate() {
            if let Some(idle) = idle(&flow.way, control) {
                let byte = (at * WEIR_WAYS as usize + n) * size_of::<WeirFlow6>() + LAST;
                self.bytes6.set(byte, 0);
                let flow = direction(&flow.way, flow.source, flow.destination, flow.ports, 6);
                keep(&WeirIdle { flow, ..idle })?;
            }
        }
        Ok(())
    }
}

/// Offset of the byte that says when a packet was carried last.
const LAST: usize = std::mem::offset_of!(WeirFlow4, way) + std::mem::offset_of!(WeirWay, last);
const _: () = assert!(std::mem::offset_of!(WeirFlow6, way) == std::mem::offset_of!(WeirFlow4, way));

fn direction(
    way: &WeirWay,
    source: [u32; 4],
    destination: [u32; 4],
    ports: u32,
    version: u16,
) -> WeirDirection {
    let protocol = if u64::from(way.state) & WEIR_UDP == 0 { TCP } else { UDP };
    WeirDirection { source, destination, ports, version, protocol }
}

/// Renewals of the lease since a packet was carried; `None` if none was since the timeout was renewed.
pub(crate) fn ticks_since(way: &WeirWay, control: &WeirControl) -> Option<u8> {
    // Ticks are 1 to 255.
    let now = control.tick as u8;
    (way.last != 0).then(|| if now >= way.last { now - way.last } else { 255 - way.last + now })
}

/// The times of a flow that is idle since a packet of it was carried; without its addresses.
fn idle(way: &WeirWay, control: &WeirControl) -> Option<WeirIdle> {
    let ticks = ticks_since(way, control).filter(|ticks| *ticks >= IDLE)?;
    if u64::from(way.state) & WEIR_PHASE_MASK != WEIR_VALID {
        return None;
    }
    // The packet may have come at the end of its tick.
    let idle = u32::from(ticks - 1) * control.hz / RENEWALS_PER_SECOND;
    let flow = WeirDirection { source: [0; 4], destination: [0; 4], ports: 0, version: 0, protocol: 0 };
    let one_way = u64::from(way.state) & WEIR_UDP != 0 && way.progress != 0;
    Some(WeirIdle { flow, timeout: way.timeout, idle, one_way: one_way.into() })
}

#[cfg(test)]
mod tests {
    use weir_bpf::Plain;

    use super::*;

    #[test]
    fn a_flow_is_idle_two_ticks_after_its_last_packet_and_only_once() {
        let control = |tick| WeirControl { tick, hz: 250, ..WeirControl::zeroed() };
        let way = |last| WeirWay { state: WEIR_VALID as u32, last, timeout: 7500, ..WeirWay::zeroed() };
        let after = |last, tick| idle(&way(last), &control(tick)).map(|i| (i.timeout, i.idle));
        assert_eq!(after(10, 10), None);
        assert_eq!(after(10, 11), None);
        assert_eq!(after(10, 12), Some((7500, 125)));
        assert_eq!(after(254, 2), Some((7500, 250)), "254, 255, 1, 2");
        assert_eq!(after(0, 12), None, "nothing was carried since the timeout was renewed");
        let one_way = |udp, progress| {
            let state = (WEIR_VALID | udp) as u32;
            idle(&WeirWay { state, progress, ..way(10) }, &control(20)).unwrap().one_way
        };
        assert_eq!((one_way(WEIR_UDP, 1), one_way(WEIR_UDP, 0), one_way(0, 200)), (1, 0, 0));
        let empty = WeirWay { state: 0, ..way(10) };
        assert_eq!(idle(&empty, &control(100)), None);
    }
}
