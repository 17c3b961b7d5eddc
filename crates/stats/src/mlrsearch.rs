//! Multiple Loss Ratio search (MLRsearch, RFC 9971): the highest load that a system carries, found in few and short trials
//! although single trials are noisy.
//!
//! The RFC's own code (appendices "Load Classification Code" and "Conditional Throughput Code") decides a load's class from its
//! trials. The RFC leaves the choice of the next load to implementations. Here: first the greatest load, then the part of it that
//! was forwarded, then steps away from a bound that double, then halves (on the logarithm) of the remaining interval. The search
//! does this three times: with single short trials and four times the goal's width, with some trials and twice the width, and as
//! the goal says.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The goal of a search (RFC 9971, "Search Goal").
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// Least length of the trials that make a load a lower bound ("Goal Final Trial Duration"), above zero.
    pub final_duration: Duration,
    /// How much trial time decides a load ("Goal Duration Sum"), above zero.
    pub duration_sum: Duration,
    /// A trial that loses a greater share is a bad one ("Goal Loss Ratio"), 0..1.
    pub loss_ratio: f64,
    /// Share of bad trials that is borne ("Goal Exceed Ratio"), 0..1; 0.5 is recommended.
    pub exceed_ratio: f64,
    /// Greatest distance between the bounds, relative to the upper ("Goal Width"), above 0 and below 1.
    pub width: f64,
    /// Length of the first trials ("Goal Initial Trial Duration"), at most that of the final ones.
    pub initial_duration: Duration,
}

/// Result of one trial at a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadTrial {
    /// How long it sent, as planned.
    pub duration: Duration,
    /// Share of the intended frames that did not arrive, 0..=1.
    pub loss_ratio: f64,
}

/// Class of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The goal holds, whatever the trials that are still missing would say.
    Lower,
    /// It does not hold, whatever they would say.
    Upper,
    /// They would decide it.
    Undecided,
}

impl Goal {
    /// Class of a load by its trials (RFC 9971, appendix "Load Classification Code").
    pub fn classify(&self, trials: &[LoadTrial]) -> Class {
        // Times are summed as whole nanoseconds, so that trials which fill the sum to the last do not miss it by rounding.
        let sum = |short: bool, bad: bool| {
            let of = |t: &&LoadTrial| {
                (t.duration < self.final_duration) == short && (t.loss_ratio > self.loss_ratio) == bad
            };
            trials.iter().filter(of).map(|t| t.duration.as_nanos()).sum::<u128>() as f64
        };
        let balancing = sum(true, false) * self.exceed_ratio / (1.0 - self.exceed_ratio);
        let positive_excess = (sum(true, true) - balancing).max(0.0);
        let effective_bad = sum(false, true) + positive_excess;
        let good = sum(false, false);
        let whole = (good + effective_bad).max(self.duration_sum.as_nanos() as f64);
        let quantile = whole * self.exceed_ratio;
        let pessimistic_is_lower = whole - good <= quantile;
        let optimistic_is_lower = effective_bad <= quantile;
        match (pessimistic_is_lower, optimistic_is_lower) {
            (true, true) => Class::Lower,
            (false, false) => Class::Upper,
            _ => Class::Undecided,
        }
    }

    /// The load's share that is lost in a typical trial: the conditional throughput is the load without it (RFC 9971,
    /// appendix "Conditional Throughput Code"). 1 if too few trials of full length were made to say.
    pub fn quantile_loss(&self, trials: &[LoadTrial]) -> f64 {
        let mut full: Vec<&LoadTrial> = trials.iter().filter(|t| t.duration >= self.final_duration).collect();
        full.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
        let all: u128 = full.iter().map(|t| t.duration.as_nanos()).sum();
        let whole = all.max(self.duration_sum.as_nanos()) as f64;
        let mut remaining = whole * (1.0 - self.exceed_ratio);
        let mut loss = None;
        for trial in full {
            if loss.is_some() && remaining <= 0.0 {
                return loss.unwrap_or(1.0);
            }
            loss = Some(trial.loss_ratio);
            remaining -= trial.duration.as_nanos() as f64;
        }
        if remaining > 0.0 { 1.0 } else { loss.unwrap_or(1.0) }
    }

