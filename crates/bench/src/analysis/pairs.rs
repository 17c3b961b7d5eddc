//! Two subjects against each other, round by round.

use weir_record::{MetricDef, Scale, Source};
use weir_stats::compare::{
    compare_difference, compare_ratio, equivalence_difference, equivalence_ratio, noise_floor,
    noise_floor_difference,
};
use weir_stats::quantiles::quantile_rounds;
use weir_stats::{Censored, Comparison, Delays, Equivalence};

use super::measured::{Measured, Reading, Subject, read};

/// How a subject differs from another one in a metric.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) comparison: Comparison,
    /// Both values of every round; of every batch of rounds where single trials are too short for a quantile.
    pairs: Vec<(Censored, Censored)>,
    scale: Scale,
}

/// Both values of every round in which both were measured, and the number of these rounds.
fn paired(
    measured: &Measured<'_>,
    def: &MetricDef,
    subject: Subject<'_>,
    other: Subject<'_>,
) -> Option<(Vec<(Censored, Censored)>, usize)> {
    let mut values = Vec::new();
    let mut delays: Vec<(&Delays, &Delays)> = Vec::new();
    for (round, trial) in measured.trials(subject) {
        let Some(against) = measured.trial(other, round) else { continue };
        match (read(trial, def), read(against, def)) {
            (Some(Reading::Value(a)), Some(Reading::Value(b))) => values.push((a.into(), b.into())),
            (Some(Reading::Delays(a)), Some(Reading::Delays(b))) => delays.push((a, b)),
            _ => {}
        }
    }
    let rounds = values.len() + delays.len();
    match def.source {
        Source::Value => Some((values, rounds)),
        Source::Quantile { q, .. } => Some((quantile_rounds(&delays, q)?, rounds)),
    }
}

/// `subject` against `other`; `None` where no round has both, or where their values cannot be compared (a ratio to zero).
pub(crate) fn effect_of(
    measured: &Measured<'_>,
    def: &MetricDef,
    subject: Subject<'_>,
    other: Subject<'_>,
) -> Option<Effect> {
    let (pairs, rounds) = paired(measured, def, subject, other)?;
    Effect::of(pairs, rounds, def.scale)
}

impl Effect {
    fn of(pairs: Vec<(Censored, Censored)>, rounds: usize, scale: Scale) -> Option<Effect> {
        let comparison = match scale {
            Scale::Ratio => compare_ratio(&pairs),
            Scale::Difference => compare_difference(&pairs),
        }?;
        // Batches are how a quantile is found; what was measured are rounds.
        Some(Effect { comparison: Comparison { n: rounds, ..comparison }, pairs, scale })
    }

    /// The effect against `factor` times the other side, for bounds such as "at least 0.9 times".
    pub(crate) fn scaled(&self, factor: f64) -> Option<Effect> {
        let times = |b: &Censored| Censored { value: factor * b.value, ..*b };
        let pairs = self.pairs.iter().map(|(a, b)| (*a, times(b))).collect();
        Effect::of(pairs, self.comparison.n, self.scale)
    }

    /// Pairs that the comparison rests on.
    pub(crate) fn rounds(&self) -> usize {
        self.comparison.n
    }

    /// Returns ratios or differences, by round (or batch); none if both sides failed. For values known only from below, it
    /// compares their bounds.
    pub(crate) fn per_round(&self) -> Vec<f64> {
        let of = |(a, b): &(Censored, Censored)| match self.scale {
            Scale::Ratio if a.value == b.value => 1.0,
            Scale::Ratio => a.value / b.value,
            Scale::Difference => a.value - b.value,
        };
        self.pairs.iter().map(of).collect()
    }

    /// Whether both are the same within a relative margin.
    pub(crate) fn equivalence(&self, margin: f64) -> Option<Equivalence> {
        match self.scale {
            Scale::Ratio => equivalence_ratio(&self.pairs, margin),
            Scale::Difference => equivalence_difference(&self.pairs, margin),
        }
    }

    /// The noise floor that this effect is, where it is the twin's.
    pub(crate) fn floor(&self) -> Option<f64> {
        match self.scale {
            Scale::Ratio => noise_floor(&self.pairs),
            Scale::Difference => noise_floor_difference(&self.pairs),
        }
    }
}
