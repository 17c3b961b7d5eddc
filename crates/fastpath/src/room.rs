//! The part of the tables that is in use: small while few flows are carried, so that a few pages of memory hold them all. A core finds
//! the page of an entry through a buffer of one or two thousand translations; behind it, each packet waits for the page tables, too.

use std::mem::offset_of;

use weir_sys::{ProcRoot, sysctl};

use crate::flows::is_live;
use crate::shared::{WEIR_TRY_AGAIN, WeirBucket4, WeirBucket6, WeirControl};
use crate::{Change, Fastpath, Lesson, Reason, Result, Status};

/// A table in which flows find no room grows by this factor.
const FACTOR: u64 = 4;
/// Flows that found no room between two looks before it grows: single full buckets are no reason.
const LEAST: u64 = 64;
/// It grows if more than one of so many flows found no room, and more than one of so many packets belong to such flows.
const ONE_OF: u64 = 16;
/// Connections that are not carried may demand so many times the buckets that are in use at first. A flood of them asks the label of a
/// bucket with each packet: 4,096 labels (32 kB) stay in a core's own cache, 16,384 do not beside what conntrack reads. With fewer, a flow
/// that may be learnt would wait longer for one of the counters.
const UNUSED: u64 = 4;
/// Buckets that are looked at to tell how full the table is. A hash chooses an entry's bucket, so that any are like the rest.
const SAMPLE: u64 = 1024;

/// Watches how many connections there are, and how many flows find no room.
#[derive(Debug)]
pub(crate) struct Room {
    /// Buckets that there are, of IPv4 and IPv6.
    most: [u64; 2],
    /// Buckets that connections may demand that are not carried.
    unused: u64,
    seen: Seen,
    proc: ProcRoot,
}

/// Attempts to learn a flow so far, and packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    learnt: u64,
    without_room: u64,
    carried: u64,
    unknown: u64,
}

impl Seen {
    fn of(status: &Status) -> Self {
        Seen {
            learnt: status.lessons(Lesson::Learnt),
            without_room: status.lessons(Lesson::NoRoom),
            carried: status.packets(Reason::Carried),
            unknown: status.packets(Reason::Unknown),
        }
    }

    /// True if too many of those since then found no room. A flow without room tries again and again, while the others are learnt once:
    /// when most are, attempts alone would make a few flows look like many.
    fn is_full_since(self, before: Seen) -> bool {
        let without_room = self.without_room - before.without_room;
        let attempts = without_room + self.learnt - before.learnt;
        let left = without_room * WEIR_TRY_AGAIN;
        let packets = left + self.carried - before.carried;
        without_room >= LEAST && without_room * ONE_OF > attempts && left * ONE_OF > packets
    }

    /// True if more packets since then were of flows that the table does not have than were carried; `None` if none of either came,
    /// which tells nothing of those that will.
    fn is_mostly_unknown_since(self, before: Seen) -> Option<bool> {
        let (unknown, carried) = (self.unknown - before.unknown, self.carried - before.carried);
        (unknown + carried > 0).then_some(unknown > carried)
    }
}

impl Room {
    pub(crate) fn new(fastpath: &Fastpath) -> Result<Self> {
        let most = [
            fastpath.table::<WeirBucket4>("flows4")?.len() as u64,
            fastpath.table::<WeirBucket6>("flows6")?.len() as u64,
        ];
        let unused = (u64::from(fastpath.control().mask4) + 1) * UNUSED;
        Ok(Room { most, unused, seen: Seen::of(&fastpath.status()?), proc: ProcRoot::default() })
    }

    /// Fits the tables to the packets since the last look.
    pub(crate) fn fit(&mut self, fastpath: &Fastpath) -> Result<()> {
        let seen = Seen::of(&fastpath.status()?);
        let before = std::mem::replace(&mut self.seen, seen);
        if let Some(is_mostly_unknown) = seen.is_mostly_unknown_since(before) {
            fastpath.set_word(offset_of!(WeirControl, labels_first), is_mostly_unknown.into());
        }
        self.grow_if(seen.is_full_since(before), fastpath)
    }

