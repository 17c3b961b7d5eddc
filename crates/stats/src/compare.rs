//! A variant against the baseline, within rounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::order::{median, quantile};
use crate::resample::{Bootstrap, Merge};
use crate::signed_rank::{self, LEAST_ROUNDS};

/// Outcome of comparing a variant with the baseline over rounds.
///
/// On a ratio scale the figures are ratios variant / baseline (1 is equal); on a difference scale they are
/// differences variant - baseline (0 is equal) in the metric's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Hodges-Lehmann estimate, or the ratio of the merged quantiles.
    pub estimate: f64,
    /// 95 % interval; absent with fewer than six rounds.
    pub interval: Option<(f64, f64)>,
    /// Rounds in which both have a valid trial.
    pub n: usize,
    /// Two-sided p-value of "no effect"; 1 with fewer than six rounds.
    pub p: f64,
    /// The same after Holm's correction over the variants of one metric.
    pub p_holm: f64,
    /// True on the ratio scale.
    pub ratio: bool,
}

impl Comparison {
    /// The effect on the scale on which it was estimated, 0 being none: ln ratio, or the difference.
    pub fn effect(&self) -> f64 {
        self.on_scale(self.estimate)
    }

    /// The interval on the scale of [`Self::effect`].
    pub fn effect_interval(&self) -> Option<(f64, f64)> {
        self.interval.map(|(low, high)| (self.on_scale(low), self.on_scale(high)))
    }

    /// Half the length of [`Self::effect_interval`]: on the ratio scale the relative half-width (0.02 is
    /// about +-2 %), on the difference scale in the metric's unit.
    pub fn half_width(&self) -> Option<f64> {
        self.effect_interval().map(|(low, high)| 0.5 * (high - low))
    }

    fn on_scale(&self, value: f64) -> f64 {
        if self.ratio { value.ln() } else { value }
    }

    /// From effects of rounds, by signed ranks; `None` without any.
    fn of_effects(effects: &[f64], ratio: bool) -> Option<Comparison> {
        let back = |x: f64| if ratio { x.exp() } else { x };
        let p = signed_rank::test(effects).p_two_sided();
        Some(Comparison {
            estimate: back(signed_rank::hodges_lehmann(effects)?),
            interval: signed_rank::interval(effects).map(|(low, high)| (back(low), back(high))),
            n: effects.len(),
            p,
            p_holm: p,
            ratio,
        })
    }
}

/// Outcome of the two one-sided tests for equivalence (Schuirmann 1987).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Equivalence {
    /// The margin on the scale of [`Comparison::effect`]: ln(1 + relative margin), or in the metric's unit.
    pub margin: f64,
    /// The larger of both p-values: at most alpha shows that the effect lies within the margin.
    /// 1 with fewer than six rounds.
    pub p: f64,
}

/// ln(variant / baseline) per round; `None` unless all values are positive and finite.
fn log_ratios(pairs: &[(f64, f64)]) -> Option<Vec<f64>> {
    let usable = |x: f64| x > 0.0 && x.is_finite();
    pairs.iter().map(|&(v, b)| (usable(v) && usable(b)).then(|| v.ln() - b.ln())).collect()
}

/// variant - baseline per round; `None` unless all values are finite.
fn differences(pairs: &[(f64, f64)]) -> Option<Vec<f64>> {
    pairs.iter().map(|&(v, b)| (v.is_finite() && b.is_finite()).then_some(v - b)).collect()
}

/// Compare on the ratio scale: `(variant, baseline)` of every round in which both trials are valid.
///
/// Hodges-Lehmann estimate, interval and test of the logarithms of the ratios, turned back into ratios.
/// `p_holm` equals `p` until [`holm`] is applied. `None` without rounds, or if a value is not positive and
/// finite: a trial with a rate of zero is a failed trial, and what may truly be zero is compared by
/// [`compare_difference`].
pub fn compare_ratio(pairs: &[(f64, f64)]) -> Option<Comparison> {
    Comparison::of_effects(&log_ratios(pairs)?, true)
}

/// Compare on the difference scale, for quantities that may be zero. `None` without rounds or with a value
/// that is not finite.
pub fn compare_difference(pairs: &[(f64, f64)]) -> Option<Comparison> {
    Comparison::of_effects(&differences(pairs)?, false)
}

/// Is the variant equivalent to the baseline within a relative margin (0.03: the ratio lies between 1/1.03
/// and 1.03)? `None` where [`compare_ratio`] gives none.
pub fn equivalence_ratio(pairs: &[(f64, f64)], relative_margin: f64) -> Option<Equivalence> {
    let effects = log_ratios(pairs).filter(|e| !e.is_empty())?;
    let margin = relative_margin.ln_1p();
    Some(Equivalence { margin, p: signed_rank::equivalence_p(&effects, margin) })
}

