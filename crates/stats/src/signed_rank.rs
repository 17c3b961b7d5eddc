//! Wilcoxon's signed-rank test, its interval and the estimate that belongs to it.
//!
//! The input are the differences (or logarithms of ratios) of the rounds. The only assumption is that each
//! of them is distributed symmetrically around the effect, which randomised order within rounds gives when
//! nothing but the noise differs; no normal distribution, and no common width: a disturbed round may be
//! noisier than a calm one. An effect may be infinite (one side failed): ranks need no more than its sign. Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd
//! ed., sections 3.1 to 3.3.

use crate::order::{median_of_sorted, midpoint};
use crate::special::{normal_cdf, normal_quantile};

/// Fewest rounds that can give a 95 % interval: with five, even the most extreme of the 2^5 sign patterns
/// has p = 2/32.
pub const LEAST_ROUNDS: usize = 6;

/// Up to this many values the null distribution is enumerated exactly; beyond, its normal approximation
/// differs by less than 0.001 at the 5 % level.
const EXACT_UP_TO: usize = 50;

/// Returns the Walsh averages (x_i + x_j) / 2 for i <= j, ascending. The average of two opposite infinities is 0.
fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut averages = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (i, x) in values.iter().enumerate() {
        averages.extend(values[..=i].iter().map(|y| midpoint(*x, *y)));
    }
    averages.sort_by(f64::total_cmp);
    averages
}

/// Hodges-Lehmann estimate: the median of the Walsh averages; `None` without values.
///
/// As efficient as the mean for normal noise (95.5 %), and a single wild round barely moves it.
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    median_of_sorted(&walsh_averages(values))
}

/// 95 % interval around [`hodges_lehmann`] by inversion of the two-sided test: from the k-th smallest to the
/// k-th largest Walsh average. `None` below six values.
///
/// Exact coverage for continuous noise: n = 6 96.9 %, 8 96.1 %, 10 95.1 %, 20 95.2 %; at least that when
/// values are tied (Noether 1967), because both ends belong to the interval.
pub fn interval(values: &[f64]) -> Option<(f64, f64)> {
    let k = interval_rank(values.len(), 0.025)?;
    let averages = walsh_averages(values);
    Some((averages[k - 1], averages[averages.len() - k]))
}

/// The largest k with P(W < k) <= `tail` under the null, or `None` if even k = 1 exceeds it or n < 6.
fn interval_rank(n: usize, tail: f64) -> Option<usize> {
    if n < LEAST_ROUNDS {
        return None;
    }
    if n > EXACT_UP_TO {
        let (n, z) = (n as f64, normal_quantile(tail));
        let spread = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        // P(W <= k - 1) with continuity correction.
        return Some((n * (n + 1.0) / 4.0 + z * spread + 0.5).floor() as usize);
    }
    let doubled: Vec<usize> = (1..=n).map(|r| 2 * r).collect();
    let mut below = 0.0;
    let mut k = 0;
    for p in null_distribution(&doubled).iter().step_by(2) {
        below += p;
        if below > tail {
            break;
        }
        k += 1;
    }
    (k > 0).then_some(k)
}

/// Distribution of the sum over a random subset of `weights`: element s is P(sum = s).
fn null_distribution(weights: &[usize]) -> Vec<f64> {
    let mut p = vec![0.0; weights.iter().sum::<usize>() + 1];
    p[0] = 1.0;
    let mut reach = 0;
    for &w in weights {
        reach += w;
        for s in (0..=reach).rev() {
            p[s] = 0.5 * (p[s] + if s >= w { p[s - w] } else { 0.0 });
        }
    }
    p
}

/// Both tails of the signed-rank statistic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignedRank {
    /// Sum of the ranks of the positive values.
    pub w_plus: f64,
    /// P(W+ <= observed): small when the values lie below zero.
    pub p_less: f64,
    /// P(W+ >= observed): small when the values lie above zero.
    pub p_greater: f64,
}

