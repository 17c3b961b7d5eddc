//! The open loop: requests leave on a schedule, whatever became of the earlier ones, and are timed from the moment
//! they were meant to leave. A stall of the path then shows in every transaction that it delays (no coordinated
//! omission: Tene, "How NOT to Measure Latency").

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;
use weir_sys::clock::now_ns;

use super::tally::{FlowCounts, Gone};
use crate::latency::STOP_LOOK_NS;
use crate::latency::dial::wait_for;
use crate::latency::schedule::{Kept, Schedule, WakeMargin};
use crate::socket::precise_sleeps;
use crate::{Error, Stop};

/// How long after the window's end the sender may still catch up with its schedule, ns.
const CATCH_UP_NS: u64 = 100_000_000;

/// One connection as the loop sees it. Nothing here blocks.
pub(super) trait Wire {
    /// Send the request of that number, or queue it. False: the own kernel refused it, and it is not under way.
    fn send(&mut self, seq: u64, measured: bool) -> Result<bool, Gone>;

    /// Send what is queued. True while something remains.
    fn flush(&mut self) -> Result<bool, Gone>;

    /// Take one receive's worth of answers. False if nothing was there.
    fn receive(&mut self, answered: &mut Vec<u64>) -> Result<bool, Gone>;

    /// For poll(2).
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Marks an answered transaction in [`Outstanding`].
const ANSWERED: u64 = u64::MAX;

/// Requests under way by number, with their intended start.
#[derive(Debug, Default)]
struct Outstanding {
    first: u64,
    intended_ns: VecDeque<u64>,
}

impl Outstanding {
    fn push(&mut self, intended_ns: u64) {
        self.intended_ns.push_back(intended_ns);
    }

    /// The intended start of a request that is still waited for; it no longer is then.
    fn take(&mut self, seq: u64) -> Option<u64> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let slot = self.intended_ns.get_mut(index)?;
        let intended = std::mem::replace(slot, ANSWERED);
        while self.intended_ns.front() == Some(&ANSWERED) {
            self.intended_ns.pop_front();
            self.first += 1;
        }
        (intended != ANSWERED).then_some(intended)
    }

    fn is_empty(&self) -> bool {
        self.intended_ns.is_empty()
    }

    /// The oldest that is still waited for, with its number.
    fn oldest(&self) -> Option<(u64, u64)> {
        self.intended_ns.front().map(|&t| (self.first, t))
    }
}

/// The limits of one loop.
#[derive(Debug)]
pub(super) struct Limits<'a> {
    /// Time after which an unanswered request is given up, ns.
    pub(super) timeout_ns: u64,
    /// Ends the loop early.
    pub(super) stop: &'a Stop,
}

struct Loop<'a, W> {
    wire: W,
    schedule: &'a Schedule,
    limits: Limits<'a>,
    tally: FlowCounts,
    kept: Kept,
    outstanding: Outstanding,
    answered: Vec<u64>,
    margin: WakeMargin,
    next: u64,
}

/// Run the schedule to its end and wait for the answers.
pub(super) fn run<W: Wire>(
    wire: W,
    schedule: &Schedule,
    limits: Limits<'_>,
    tally: FlowCounts,
) -> Result<FlowCounts, Error> {
    precise_sleeps().map_err(Error::io("set the timer slack"))?;
    let mut this = Loop {
        wire,
        schedule,
        limits,
        tally,
        kept: Kept::default(),
        outstanding: Outstanding::default(),
        answered: Vec::new(),
        margin: WakeMargin::new(),
        next: 0,
    };
    if let Err(gone) = this.turn() {
        this.tally.gone = Some(gone);
    }
    Ok(this.finish())
}