/// The same on the difference scale, the margin being relative to the median of the baseline's values.
/// `None` if that median is zero (nothing is relative to zero), and where [`compare_difference`] gives none.
pub fn equivalence_difference(pairs: &[(f64, f64)], relative_margin: f64) -> Option<Equivalence> {
    let effects = differences(pairs)?;
    let baseline: Vec<f64> = pairs.iter().map(|p| p.1).collect();
    let margin = relative_margin * median(&baseline)?.abs();
    (margin > 0.0).then(|| Equivalence { margin, p: signed_rank::equivalence_p(&effects, margin) })
}

/// Compare a quantile: `(variant, baseline)` histograms of every round in which both trials are valid.
///
/// The estimate is the ratio of the quantiles of the merged histograms; interval, p-value and equivalence
/// come from resampling the rounds, see [`crate::resample`]. `seed` makes it repeatable. `None` without
/// rounds, with an empty histogram, or when fewer than six values lie beyond the quantile in either merge.
pub fn compare_quantiles(
    pairs: &[(&Histogram, &Histogram)],
    q: f64,
    relative_margin: f64,
    seed: u64,
) -> Option<(Comparison, Equivalence)> {
    let variants: Vec<&Histogram> = pairs.iter().map(|p| p.0).collect();
    let baselines: Vec<&Histogram> = pairs.iter().map(|p| p.1).collect();
    let variant = Merge::new(&variants).filter(|m| m.reportable(q))?;
    let baseline = Merge::new(&baselines).filter(|m| m.reportable(q))?;
    let statistic =
        |weights: &[u32]| (variant.quantile(q, weights) as f64 / baseline.quantile(q, weights) as f64).ln();
    let margin = relative_margin.ln_1p();
    let n = pairs.len();
    let mut comparison = Comparison {
        estimate: statistic(&vec![1; n]).exp(),
        interval: None,
        n,
        p: 1.0,
        p_holm: 1.0,
        ratio: true,
    };
    if n < LEAST_ROUNDS {
        return Some((comparison, Equivalence { margin, p: 1.0 }));
    }
    let bootstrap = Bootstrap::new(n, seed, statistic)?;
    let (low, high) = bootstrap.interval(0.025);
    comparison.interval = Some((low.exp(), high.exp()));
    comparison.p = (2.0 * bootstrap.p_at_least(0.0).min(bootstrap.p_at_most(0.0))).min(1.0);
    comparison.p_holm = comparison.p;
    let p = bootstrap.p_at_most(-margin).max(bootstrap.p_at_least(margin));
    Some((comparison, Equivalence { margin, p }))
}

/// A/A noise floor on the ratio scale: the 95th percentile of |ln(A'/A)| over rounds `(A', A)`, where A' is
/// the baseline under a second name. `None` below six pairs, or if a value is not positive and finite.
///
/// It is what one round shows where nothing differs. An estimate over n rounds is more precise than that, so
/// the floor is a cautious bound on purpose: it also holds against what n rounds share (placement in memory,
/// hash seeds, a neighbour), which no number of rounds averages out.
pub fn noise_floor(pairs: &[(f64, f64)]) -> Option<f64> {
    floor_of(&log_ratios(pairs)?)
}

/// The same on the difference scale: the 95th percentile of |A' - A|.
pub fn noise_floor_difference(pairs: &[(f64, f64)]) -> Option<f64> {
    floor_of(&differences(pairs)?)
}

fn floor_of(effects: &[f64]) -> Option<f64> {
    let sizes: Vec<f64> = effects.iter().map(|e| e.abs()).collect();
    if sizes.len() < LEAST_ROUNDS { None } else { quantile(&sizes, 0.95) }
}

/// Holm's correction (Holm 1979) over the variants of one metric: fills in [`Comparison::p_holm`]. The
/// probability of naming even one false difference among them then stays below alpha, however they depend.
///
/// With few rounds this can be out of reach: see [`signed_rank::least_rounds`].
pub fn holm(comparisons: &mut [Comparison]) {
    let p: Vec<f64> = comparisons.iter().map(|c| c.p).collect();
    for (comparison, adjusted) in comparisons.iter_mut().zip(holm_adjusted(&p)) {
        comparison.p_holm = adjusted;
    }
}

/// Holm-adjusted p-values, in the order given.
pub fn holm_adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut running: f64 = 0.0;
    for (done, index) in order.into_iter().enumerate() {
        // A hypothesis cannot be rejected before those with smaller p: the running maximum.
        running = running.max((p.len() - done) as f64 * p[index]).min(1.0);
        adjusted[index] = running;
    }
    adjusted
}
