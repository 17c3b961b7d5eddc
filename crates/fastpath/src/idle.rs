//! Flows that were carried and then fell silent. Conntrack counts its timeout from the last packet that it saw. Here the timeout is
//! renewed, as if conntrack had seen the last packet that was carried: `bpf/idle.h`.

use std::time::{Duration, Instant};

use weir_bpf::Mapped;

use crate::shared::{
    WEIR_PHASE_MASK, WEIR_TICK_MASK, WEIR_UDP, WEIR_VALID, WeirBucket4, WeirBucket6, WeirControl,
    WeirDirection, WeirWay,
};
use crate::{Fastpath, Result};

/// Longest time for a walk over the whole table.
const WALK: Duration = Duration::from_secs(10);
/// A direction is silent if it had no packet for as many ticks.
const SILENT: u8 = 2;
const TCP: u16 = 6;
const UDP: u16 = 17;

/// A walk over both tables that never ends: a part of the buckets at a time.
#[derive(Debug)]
pub(crate) struct Walk {
    v4: Mapped<WeirBucket4>,
    v6: Mapped<WeirBucket6>,
    next: usize,
    walked: Instant,
}

impl Walk {
    pub(crate) fn new(fastpath: &Fastpath) -> Result<Self> {
        Ok(Walk {
            v4: fastpath.table("flows4")?,
            v6: fastpath.table("flows6")?,
            next: 0,
            walked: Instant::now(),
        })
    }

    /// Goes on by as many buckets as are due, and calls `keep` for directions that are silent, to see to their timeouts.
    pub(crate) fn go_on(
        &mut self,
        control: &WeirControl,
        mut keep: impl FnMut(WeirDirection) -> Result<()>,
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
        keep: &mut impl FnMut(WeirDirection) -> Result<()>,
    ) -> Result<()> {
        let v4 = control.mask4 as usize + 1;
        if at < v4 {
            for flow in self.v4.get(at).flows.iter().filter(|flow| is_silent(&flow.way, control)) {
                let words = |word| [word, 0, 0, 0];
                keep(direction(&flow.way, words(flow.source), words(flow.destination), flow.ports, 4))?;
            }
            return Ok(());
        }
        for flow in self.v6.get(at - v4).flows.iter().filter(|flow| is_silent(&flow.way, control)) {
            keep(direction(&flow.way, flow.source, flow.destination, flow.ports, 6))?;
        }
        Ok(())
    }
}

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

/// Ticks since a packet came; `None` if none did since the timeout was seen to.
pub(crate) fn ticks_since(way: &WeirWay, control: &WeirControl) -> Option<u8> {
    // Ticks are 1 to this one.
    const LAST: u8 = WEIR_TICK_MASK as u8;
    let (now, then) = (control.tick as u8, way.last & LAST);
    (then != 0).then(|| if now >= then { now - then } else { LAST - then + now })
}

/// True if the program is to look at it, too: it knows the other direction.
fn is_silent(way: &WeirWay, control: &WeirControl) -> bool {
    u64::from(way.state) & WEIR_PHASE_MASK == WEIR_VALID
        && ticks_since(way, control).is_some_and(|ticks| ticks >= SILENT)
}

#[cfg(test)]
mod tests {
    use weir_bpf::Plain;

    use super::*;
    use crate::shared::WEIR_HAD_DATA;

    #[test]
    fn a_direction_is_silent_two_ticks_after_its_last_packet_and_only_once() {
        let control = |tick| WeirControl { tick, hz: 250, ..WeirControl::zeroed() };
        let way = |last| WeirWay { state: WEIR_VALID as u32, last, timeout: 7500, ..WeirWay::zeroed() };
        let after = |last, tick| ticks_since(&way(last), &control(tick));
        assert_eq!((after(10, 10), after(10, 11), after(10, 12)), (Some(0), Some(1), Some(2)));
        assert_eq!(after(126, 2), Some(3), "126, 127, 1, 2");
        assert_eq!(after(10 | WEIR_HAD_DATA as u8, 12), Some(2), "with data");
        assert_eq!(after(0, 12), None);
        let is = |way: WeirWay| is_silent(&way, &control(12));
        assert!(is(way(10)) && !is(way(11)) && !is(way(0)));
        assert!(!is(WeirWay { state: 0, ..way(10) }), "empty");
    }
}
