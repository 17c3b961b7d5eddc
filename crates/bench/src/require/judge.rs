//! Whether a run meets a bound.

use std::fmt;

use weir_record::{Run, Scale};
use weir_stats::signed_rank::LEAST_ROUNDS;

use super::{Bound, Relation, Requirement, Target, unit};
use crate::analysis::{Effect, Measured, Subject, effect_of, estimate_of};

/// What was concluded about a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The whole interval meets it.
    Met,
    /// The whole interval misses it.
    NotMet,
    /// Neither, or nothing was measured. Counts as not met.
    Undecided,
}

/// A bound, held against a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// What was concluded.
    pub outcome: Outcome,
    /// The bound as it was written.
    pub text: String,
    /// What was found, with its interval and the number of rounds.
    pub found: String,
}

impl Judgement {
    /// True only if the bound was shown to be met.
    pub fn is_met(&self) -> bool {
        self.outcome == Outcome::Met
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.outcome {
            Outcome::Met => "met",
            Outcome::NotMet => "NOT MET",
            Outcome::Undecided => "NOT MET (undecided)",
        };
        write!(f, "{word}: {}: {}", self.text, self.found)
    }
}

/// `interval` against a bound at `limit`.
fn decide(relation: Relation, (low, high): (f64, f64), limit: f64) -> Outcome {
    let (met, missed) = match relation {
        Relation::AtLeast => (low >= limit, high < limit),
        Relation::Above => (low > limit, high <= limit),
        Relation::AtMost => (high <= limit, low > limit),
        Relation::Below => (high < limit, low >= limit),
        Relation::Equal => (low == limit && high == limit, high < limit || low > limit),
    };
    match (met, missed) {
        (true, _) => Outcome::Met,
        (_, true) => Outcome::NotMet,
        _ => Outcome::Undecided,
    }
}

fn subject(target: &Target) -> Subject<'_> {
    Subject { workload: &target.workload, variant: &target.variant }
}

impl Requirement {
    /// Holds the bound against the trials of a run.
    ///
    /// `==` with a number asks that every single trial shows it; with a multiple, that both are equivalent within the
    /// plan's margin.
    pub fn judge(&self, run: &Run) -> Judgement {
        let measured = Measured::of(run);
        let (outcome, found) = match &self.bound {
            Bound::Value(limit) => self.by_value(run, &measured, *limit),
            Bound::Multiple { factor, of } => self.by_multiple(run, &measured, *factor, of),
        };
        Judgement { outcome, text: self.text.clone(), found }
    }

    fn unmeasured(&self) -> (Outcome, String) {
        let names = |t: &Target| format!("{} on {}", t.workload, t.variant);
        let which: Vec<String> = self.targets().into_iter().map(names).collect();
        let what =
            format!("no round has a valid trial with {} of {}", self.metric.name, which.join(" and of "));
        (Outcome::Undecided, what)
    }

    fn by_value(&self, run: &Run, measured: &Measured<'_>, limit: f64) -> (Outcome, String) {
        let Some(estimate) = estimate_of(run, measured, &self.metric, subject(&self.target)) else {
            return self.unmeasured();
        };
        let label = &self.metric.label;
        let Some((low, high)) = estimate.interval else {
            let (shown, name) = unit::tell(self.metric.unit, &[estimate.center]);
            return (Outcome::Undecided, format!("{label} is {} {name} {}", shown[0], too_few(estimate.n)));
        };
        let (shown, name) = unit::tell(self.metric.unit, &[estimate.center, low, high]);
        let [center, from, to] = [0, 1, 2].map(|i| &shown[i]);
        let outcome = match self.relation {
            Relation::Equal => decide(self.relation, estimate.range, limit),
            _ => decide(self.relation, (low, high), limit),
        };
        (
            outcome,
            format!("{label} is {center} {name} [{from}, {to}] over {} rounds{}", estimate.n, hint(outcome)),
        )
    }

    fn by_multiple(&self, run: &Run, measured: &Measured<'_>, factor: f64, of: &Target) -> (Outcome, String) {
        let Some(effect) = effect_of(measured, &self.metric, subject(&self.target), subject(of)) else {
            return self.unmeasured();
        };
        let Some(against) = effect.scaled(factor) else { return self.unmeasured() };
        let n = effect.comparison.n;
        let Some(interval) = against.comparison.interval else {
            return (Outcome::Undecided, format!("{} {}", self.told(&effect, of), too_few(n)));
        };
        let equal = match self.metric.scale {
            Scale::Ratio => 1.0,
            Scale::Difference => 0.0,
        };
        let outcome = match self.relation {
            Relation::Equal => equivalent(&against, run.plan.equivalence_margin),
            relation => decide(relation, interval, equal),
        };
        (outcome, format!("{} over {n} rounds{}", self.told(&effect, of), hint(outcome)))
    }

    /// The effect in words.
    fn told(&self, effect: &Effect, of: &Target) -> String {
        let label = &self.metric.label;
        let other = if of.workload == self.target.workload {
            of.variant.clone()
        } else {
            format!("{}.{}", of.variant, of.workload)
        };
        let c = &effect.comparison;
        let around = |(low, high): (&str, &str)| format!(" [{low}, {high}]");
        if c.ratio {
            let interval = c.interval.map(|(l, h)| (unit::digits(l), unit::digits(h)));
            let interval = interval.map(|(l, h)| around((&l, &h))).unwrap_or_default();
            return format!("{label} is {} x {other}{interval}", unit::digits(c.estimate));
        }
        let mut values = vec![c.estimate];
        values.extend(c.interval.into_iter().flat_map(|(low, high)| [low, high]));
        let (shown, name) = unit::tell(self.metric.unit, &values);
        let interval = if let [_, low, high] = &shown[..] { around((low, high)) } else { String::new() };
        format!("{label} minus that of {other} is {} {name}{interval}", shown[0])
    }
}

/// Within the margin, wholly beyond it, or neither.
fn equivalent(effect: &Effect, margin: f64) -> Outcome {
    let Some(tested) = effect.equivalence(margin) else { return Outcome::Undecided };
    if tested.p <= 0.05 {
        return Outcome::Met;
    }
    let beyond = |(low, high): (f64, f64)| low > tested.margin || high < -tested.margin;
    match effect.comparison.effect_interval() {
        Some(interval) if beyond(interval) => Outcome::NotMet,
        _ => Outcome::Undecided,
    }
}

fn too_few(n: usize) -> String {
    format!("over {n} rounds: below {LEAST_ROUNDS} there is no interval to judge by")
}

fn hint(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Undecided => ": the bound lies within the interval, more rounds would tell",
        _ => "",
    }
}