    /// How many trials a search will probably take, and how many seconds of them, if the system has a capacity and little noise:
    /// some at the first stage, three loads at each later one.
    pub fn estimate(&self) -> (f64, f64) {
        let mut total = (0.0, 0.0);
        for (nth, stage) in self.stages().iter().enumerate() {
            let (each, sum) = (stage.final_duration.as_secs_f64(), stage.duration_sum.as_secs_f64());
            // As soon as that share of the sum agrees, the load is decided.
            let agreeing = sum * (1.0 - stage.exceed_ratio).max(stage.exceed_ratio);
            let trials = if nth == 0 { 6.0 } else { 3.0 * (agreeing / each).ceil().max(1.0) };
            total = (total.0 + trials, total.1 + trials * each);
        }
        total
    }

    /// The coarser goals before this one, and this one: each takes half the width of the one before, since halving on the
    /// logarithm then leads from one to the next in a single step.
    fn stages(&self) -> Vec<Goal> {
        const STAGES: i32 = 3;
        let (first, last) = (self.initial_duration.min(self.final_duration), self.final_duration);
        (0..STAGES)
            .map(|stage| {
                if stage == STAGES - 1 {
                    return self.clone();
                }
                let share = f64::from(stage) / f64::from(STAGES - 1);
                let between = |from: Duration, to: Duration| {
                    from.mul_f64((to.as_secs_f64() / from.as_secs_f64()).powf(share))
                };
                Goal {
                    final_duration: between(first, last),
                    // A single trial decides the coarsest stage.
                    duration_sum: between(first, self.duration_sum.max(first)),
                    width: widened(self.width, 2_f64.powi(STAGES - 1 - stage)),
                    ..self.clone()
                }
            })
            .collect()
    }
}

/// The width of that many steps of this width.
fn widened(width: f64, times: f64) -> f64 {
    1.0 - (1.0 - width).powf(times)
}

/// The trial to make next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Frames (or whatever the load counts) a second.
    pub load: f64,
    /// How long.
    pub duration: Duration,
}

/// Result of a search (RFC 9971, "Goal Result").
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Found {
    /// The relevant lower bound: the greatest load below the upper bound at which the goal holds. Without an upper bound: the
    /// greatest load of all, and only a bound from below.
    pub lower: Option<f64>,
    /// The relevant upper bound: the least load at which the goal does not hold.
    pub upper: Option<f64>,
    /// Conditional throughput: what is forwarded of the lower bound in a typical trial.
    pub conditional: Option<f64>,
}

/// A search under way: [`Search::ask`] for a trial, make it, [`Search::tell`] what came of it.
#[derive(Debug, Clone)]
pub struct Search {
    loads: RangeInclusive<f64>,
    stages: Vec<Goal>,
    stage: usize,
    /// By the load's bits, which are in the order of the loads, as these are positive.
    trials: BTreeMap<u64, Vec<LoadTrial>>,
    /// The load that is being measured until it is decided.
    candidate: Option<f64>,
    /// Bounds that the stage before has found.
    hint: (Option<f64>, Option<f64>),
    /// How far the next step away from a single bound goes, relative.
    step: f64,
}

impl Search {
    /// A search for `goal` among the loads in that range, whose start is above 0: so low that the goal must hold there, but high
    /// enough for a frame in each trial.
    pub fn new(goal: &Goal, loads: RangeInclusive<f64>) -> Search {
        let stages = goal.stages();
        let step = widened(stages[0].width, 2.0);
        Search { loads, stages, stage: 0, trials: BTreeMap::new(), candidate: None, hint: (None, None), step }
    }

    /// The trial to make next; `None` when the search is over.
    pub fn ask(&mut self) -> Option<Ask> {
        loop {
            let stage = self.stages.get(self.stage)?;
            if let Some(load) = self.candidate.filter(|l| self.class(*l) == Class::Undecided) {
                return Some(Ask { load, duration: stage.final_duration });
            }
            self.candidate = self.choose();
            if self.candidate.is_none() {
                self.hint = self.bounds(self.stage);
                self.stage += 1;
                if let Some(next) = self.stages.get(self.stage) {
                    self.step = widened(next.width, 2.0);
                }
            }
        }
    }

