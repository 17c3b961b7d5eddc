//! A variant against the baseline, within rounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::order::{median, quantile};
use crate::quantiles::quantile_rounds;
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

/// Compare a quantile by ratio: [`compare_ratio`] of [`quantile_rounds`], with `n` counting rounds (not
/// batches). `None` where the latter gives none.
pub fn compare_quantiles(pairs: &[(&Histogram, &Histogram)], q: f64) -> Option<Comparison> {
    Some(Comparison { n: pairs.len(), ..compare_ratio(&quantile_rounds(pairs, q)?)? })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_the_back_transform_of_the_log_scale() {
        // Ratios 2^-1, 2^0 .. 2^4: the middle of the Walsh averages of -1..4 is 1.5, the interval is min to
        // max.
        let pairs: Vec<_> = (0..6).map(|k| (100.0 * 2.0_f64.powi(k - 1), 100.0)).collect();
        let c = compare_ratio(&pairs).unwrap();
        assert!((c.estimate - 2.0_f64.powf(1.5)).abs() < 1e-12);
        let (low, high) = c.interval.unwrap();
        assert!((low - 0.5).abs() < 1e-12 && (high - 16.0).abs() < 1e-12);
        assert!((c.half_width().unwrap() - 2.5 * 2.0_f64.ln()).abs() < 1e-12);
        assert_eq!((c.n, c.ratio, c.p_holm), (6, true, c.p));
    }

    #[test]
    fn fewer_than_six_rounds_give_an_estimate_only() {
        let c = compare_difference(&[(3.0, 1.0), (4.0, 1.0), (5.0, 1.0)]).unwrap();
        assert_eq!((c.estimate, c.interval, c.p, c.n, c.ratio), (3.0, None, 1.0, 3, false));
    }

    #[test]
    fn what_cannot_be_compared_is_not() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(compare_ratio(&[(1.0, 1.0), (bad, 1.0)]), None, "{bad}");
            assert_eq!(compare_ratio(&[(1.0, 1.0), (1.0, bad)]), None, "{bad}");
        }
        assert_eq!(compare_difference(&[(f64::NAN, 1.0)]), None);
        assert!(compare_difference(&[(0.0, 1.0)]).is_some());
        assert_eq!(compare_ratio(&[]), None);
        assert_eq!(compare_difference(&[]), None);
        assert_eq!(equivalence_ratio(&[], 0.03), None);
        assert_eq!(equivalence_difference(&[(1.0, 0.0); 6], 0.03), None);
    }

    #[test]
    fn equivalence_margin_is_on_the_scale_of_the_effect() {
        // Ratios of 1.02 throughout: within 3 % and not within 1 %.
        let pairs = [(102.0, 100.0); 8];
        let within = equivalence_ratio(&pairs, 0.03).unwrap();
        assert!((within.margin - 1.03_f64.ln()).abs() < 1e-15);
        assert_eq!(within.p, 0.5_f64.powi(8));
        assert_eq!(equivalence_ratio(&pairs, 0.01).unwrap().p, 1.0);
        let by_difference = equivalence_difference(&pairs, 0.03).unwrap();
        assert_eq!((by_difference.margin, by_difference.p), (3.0, 0.5_f64.powi(8)));
    }

    #[test]
    fn holm_as_statsmodels() {
        // statsmodels 0.15.0: multipletests(p, method='holm')[1]
        for (p, want) in [
            (&[0.01, 0.04, 0.03, 0.005][..], &[0.03, 0.06, 0.06, 0.02][..]),
            (&[0.4, 0.6, 0.02], &[0.8, 0.8, 0.06]),
        ] {
            for (got, want) in holm_adjusted(p).iter().zip(want) {
                assert!((got - want).abs() < 1e-15);
            }
        }
        let mut comparisons =
            [compare_ratio(&[(2.0, 1.0); 8]).unwrap(), compare_ratio(&[(1.0, 1.0); 8]).unwrap()];
        holm(&mut comparisons);
        assert_eq!(comparisons.map(|c| c.p_holm), [2.0 * 2.0 / 256.0, 1.0]);
    }

    #[test]
    fn noise_floor_is_the_95th_percentile() {
        // 20 pairs with |ln| of 0.01 .. 0.20 and changing sign: the 19th is the smallest with F >= 0.95.
        let pairs: Vec<_> =
            (1..=20).map(|k| ((0.01 * f64::from(k) * (-1.0_f64).powi(k)).exp(), 1.0)).collect();
        assert!((noise_floor(&pairs).unwrap() - 0.19).abs() < 1e-12);
        assert_eq!(noise_floor(&pairs[..5]), None);
        let pairs: Vec<_> = (1..=6).map(|k| (0.0, f64::from(k))).collect();
        assert_eq!(noise_floor_difference(&pairs), Some(6.0));
        assert_eq!(noise_floor(&pairs), None);
    }
}
