//! A variant against the baseline, within rounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::delays::Censored;
use crate::order::{median, median_interval, quantile};
use crate::signed_rank::{self, LEAST_ROUNDS};
use crate::unbounded::Number;

/// Outcome of comparing a variant with the baseline over rounds.
///
/// On a ratio scale the figures are ratios variant / baseline (1 is equal); on a difference scale they are
/// differences variant - baseline (0 is equal) in the metric's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Hodges-Lehmann estimate. Infinite (or a ratio of 0) where one side failed in most rounds.
    #[serde(with = "crate::unbounded")]
    #[schemars(with = "Number")]
    pub estimate: f64,
    /// 95 % interval; absent with fewer than six rounds.
    #[serde(with = "crate::unbounded")]
    #[schemars(with = "Option<(Number, Number)>")]
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
        self.effect_interval().map(|(low, high)| 0.5 * difference(high, low))
    }

    fn on_scale(&self, value: f64) -> f64 {
        if self.ratio { value.ln() } else { value }
    }

    /// From effects of rounds, by signed ranks; `None` without any.
    ///
    /// If some effects are known only as two bounds, the result holds for every value between them: the interval spans those of
    /// all, the p-value is the largest, the estimate is the one nearest to no effect (partial identification, Manski 2003,
    /// chapter 1; the estimate and both ends of the interval grow with each effect).
    fn of_effects(effects: &Effects, ratio: bool) -> Option<Comparison> {
        let back = |x: f64| if ratio { x.exp() } else { x };
        let (low, high) = (effects.low.as_slice(), effects.high());
        let (above, below) = (signed_rank::test(low).p_greater, signed_rank::test(high).p_less);
        let p = (2.0 * above.min(below)).min(1.0);
        let (least, most) = (signed_rank::hodges_lehmann(low)?, signed_rank::hodges_lehmann(high)?);
        let interval = effects.interval();
        Some(Comparison {
            estimate: back(if least > 0.0 { least } else { most.min(0.0) }),
            interval: interval.map(|(low, high)| (back(low), back(high))),
            n: low.len(),
            p,
            p_holm: p,
            ratio,
        })
    }
}

/// Effects of rounds on the scale of [`Comparison::effect`], each between two bounds.
struct Effects {
    low: Vec<f64>,
    /// Absent where all are known, as nearly always: nothing is computed twice then.
    high: Option<Vec<f64>>,
}

impl Effects {
    fn of(bounds: Vec<(f64, f64)>) -> Effects {
        let exact = bounds.iter().all(|(low, high)| low == high);
        let (low, high) = bounds.into_iter().unzip();
        Effects { low, high: (!exact).then_some(high) }
    }

    fn high(&self) -> &[f64] {
        self.high.as_deref().unwrap_or(&self.low)
    }