    /// Records the result of a trial: of `intended` frames, `forwarded` arrived. The load and the length determine the intended
    /// frames: frames that the tester did not send count as lost. More arrivals than intended are as bad as fewer.
    pub fn tell(&mut self, trial: Ask, intended: u64, forwarded: u64) {
        let loss_ratio = if intended == 0 {
            1.0
        } else {
            (intended.abs_diff(forwarded) as f64 / intended as f64).min(1.0)
        };
        let made = LoadTrial { duration: trial.duration, loss_ratio };
        self.trials.entry(trial.load.to_bits()).or_default().push(made);
    }

    /// Returns the result so far.
    pub fn found(&self) -> Found {
        let last = self.stages.len() - 1;
        let goal = &self.stages[last];
        let (lower, upper) = self.bounds(last);
        let conditional = lower.map(|l| l * (1.0 - goal.quantile_loss(self.at(l))));
        Found { lower, upper, conditional }
    }

    fn at(&self, load: f64) -> &[LoadTrial] {
        self.trials.get(&load.to_bits()).map_or(&[], Vec::as_slice)
    }

    fn class(&self, load: f64) -> Class {
        self.stages[self.stage].classify(self.at(load))
    }

    /// Relevant bounds of a stage, (lower, upper).
    fn bounds(&self, stage: usize) -> (Option<f64>, Option<f64>) {
        let goal = &self.stages[stage];
        let of = |class: Class| {
            self.trials.iter().filter(move |t| goal.classify(t.1) == class).map(|t| f64::from_bits(*t.0))
        };
        let upper = of(Class::Upper).next();
        let lower = of(Class::Lower).take_while(|l| upper.is_none_or(|u| *l < u)).last();
        (lower, upper)
    }

    /// The load to measure next, or `None` when this stage is done.
    fn choose(&mut self) -> Option<f64> {
        let (lower, upper) = self.bounds(self.stage);
        let above = |l: f64| lower.is_none_or(|lower| l > lower);
        let guess = upper.or(self.hint.1.filter(|h| above(*h)));
        let below = |l: f64| guess.is_none_or(|u| l < u);
        let hint = self.hint.0.filter(|l| below(*l) && self.class(*l) == Class::Undecided);
        let width = self.stages[self.stage].width;
        match (lower, guess) {
            // Smaller loads first: they lose less, and are more often the answer.
            (None, _) if hint.is_some() => hint,
            (None, None) => Some(*self.loads.end()),
            (None, Some(u)) if upper.is_none() => Some(u),
            (None, Some(u)) => (u > *self.loads.start()).then(|| self.down(u)),
            (Some(l), None) => (l < *self.loads.end()).then(|| self.up(l)),
            (Some(l), Some(u)) if narrow(l, u, width) => upper.is_none().then_some(u),
            (Some(l), Some(u)) => Some(self.up(l).min((l * u).sqrt())),
        }
    }

    /// Below a load that is too high. From the greatest load of all, what was forwarded of it is the best guess.
    fn down(&mut self, upper: f64) -> f64 {
        let by_step = upper * (1.0 - self.step);
        let target = if self.trials.len() == 1 {
            let best = self.at(upper).iter().map(|t| 1.0 - t.loss_ratio).fold(0.0, f64::max);
            (upper * best).min(upper * (1.0 - self.stages[self.stage].width))
        } else {
            self.widen();
            by_step
        };
        target.max(*self.loads.start())
    }

    /// Above a load that holds.
    fn up(&mut self, lower: f64) -> f64 {
        let by_step = lower / (1.0 - self.step);
        self.widen();
        by_step.min(*self.loads.end())
    }

    fn widen(&mut self) {
        self.step = widened(self.step, 2.0).min(0.5);
    }
}

/// True if the bounds are near enough, but for rounding.
fn narrow(lower: f64, upper: f64, width: f64) -> bool {
    (upper - lower) / upper <= width * (1.0 + 1e-9)
}

#[cfg(test)]
mod tests;
