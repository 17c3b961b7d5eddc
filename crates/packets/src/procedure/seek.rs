//! Searching for a rate: what the tester can do first, then what the gateway can.

use std::ops::RangeInclusive;
use std::time::Duration;

use weir_record::FaultCode;
use weir_stats::mlrsearch::{Found, Search};
use weir_stats::search::Bisection;

use super::plan::Method;
use super::progress::{Halt, MOST_FRAMES, RunProgress, Seen};

/// The greatest rate to offer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ceiling {
    pub rate: f64,
    /// It is what the sender reaches, not what the workload sets.
    pub from_tester: bool,
}

/// How a transfer of a search is made: at a rate (`None`: without one), of that length.
pub(super) trait Once:
    FnMut(&mut RunProgress<'_>, Option<f64>, Duration) -> Result<Seen, Halt>
{
}
impl<F: FnMut(&mut RunProgress<'_>, Option<f64>, Duration) -> Result<Seen, Halt>> Once for F {}

/// Steps down from a rate that the sender does not keep up.
const STEP_DOWN: f64 = 0.95;

/// How many of them: to a third.
const STEPS_DOWN: u32 = 22;

/// Margin below a rate that the sender was seen to keep up: it must do so in each of many trials.
const IN_HAND: f64 = 0.03;

/// How often a rate is tried before the next step: a slip may have been something else on the sender's core.
const TRIES: u32 = 3;

impl RunProgress<'_> {
    /// The greatest rate that the sender keeps up: `max-rate`, or what it reaches without a rate, less what pacing takes.
    pub(super) fn ceiling(&mut self, once: &mut impl Once) -> Result<Ceiling, Halt> {
        let probe = self.plan.probe();
        let longest = self.plan.trial().max(probe);
        let most = MOST_FRAMES as f64 / longest.as_secs_f64();
        let (mut rate, mut from_tester) = match self.packets.max_rate {
            Some(max) => (max, false),
            None => (once(self, None, probe)?.offered_pps(), true),
        };
        if rate > most {
            (rate, from_tester) = (most, true);
        }
        for _ in 0..STEPS_DOWN {
            if !(rate.is_finite() && rate >= 1.0) {
                break;
            }
            let mut reached: f64 = 0.0;
            for _ in 0..TRIES {
                let seen = once(self, Some(rate), probe)?;
                if !seen.slipped {
                    let rate = if from_tester { rate * (1.0 - IN_HAND) } else { rate };
                    return Ok(Ceiling { rate, from_tester });
                }
                reached = reached.max(seen.offered_pps());
            }
            from_tester = true;
            rate = (rate * STEP_DOWN).min(reached);
        }
        let detail = format!("the sender keeps up no rate, not even {rate:.0} frames a second");
        Err(self.halt(FaultCode::TesterCpu, detail))
    }

    /// The greatest rate from `least` up to the ceiling that is carried. If that is the ceiling itself, the findings say so.
    pub(super) fn seek(
        &mut self,
        method: &Method,
        least: f64,
        ceiling: Ceiling,
        once: &mut impl Once,
    ) -> Result<Found, Halt> {
        let found = self.seek_within(method, least..=ceiling.rate, once)?;
        if found.upper.is_none() {
            self.bounded(ceiling);
        }
        Ok(found)
    }

    /// The greatest rate of that range that is carried.
    pub(super) fn seek_within(
        &mut self,
        method: &Method,
        rates: RangeInclusive<f64>,
        once: &mut impl Once,
    ) -> Result<Found, Halt> {
        Ok(match method {
            Method::Mlr(goal) => {
                let least = rates.start().min(*rates.end());
                let mut search = Search::new(goal, least..=*rates.end());
                while let Some(ask) = search.ask() {
                    let seen = self.steadily(ask.load, |c| once(c, Some(ask.load), ask.duration))?;
                    search.tell(ask, seen.intended, seen.arrived);
                }
                search.found()
            }
            Method::Bisect { trial, error } => {
                let mut search = Bisection::new(0.0, *rates.end(), *error);
                while let Some(rate) = search.ask() {
                    let seen = self.steadily(rate, |c| once(c, Some(rate), *trial))?;
                    search.tell(seen.whole());
                }
                Found { lower: search.lower(), upper: search.upper(), conditional: search.lower() }
            }
        })
    }

    /// Says that the result is only a bound from below.
    fn bounded(&mut self, ceiling: Ceiling) {
        let rate = ceiling.rate;
        if ceiling.from_tester {
            self.note(
                FaultCode::TesterCpu,
                format!("the tester is the limit: its greatest rate, {rate:.0} a second, was carried, so the result is a lower bound"),
            );
        } else {
            self.note(
                FaultCode::TesterResources,
                format!("max-rate = {rate} was carried, so the result is a lower bound"),
            );
        }
    }
}