impl<W: Wire> Loop<'_, W> {
    fn turn(&mut self) -> Result<(), Gone> {
        let mut look = true;
        while !self.limits.stop.raised() {
            let now = now_ns();
            self.tally.look(now);
            self.send_due(now)?;
            let queued = self.wire.flush()?;
            while look && !self.outstanding.is_empty() && self.receive()? {}
            self.give_up_overdue(now_ns());
            let all_sent = self.next == self.schedule.len() || now >= self.tally.span.end_ns + CATCH_UP_NS;
            if all_sent && self.outstanding.is_empty() && now >= self.tally.span.end_ns {
                return Ok(());
            }
            look = self.wait(queued, all_sent)?;
        }
        Ok(())
    }

    fn send_due(&mut self, now: u64) -> Result<(), Gone> {
        while self.next < self.schedule.len() {
            let intended = self.schedule.intended_ns(self.next);
            let at = now_ns();
            if intended > at || now >= self.tally.span.end_ns + CATCH_UP_NS {
                break;
            }
            let measured = self.tally.span.measures(intended);
            if measured {
                self.kept.scheduled += 1;
                self.kept.lateness.record(at - intended);
                self.tally.attempted += 1;
            }
            let under_way = self.wire.send(self.next, measured)?;
            if !under_way && measured {
                self.tally.attempted -= 1;
                self.tally.refused_by_kernel += 1;
            }
            self.outstanding.push(if under_way { intended } else { ANSWERED });
            self.next += 1;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, Gone> {
        let any = self.wire.receive(&mut self.answered)?;
        let now = now_ns();
        for seq in self.answered.drain(..) {
            match self.outstanding.take(seq) {
                Some(intended) if self.tally.span.measures(intended) => {
                    self.tally.answered(intended, now - intended);
                }
                Some(_) => {}
                None => self.tally.stray += 1,
            }
        }
        Ok(any)
    }

    fn give_up_overdue(&mut self, now: u64) {
        while let Some((seq, intended)) = self.outstanding.oldest() {
            if intended == ANSWERED {
                self.outstanding.take(seq);
                continue;
            }
            if now < intended.saturating_add(self.limits.timeout_ns) {
                break;
            }
            self.outstanding.take(seq);
            if self.tally.span.measures(intended) {
                self.tally.unanswered(now - intended);
            }
        }
    }

    /// Sleep until shortly before the next thing to do. True if it is worth looking for answers.
    fn wait(&mut self, queued: bool, all_sent: bool) -> Result<bool, Gone> {
        let now = now_ns();
        let mut until = now + STOP_LOOK_NS;
        let mut send_at = u64::MAX;
        if !all_sent {
            send_at = self.schedule.intended_ns(self.next);
            until = until.min(send_at.saturating_sub(self.margin.ns()));
        } else if now < self.tally.span.end_ns {
            until = until.min(self.tally.span.end_ns);
        }
        if let Some((_, intended)) = self.outstanding.oldest() {
            until = until.min(intended.saturating_add(self.limits.timeout_ns));
        }
        if until <= now {
            // So close to the next send that a sleep would miss it: look for answers meanwhile.
            return Ok(true);
        }
        let what = if queued { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let ready = wait_for(self.wire.fd(), what, until - now).map_err(|e| format!("poll: {e}"))?;
        if !ready && send_at != u64::MAX {
            self.margin.learn(now_ns().saturating_sub(until));
        }
        Ok(ready)
    }

    fn finish(mut self) -> FlowCounts {
        self.tally.left_ns = now_ns();
        let span = self.tally.span;
        let stopped = self.limits.stop.raised();
        for &intended in self.outstanding.intended_ns.iter().filter(|&&t| t != ANSWERED && span.measures(t)) {
            let age = self.tally.left_ns.saturating_sub(intended);
            match (stopped, &self.tally.gone) {
                (true, _) => self.tally.cut(age),
                (false, None) => self.tally.unanswered(age),
                (false, Some(_)) => self.tally.refused(),
            }
        }
        let due = (self.next..self.schedule.len()).filter(|&k| span.measures(self.schedule.intended_ns(k)));
        let due = if stopped { 0 } else { due.count() as u64 };
        if self.tally.gone.is_some() {
            lose(&mut self.tally, due);
        } else {
            self.kept.scheduled += due;
            self.kept.unsent += due;
        }
        self.tally.kept = Some(self.kept);
        self.tally
    }
}

/// Counts the requests that were due on a lost connection as lost: the path took them, and the sender was not late.
pub(super) fn lose(tally: &mut FlowCounts, due: u64) {
    tally.attempted += due;
    (0..due).for_each(|_| tally.refused());
}

/// The tally of a connection that never stood: all that was due on it is lost.
pub(super) fn never_stood(schedule: &Schedule, tally: FlowCounts, why: Gone) -> FlowCounts {
    let mut tally = tally.never_stood(why);
    let due = (0..schedule.len()).filter(|&k| tally.span.measures(schedule.intended_ns(k))).count();
    lose(&mut tally, due as u64);
    tally.kept = Some(Kept::default());
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outstanding_finds_each_answer_once_and_forgets_the_old() {
        let mut o = Outstanding::default();
        (10..15).for_each(|t| o.push(t));
        assert_eq!(o.take(2), Some(12));
        assert_eq!(o.take(2), None, "second answer");
        assert_eq!(o.oldest(), Some((0, 10)));
        assert_eq!(o.take(0), Some(10));
        assert_eq!(o.oldest(), Some((1, 11)));
        assert_eq!(o.take(1), Some(11));
        assert_eq!(o.oldest(), Some((3, 13)), "the gap closes");
        assert_eq!(o.take(1), None, "before the first");
        assert_eq!(o.take(99), None, "never sent");
        assert_eq!((o.take(4), o.take(3)), (Some(14), Some(13)));
        assert!(o.is_empty());
    }
}