impl SignedRank {
    /// p-value of "the effect is zero" against both sides: twice the smaller tail, at most 1.
    pub fn p_two_sided(&self) -> f64 {
        (2.0 * self.p_less.min(self.p_greater)).min(1.0)
    }
}

/// The signed-rank test of "symmetric around zero". All p-values are 1 below six values.
///
/// Ties get mid-ranks; zeros are ranked with the rest and then left out (Pratt 1959: dropping them first can
/// turn a result around). The null distribution is that of random signs on exactly the ranks that were
/// observed, so the test stays exact with ties and zeros; above 50 values it is the normal approximation
/// with the moments of these ranks and continuity correction.
pub fn test(values: &[f64]) -> SignedRank {
    let (doubled, doubled_plus) = doubled_ranks(values);
    let w_plus = doubled_plus as f64 / 2.0;
    if values.len() < LEAST_ROUNDS {
        return SignedRank { w_plus, p_less: 1.0, p_greater: 1.0 };
    }
    if values.len() > EXACT_UP_TO {
        return approximate(&doubled, w_plus);
    }
    let null = null_distribution(&doubled);
    SignedRank {
        w_plus,
        p_less: null[..=doubled_plus].iter().sum::<f64>().min(1.0),
        p_greater: null[doubled_plus..].iter().sum::<f64>().min(1.0),
    }
}

/// Twice the mid-ranks of |x| for the non-zero values (twice, so that they are whole), and their sum over x
/// > 0.
fn doubled_ranks(values: &[f64]) -> (Vec<usize>, usize) {
    let mut by_size = values.to_vec();
    by_size.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let mut ranks = Vec::with_capacity(values.len());
    let mut plus = 0;
    let mut first = 0;
    while first < by_size.len() {
        let size = by_size[first].abs();
        let end = first + by_size[first..].iter().take_while(|x| x.abs().total_cmp(&size).is_eq()).count();
        // Ranks first+1 ..= end share their mean; doubled it is the sum of both ends.
        let doubled = first + 1 + end;
        if size > 0.0 {
            ranks.extend(std::iter::repeat_n(doubled, end - first));
            plus += doubled * by_size[first..end].iter().filter(|x| **x > 0.0).count();
        }
        first = end;
    }
    (ranks, plus)
}

fn approximate(doubled: &[usize], w_plus: f64) -> SignedRank {
    let mean = doubled.iter().map(|&r| r as f64).sum::<f64>() / 4.0;
    let variance = doubled.iter().map(|&r| (r as f64 / 2.0).powi(2)).sum::<f64>() / 4.0;
    if variance == 0.0 {
        return SignedRank { w_plus, p_less: 1.0, p_greater: 1.0 };
    }
    let spread = variance.sqrt();
    SignedRank {
        w_plus,
        p_less: normal_cdf((w_plus - mean + 0.5) / spread),
        p_greater: normal_cdf((mean - w_plus + 0.5) / spread),
    }
}

/// Two one-sided tests (Schuirmann 1987) of "the effect is at most -margin, or at least +margin": the larger
/// of the two p-values, so that a small one shows equivalence. 1 below six values.
///
/// `low` and `high` are the bounds of the values, the same where they are known. `margin` is on the scale of the values
/// (logarithms for ratios) and positive.
pub fn equivalence_p(low: &[f64], high: &[f64], margin: f64) -> f64 {
    let shifted = |values: &[f64], by: f64| values.iter().map(|x| x + by).collect::<Vec<_>>();
    test(&shifted(low, margin)).p_greater.max(test(&shifted(high, -margin)).p_less)
}

