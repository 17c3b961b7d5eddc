//! Opening the flows, before frames of existing ones are measured: RFC 9693's first phase.

use weir_record::FaultCode;

use super::plan::fill_rate;
use super::progress::{Halt, RunProgress, Seen, Shot};
use crate::testbed::TestbedError;
use crate::transfer::Offer;

/// How often a fill is made, each time at half the rate.
const FILLS: u32 = 5;

/// How often the flows are gone through in one fill: of a path that loses every tenth frame, one flow in ten thousand is not open
/// then.
const TURNS: u64 = 4;

impl Seen {
    /// Why frames that are missing say nothing about the path, if so: they were never sent, or arrived and found no room.
    fn spoilt(&self, frames: u64) -> Option<FaultCode> {
        if self.own_drops > 0 {
            return Some(FaultCode::ReceiverDrops);
        }
        self.ends().any(|(sent, _)| sent.frames < frames).then_some(FaultCode::LateSends)
    }

    /// How many of so many flows nothing has come of since they were last forgotten.
    fn flows_missing(&self, flows: u32) -> u64 {
        let seen = self.outcome.egress.as_ref().map_or(0, |(_, received)| received.flows);
        u64::from(flows).saturating_sub(seen)
    }
}

impl RunProgress<'_> {
    /// From an empty table to one with all flows. Returns how many of them the gateway does not carry even slowly: that is a result,
    /// and their frames count as any others.
    pub(super) fn fill(&mut self, flows: u32) -> Result<u64, Halt> {
        let (mut missing, mut spoilt) = (0, None);
        for _ in 0..FILLS {
            (missing, spoilt) = self.fill_once(flows)?;
            // A gateway that lost flows at every rate before is not asked at every rate again.
            if missing == 0 || (spoilt.is_none() && self.unopened > 0) {
                break;
            }
            // A failed fill is made anew, slower, and says nothing of what is measured after it.
            self.fill_rate /= 2.0;
        }
        self.tracked()?;
        if missing > 0 {
            let slowest = std::mem::replace(&mut self.fill_rate, fill_rate(self.packets)) * 2.0;
            if let Some(code) = spoilt {
                let words = "flows were not opened, and the tester itself did not send or take in all of their frames";
                return Err(self.halt(code, format!("{missing} of {flows} {words}")));
            }
            if self.unopened == 0 {
                let words = format!(
                    "{missing} of {flows} flows could not be opened, not even at {slowest:.0} a second"
                );
                self.note(FaultCode::ConnectionFailed, format!("{words}: their frames count as any others"));
            }
        }
        self.unopened = self.unopened.max(missing);
        self.set_share("unopened_ratio", ("flows_unopened", self.unopened), ("flows_tried", flows.into()));
        Ok(missing)
    }

    /// The same at one rate: how many flows are missing, and what of it is the tester's own doing.
    fn fill_once(&mut self, flows: u32) -> Result<(u64, Option<FaultCode>), TestbedError> {
        self.empty()?;
        let mut shot = Shot::opening(flows, Offer::Rate(self.fill_rate));
        let (mut missing, mut spoilt) = (0, None);
        // A path that loses some frames at any rate opens all flows nevertheless, with a few frames more for each. The order
        // differs each time, since a loss may have a rhythm of its own.
        for turn in 0..TURNS {
            (shot.turn, shot.forget) = (turn, turn == 0);
            let seen = self.transfer(&shot)?;
            missing = seen.flows_missing(flows);
            if missing == 0 {
                return Ok((0, None));
            }
            spoilt = spoilt.or(seen.spoilt(shot.frames));
        }
        Ok((missing, spoilt))
    }
}
