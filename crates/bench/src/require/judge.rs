//! Whether a run meets a bound.

use std::fmt;

use weir_record::results::Results;
use weir_record::{Better, Run, Scale, Source};
use weir_stats::signed_rank::LEAST_ROUNDS;
use weir_text::units;

use super::{Bound, Relation, Requirement, Target};
use crate::analysis::{
    Effect, Measured, Subject, analyse, effect_of, estimate_of, fails_more_than, floor, is_void_more,
};

/// The verdict on a bound.
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
    /// The verdict.
    pub outcome: Outcome,
    /// The bound as it was written.
    pub text: String,
    /// The measured value, with its interval and the number of rounds.
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
        let (mut outcome, mut found) = match &self.bound {
            Bound::Value(limit) => self.by_value(run, &measured, *limit),
            Bound::Multiple { factor, of } => self.by_multiple(run, &measured, *factor, of),
        };
        if outcome == Outcome::Met && self.is_within_noise(run, &measured) {
            outcome = Outcome::Undecided;
            found += ", no more than the baseline differs from itself (A/A)";
        }
        let results = (outcome == Outcome::Met && self.metric.failure.is_none()).then(|| analyse(run));
        if let Some(why) = results.and_then(|results| self.left_out(run, &results)) {
            outcome = Outcome::Undecided;
            found += why;
        }
        Judgement { outcome, text: self.text.clone(), found }
    }

    /// Whether the bound asks for a difference from another variant, and the noise floor is as large as the one that was seen. As for
    /// verdicts, no such difference is one.
    fn is_within_noise(&self, run: &Run, measured: &Measured<'_>) -> bool {
        let Bound::Multiple { factor, of } = &self.bound else { return false };
        let asks = match self.relation {
            Relation::Above => *factor >= 1.0,
            Relation::AtLeast => *factor > 1.0,
            Relation::Below => *factor <= 1.0,
            Relation::AtMost => *factor < 1.0,
            Relation::Equal => false,
        };
        if !asks {
            return false;
        }
        let floor_of = |workload: &String| floor(run, measured, workload, &self.metric).floor;
        let floors = [&self.target.workload, &of.workload].into_iter().filter_map(floor_of);
        let effect = effect_of(measured, &self.metric, subject(&self.target), subject(of));
        effect
            .zip(floors.reduce(f64::max))
            .is_some_and(|(effect, floor)| effect.comparison.effect().abs() <= floor)
    }

    /// The reason why a bound is not met although the figures meet it. Another subject was compared with, and fewer operations fail
    /// there: no other metric then says that this one is as good. A plain number is met by what was done; only a mean delay, jitter or
    /// CPU time of answered operations says nothing good where fewer are answered than with the baseline.
    fn left_out(&self, run: &Run, results: &Results) -> Option<&'static str> {
        if is_void_more(results, subject(&self.target)) {
            return Some(
                ", but its trials are void more often than the baseline's, and those that are left may be lucky",
            );
        }
        let of_answered = self.metric.better == Better::Lower && self.metric.source == Source::Value;
        // A lost datagram is missing in the rate of those that arrive; the streams and connections that stand take the share of those
        // that do not.
        let counted_in = self.metric.better == Better::Higher
            && run.workloads.iter().any(|w| {
                w.name == self.target.workload
                    && w.metrics.iter().any(|m| m.failure.is_some() && m.name == "loss_ratio")
            });
        let of_baseline = |variant| Subject { workload: &self.target.workload, variant };
        let other = match &self.bound {
            Bound::Multiple { of, .. } if !counted_in => Some(subject(of)),
            Bound::Value(_) if of_answered => run.baseline().map(of_baseline),
            _ => None,
        };
        fails_more_than(run, results, subject(&self.target), other?).then_some(
            ", but more operations fail than with what it is compared with, and this does not count them",
        )
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
        let told = if estimate.at_least {
            format!("more than {}", units::quantity(self.metric.unit, estimate.center, None))
        } else {
            units::quantity(self.metric.unit, estimate.center, estimate.interval)
        };
        let told = format!("{} is {told}", self.metric.label);
        let Some(interval) = estimate.interval else {
            return (Outcome::Undecided, format!("{told} {}", too_few(estimate.n)));
        };
        let interval = if self.relation == Relation::Equal { estimate.range } else { interval };
        let outcome = decide(self.relation, interval, limit);
        (outcome, format!("{told} over {} rounds{}", estimate.n, hint(outcome)))
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
        if !c.ratio {
            let told = units::quantity(self.metric.unit, c.estimate, c.interval);
            return format!("{label} minus that of {other} is {told}");
        }
        let places = units::decimals(c.estimate, c.interval);
        let interval = c.interval.map(|i| format!(" {}", units::bracket(i, places)));
        format!("{label} is {} x {other}{}", units::number(c.estimate, places), interval.unwrap_or_default())
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
    if n < LEAST_ROUNDS {
        return format!("over {n} rounds: below {LEAST_ROUNDS} there is no interval to judge by");
    }
    format!("over {n} rounds, some of which have too few values for an interval to judge by")
}

fn hint(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Undecided => ": the bound lies within the interval, more rounds would tell",
        _ => "",
    }
}