/// Fewest rounds with which the smallest of `comparisons` Holm-corrected p-values can fall below `alpha`:
/// `comparisons x 2^(1-n) < alpha`. At 5 %: 6 for one comparison, 7 for two or three, 8 for four to six.
pub fn least_rounds(comparisons: usize, alpha: f64) -> usize {
    let needed = (comparisons.max(1) as f64 * 2.0 / alpha).log2();
    (needed.floor() as usize + 1).max(LEAST_ROUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIX: [f64; 6] = [0.013, -0.002, 0.021, 0.008, 0.017, 0.011];
    const EIGHT: [f64; 8] = [0.12, -0.07, 0.31, 0.05, -0.02, 0.22, 0.09, -0.11];
    const TEN: [f64; 10] = [-1.3, 0.4, 2.2, 0.9, -0.5, 3.1, 1.7, 0.2, -0.1, 1.1];
    const TIES: [f64; 10] = [1.0, 1.0, -1.0, 2.0, 0.0, 3.0, -2.0, 2.0, 0.0, 4.0];

    #[test]
    fn beyond_exact_sums_the_rank_is_still_theirs() {
        // The exact distribution, summed by NumPy.
        let exact = [454, 649, 673, 773];
        assert_eq!([51, 60, 61, 65].map(|n| interval_rank(n, 0.025)), exact.map(Some));
    }

    #[test]
    fn exact_p_values_as_scipy() {
        // SciPy 1.17.1: scipy.stats.wilcoxon(x, alternative=..., method='exact'): statistic of 'greater'
        // (W+), then the p-values of 'two-sided', 'greater', 'less'.
        for (values, w_plus, two_sided, greater, less) in [
            (&SIX[..], 20.0, 0.0625, 0.03125, 0.984375),
            (&EIGHT[..], 27.0, 0.25, 0.125, 0.90234375),
            (&TEN[..], 43.0, 0.130859375, 0.0654296875, 0.947265625),
        ] {
            let got = test(values);
            assert_eq!(got, SignedRank { w_plus, p_less: less, p_greater: greater });
            assert_eq!(got.p_two_sided(), two_sided);
        }
    }

    #[test]
    fn fifty_values_are_still_summed_exactly() {
        let values: Vec<f64> =
            (1..=50).map(|n| if n % 3 == 0 { -f64::from(n) } else { f64::from(n) }).collect();
        // scipy.stats.wilcoxon(values, alternative=..., method='exact'); the approximation would say 0.0135.
        let got = test(&values);
        assert!((got.p_greater - 0.01308348408559823).abs() < 1e-12, "{got:?}");
        assert!((got.p_less - 0.9872499584101826).abs() < 1e-12, "{got:?}");
        // Six values have no rank for a tail below 1/64.
        assert_eq!([0.016, 0.015].map(|tail| interval_rank(6, tail)), [Some(1), None]);
    }

    #[test]
    fn exact_p_values_with_ties_and_zeros_as_scipy() {
        // scipy.stats.wilcoxon(x, zero_method='pratt', alternative=...,
        //     method=scipy.stats.PermutationMethod(n_resamples=numpy.inf))
        let got = test(&TIES);
        assert_eq!(got, SignedRank { w_plus: 41.0, p_less: 0.953125, p_greater: 0.08203125 });
        assert_eq!(got.p_two_sided(), 0.1640625);
    }

    #[test]
    fn approximate_p_values_as_scipy() {
        // x = [((i*37) % 61 - 24) / 10 for i in range(60)]
        // scipy.stats.wilcoxon(x, zero_method='pratt', alternative=..., method='approx', correction=True)
        let values: Vec<f64> = (0..60).map(|i| f64::from((i * 37) % 61 - 24) / 10.0).collect();
        let got = test(&values);
        assert_eq!(got.w_plus, 1242.0);
        assert!((got.p_two_sided() - 0.016227476697008532).abs() < 1e-12);
        assert!((got.p_greater - 0.008113738348504266).abs() < 1e-12);
        assert!((got.p_less - 0.9920482141656333).abs() < 1e-12);
    }

    #[test]
    fn estimate_is_the_median_of_the_walsh_averages() {
        // numpy.median([(x[i]+x[j])/2 for i in range(n) for j in range(i, n)])
        for (values, want) in [(&SIX[..], 0.012), (&EIGHT[..], 0.0725), (&TEN[..], 0.75), (&TIES[..], 1.0)] {
            assert!((hodges_lehmann(values).unwrap() - want).abs() < 1e-12);
        }
        assert_eq!(hodges_lehmann(&[]), None);
        assert_eq!(hodges_lehmann(&[3.0]), Some(3.0));
    }

    #[test]
    fn ranks_of_the_interval_as_the_table() {
        // Hollander, Wolfe and Chicken, table A.4 (the familiar critical values T of the two-sided 5 % test:
        // 0, 2, 3, 5, 8, 52, 434); the interval starts at the Walsh average T + 1.
        for (n, critical) in [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (20, 52), (50, 434)] {
            assert_eq!(interval_rank(n, 0.025), Some(critical + 1), "n = {n}");
        }
        for n in 0..6 {
            assert_eq!(interval_rank(n, 0.025), None);
        }
    }

    #[test]
    fn approximation_meets_the_exact_rank_where_it_takes_over() {
        let n = EXACT_UP_TO + 1;
        let doubled: Vec<usize> = (1..=n).map(|r| 2 * r).collect();
        let k = interval_rank(n, 0.025).unwrap();
        let below: f64 = null_distribution(&doubled).iter().step_by(2).take(k).sum();
        // One rank is worth 0.0005 here.
        assert!((0.0243..0.0252).contains(&below), "{below}");
    }

    #[test]
    fn interval_with_six_is_min_to_max_and_with_five_absent() {
        assert_eq!(interval(&SIX), Some((-0.002, 0.021)));
        assert_eq!(interval(&SIX[..5]), None);
        assert_eq!(test(&SIX[..5]).p_two_sided(), 1.0);
        assert_eq!(equivalence_p(&SIX[..5], &SIX[..5], 10.0), 1.0);
    }

    #[test]
    fn interval_is_where_the_test_stops_rejecting() {
        for values in [&EIGHT[..], &TEN[..]] {
            let (low, high) = interval(values).unwrap();
            let p_at = |x: f64| test(&values.iter().map(|v| v - x).collect::<Vec<_>>()).p_two_sided();
            assert!(p_at(low - 1e-9) < 0.05 && p_at(low + 1e-9) >= 0.05);
            assert!(p_at(high + 1e-9) < 0.05 && p_at(high - 1e-9) >= 0.05);
        }
    }

    #[test]
    fn nothing_but_zeros_is_no_effect() {
        for n in [6, 60] {
            let zeros = vec![0.0; n];
            assert_eq!(test(&zeros).p_two_sided(), 1.0);
            assert_eq!(interval(&zeros), Some((0.0, 0.0)));
            assert!(equivalence_p(&zeros, &zeros, 0.03) <= 1.0 / 64.0);
        }
    }

    #[test]
    fn equivalence_needs_both_tests() {
        // With six values all within the margin each one-sided p is 2^-6; one beyond it at the largest rank
        // makes 2 x.
        assert_eq!(equivalence_p(&SIX, &SIX, 0.03), 1.0 / 64.0);
        assert_eq!(equivalence_p(&SIX, &SIX, 0.02), 2.0 / 64.0);
        assert!(equivalence_p(&SIX, &SIX, 0.01) > 0.5);
    }

    #[test]
    fn least_rounds_by_holm() {
        // comparisons x 2^(1-n) < 0.05, tried one by one.
        for (comparisons, n) in [(1, 6), (2, 7), (3, 7), (4, 8), (6, 8), (7, 9)] {
            assert_eq!(least_rounds(comparisons, 0.05), n);
            let smallest = comparisons as f64 * 2.0_f64.powi(1 - n as i32);
            assert!(smallest < 0.05 && (n == LEAST_ROUNDS || 2.0 * smallest >= 0.05));
        }
    }
}