    /// Gives both tables more room if there are more connections than buckets, or flows found none. Each flow has another bucket then,
    /// so all are learnt anew. Connections are counted first: they come some packets before their flows are learnt. A table that is
    /// nearly empty stays small, however many there are.
    fn grow_if(&self, is_full: bool, fastpath: &Fastpath) -> Result<()> {
        // A bucket for each connection, as in the whole table.
        let count = sysctl::get_optional(&self.proc, "net.netfilter.nf_conntrack_count")?;
        let connections = count.and_then(|text| text.trim().parse().ok()).map_or(1, u64::next_power_of_two);
        let control = fastpath.control();
        let masks = [control.mask4, control.mask6].map(u64::from);
        if !is_full && masks.iter().all(|mask| connections <= mask + 1) {
            return Ok(());
        }
        let is_used = is_used(fastpath, &control)?;
        let wanted = [0, 1].map(|n| {
            let factor = if is_full { FACTOR } else { 1 };
            let demanded = if is_used[n] { connections } else { connections.min(self.unused) };
            ((masks[n] + 1) * factor).max(demanded).min(self.most[n]) - 1
        });
        if wanted == masks {
            return Ok(());
        }
        // Before the generation: an entry that is written in between is stale, wherever it lies.
        fastpath.set_word(offset_of!(WeirControl, mask4), wanted[0] as u32);
        fastpath.set_word(offset_of!(WeirControl, mask6), wanted[1] as u32);
        fastpath.forget_ways([Change::Room]);
        Ok(())
    }
}

/// Whether the tables of IPv4 and IPv6 hold an entry for every second bucket, so that flows may soon lack room.
fn is_used(fastpath: &Fastpath, control: &WeirControl) -> Result<[bool; 2]> {
    let sample = |mask: u32| (u64::from(mask) + 1).min(SAMPLE) as usize;
    let [of4, of6] = [control.mask4, control.mask6].map(sample);
    let (table4, table6) =
        (fastpath.table::<WeirBucket4>("flows4")?, fastpath.table::<WeirBucket6>("flows6")?);
    let live4 =
        (0..of4).flat_map(|at| table4.get(at).flows).filter(|flow| is_live(&flow.way, control)).count();
    let live6 =
        (0..of6).flat_map(|at| table6.get(at).flows).filter(|flow| is_live(&flow.way, control)).count();
    Ok([live4 * 2 >= of4, live6 * 2 >= of6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_full_buckets_are_no_reason_to_grow() {
        let full = |learnt: u64, without_room: u64, carried: u64| {
            let before = Seen { learnt: 1000, without_room: 10, carried: 5000, unknown: 0 };
            Seen {
                learnt: 1000 + learnt,
                without_room: 10 + without_room,
                carried: 5000 + carried,
                unknown: 0,
            }
            .is_full_since(before)
        };
        assert!(!full(0, 0, 0) && !full(0, 63, 0), "too few");
        assert!(full(0, 64, 0) && full(959, 64, 0), "more than a sixteenth");
        assert!(!full(960, 64, 0) && !full(100_000, 500, 0), "a sixteenth");
    }

    #[test]
    fn few_flows_that_try_again_and_again_are_no_reason_to_grow() {
        let full = |without_room, carried| {
            Seen { learnt: 100, without_room, carried, unknown: 0 }.is_full_since(Seen::default())
        };
        // 64 attempts stand for 1,024 packets.
        assert!(full(64, 15_359) && !full(64, 15_360), "a sixteenth of the packets");
        assert!(!full(120, 750_000), "120 attempts in half a second, and 0.3 % of the packets");
    }
    #[test]
    fn labels_come_first_while_most_packets_are_unknown() {
        let before = Seen { carried: 5000, unknown: 9000, ..Seen::default() };
        let mostly_unknown = |carried: u64, unknown: u64| {
            Seen { carried: 5000 + carried, unknown: 9000 + unknown, ..before }
                .is_mostly_unknown_since(before)
        };
        assert_eq!(mostly_unknown(0, 0), None);
        assert_eq!([mostly_unknown(1, 0), mostly_unknown(100, 100)], [Some(false); 2], "as many");
        assert_eq!([mostly_unknown(99, 100), mostly_unknown(0, 1)], [Some(true); 2], "more");
    }
}