    /// The signed-rank interval. Effects that are infinite, or may be, take the highest ranks on one side, so that the others are
    /// not symmetric around the median as signed ranks ask. The interval then spans that of the order statistics, too, which asks
    /// for nothing: without it, 87 to 93 % covered the truth where just under half of the operations fail.
    fn interval(&self) -> Option<(f64, f64)> {
        let (low, high) = (signed_rank::interval(&self.low)?.0, signed_rank::interval(self.high())?.1);
        if self.low.iter().chain(self.high()).all(|effect| effect.is_finite()) {
            return Some((low, high));
        }
        let (least, most) = (median_interval(&self.low)?.0, median_interval(self.high())?.1);
        Some((low.min(least), high.max(most)))
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

/// `a - b`; 0 between equal infinities, for both sides failed.
pub(crate) fn difference(a: f64, b: f64) -> f64 {
    if a == b { 0.0 } else { a - b }
}

/// ln(variant / baseline) per round; `None` if a value is negative or no number. A rate of zero and an infinite delay are
/// results: the effect is infinite, or none where both sides have it.
fn log_ratios<V: Into<Censored> + Copy>(pairs: &[(V, V)]) -> Option<Effects> {
    effects(pairs, |value| (value >= 0.0).then(|| value.ln()))
}

/// variant - baseline per round; `None` if a value is no number. An infinite delay is a result, as in [`log_ratios`].
fn differences<V: Into<Censored> + Copy>(pairs: &[(V, V)]) -> Option<Effects> {
    effects(pairs, |value| (!value.is_nan()).then_some(value))
}

fn effects<V: Into<Censored> + Copy>(
    pairs: &[(V, V)],
    scale: impl Fn(f64) -> Option<f64>,
) -> Option<Effects> {
    let effect = |(variant, baseline): &(V, V)| {
        let (variant, baseline): (Censored, Censored) = ((*variant).into(), (*baseline).into());
        let ends = |value: Censored| Some((scale(value.bounds().0)?, scale(value.bounds().1)?));
        let ((v_low, v_high), (b_low, b_high)) = (ends(variant)?, ends(baseline)?);
        if variant.known && baseline.known {
            let effect = difference(v_low, b_low);
            return Some((effect, effect));
        }
        // Infinite against infinite is no number: where a value is open to above, it may be anything.
        let or = |value: f64, unknown: f64| if value.is_nan() { unknown } else { value };
        Some((or(v_low - b_high, f64::NEG_INFINITY), or(v_high - b_low, f64::INFINITY)))
    };
    pairs.iter().map(effect).collect::<Option<Vec<_>>>().map(Effects::of)
}

/// Compare on the ratio scale: `(variant, baseline)` of every round in which both trials are valid.
///
/// Hodges-Lehmann estimate, interval and test of the logarithms of the ratios, turned back into ratios.
/// `p_holm` equals `p` until [`holm`] is applied. `None` without rounds, or if a value is negative or no number. A value
/// may be 0 (a rate at which nothing came through) or infinite (a delay of what failed).
pub fn compare_ratio<V: Into<Censored> + Copy>(pairs: &[(V, V)]) -> Option<Comparison> {
    Comparison::of_effects(&log_ratios(pairs)?, true)
}

/// Compare on the difference scale, for quantities that may be zero. `None` without rounds or with a value
/// that is no number.
pub fn compare_difference<V: Into<Censored> + Copy>(pairs: &[(V, V)]) -> Option<Comparison> {
    Comparison::of_effects(&differences(pairs)?, false)
}

/// Is the variant equivalent to the baseline within a relative margin (0.03: the ratio lies between 1/1.03
/// and 1.03)? `None` where [`compare_ratio`] gives none.
pub fn equivalence_ratio<V: Into<Censored> + Copy>(
    pairs: &[(V, V)],
    relative_margin: f64,
) -> Option<Equivalence> {
    let effects = log_ratios(pairs).filter(|_| !pairs.is_empty())?;
    let margin = relative_margin.ln_1p();
    Some(Equivalence { margin, p: signed_rank::equivalence_p(&effects.low, effects.high(), margin) })
}

/// The same on the difference scale, the margin being relative to the median of the baseline's values.
/// `None` if that median is zero (nothing is relative to zero) or infinite, and where [`compare_difference`] gives none.
pub fn equivalence_difference<V: Into<Censored> + Copy>(
    pairs: &[(V, V)],
    relative_margin: f64,
) -> Option<Equivalence> {
    let effects = differences(pairs)?;
    let baseline: Vec<f64> = pairs.iter().map(|p| p.1.into().value).collect();
    let margin = relative_margin * median(&baseline)?.abs();
    (margin > 0.0 && margin.is_finite())
        .then(|| Equivalence { margin, p: signed_rank::equivalence_p(&effects.low, effects.high(), margin) })
}

/// A/A noise floor on the ratio scale: the 95th percentile of |ln(A'/A)| over rounds `(A', A)`, where A' is
/// the baseline under a second name. `None` below six pairs, or if a value is negative.
///
/// It is what one round shows where nothing differs. An estimate over n rounds is more precise than that, so
/// the floor is a cautious bound on purpose: it also holds against what n rounds share (placement in memory,
/// hash seeds, a neighbour), which no number of rounds averages out.
pub fn noise_floor<V: Into<Censored> + Copy>(pairs: &[(V, V)]) -> Option<f64> {
    floor_of(&log_ratios(pairs)?)
}

/// The same on the difference scale: the 95th percentile of |A' - A|.
pub fn noise_floor_difference<V: Into<Censored> + Copy>(pairs: &[(V, V)]) -> Option<f64> {
    floor_of(&differences(pairs)?)
}

fn floor_of(effects: &Effects) -> Option<f64> {
    let both = effects.low.iter().zip(effects.high());
    let sizes: Vec<f64> = both.map(|(low, high)| low.abs().max(high.abs())).collect();
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
        for bad in [-1.0, f64::NAN] {
            assert_eq!(compare_ratio(&[(1.0, 1.0), (bad, 1.0)]), None, "{bad}");
            assert_eq!(compare_ratio(&[(1.0, 1.0), (1.0, bad)]), None, "{bad}");
        }
        assert_eq!(compare_difference(&[(f64::NAN, 1.0)]), None);
        assert!(compare_difference(&[(0.0, 1.0)]).is_some());
        assert_eq!(compare_ratio::<f64>(&[]), None);
        assert_eq!(compare_difference::<f64>(&[]), None);
        assert_eq!(equivalence_ratio::<f64>(&[], 0.03), None);
        assert_eq!(equivalence_difference(&[(1.0, 0.0); 6], 0.03), None);
    }

    #[test]
    fn one_side_that_failed_is_an_infinite_effect() {
        let dead = compare_ratio(&[(0.0, 5.0); 6]).unwrap();
        assert_eq!((dead.estimate, dead.interval, dead.p), (0.0, Some((0.0, 0.0)), 2.0 / 64.0));
        assert_eq!(dead.half_width(), Some(0.0));
        let never = compare_ratio(&[(f64::INFINITY, 5.0); 6]).unwrap();
        assert_eq!((never.estimate, never.p), (f64::INFINITY, 2.0 / 64.0));
        let both = compare_ratio(&[(f64::INFINITY, f64::INFINITY); 6]).unwrap();
        assert_eq!((both.estimate, both.p), (1.0, 1.0));
        // Half of the rounds failed: nothing but the side is known.
        let half: Vec<_> = (0..6).map(|k| (if k % 2 == 0 { f64::INFINITY } else { 10.0 }, 5.0)).collect();
        let half = compare_ratio(&half).unwrap();
        let (low, high) = half.interval.unwrap();
        assert!((low - 2.0).abs() < 1e-12 && high == f64::INFINITY, "{low} {high}");
        assert_eq!(half.p, 2.0 / 64.0);
    }

    #[test]
    fn what_is_known_from_below_is_claimed_no_further() {
        let (known, above) = (|v: f64| Censored::from(v), Censored::above);
        let c = compare_ratio(&[(above(20), known(10.0)); 6]).unwrap();
        assert!((c.estimate - 2.0).abs() < 1e-12 && (c.interval.unwrap().0 - 2.0).abs() < 1e-12);
        assert_eq!((c.interval.unwrap().1, c.p), (f64::INFINITY, 2.0 / 64.0));
        let c = compare_ratio(&[(known(10.0), above(20)); 6]).unwrap();
        assert!((c.estimate - 0.5).abs() < 1e-12 && c.interval.unwrap().0 == 0.0, "{c:?}");
        for undecided in [(above(5), known(10.0)), (above(5), above(50)), (Censored::FAILED, above(5))] {
            let c = compare_ratio(&[undecided; 6]).unwrap();
            assert_eq!((c.estimate, c.p), (1.0, 1.0), "{undecided:?}");
            assert_eq!(c.interval.unwrap().1, f64::INFINITY, "{undecided:?}");
        }
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
        assert_eq!(
            noise_floor(&pairs),
            Some(f64::INFINITY),
            "a baseline that fails names nobody better or worse"
        );
    }
}
