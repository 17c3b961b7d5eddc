//! Order statistics and moments of a list of values.

use crate::special::normal_quantile;

/// Rank, from 1, of the smallest of `n` sorted values x with F(x) >= p.
///
/// The allowance keeps 0.07 x 100 = 7.000000000000001 from becoming 8.
pub(crate) fn rank(n: u64, p: f64) -> u64 {
    let exact = n as f64 * p;
    ((exact * (1.0 - 1e-12)).ceil() as u64).clamp(1, n.max(1))
}

/// The values in ascending order.
pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The smallest value x with F(x) >= p, where F is the empirical distribution function (RFC 2330
/// section 11.3): always one of the values, never between two. `p` is in 0..=1; `None` without values.
pub fn quantile(values: &[f64], p: f64) -> Option<f64> {
    let sorted = sorted(values);
    sorted.get(rank(sorted.len() as u64, p) as usize - 1).copied()
}

/// The median: the middle value, or the mean of the middle two (RFC 2330 section 11.3 gives the median this
/// exception). `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    median_of_sorted(&sorted(values))
}

pub(crate) fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    if n == 0 {
        return None;
    }
    Some(if n % 2 == 1 { sorted[n / 2] } else { midpoint(sorted[n / 2 - 1], sorted[n / 2]) })
}

/// The middle of two values; 0 between both infinities.
pub(crate) fn midpoint(a: f64, b: f64) -> f64 {
    // Halved before the sum, so that two huge values do not overflow.
    let middle = 0.5 * a + 0.5 * b;
    if middle.is_nan() { 0.0 } else { middle }
}

/// 95 % interval of the median between two order statistics, from the binomial distribution alone: it holds
/// for every distribution (David and Nagaraja, Order Statistics, 3rd ed., section 7.1).
///
/// Coverage is at least 95 %: n = 6 gives min..max (96.9 %), n = 10 the 2nd..9th (97.9 %), n = 20 the
/// 6th..15th (95.9 %). `None` below six values, where even min..max covers less than 95 %.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len();
    let k = median_interval_rank(n)?;
    let sorted = sorted(values);
    Some((sorted[k - 1], sorted[n - k]))
}

/// The largest k with P(Bin(n, 1/2) < k) <= 2.5 %: the interval is from the k-th value to the k-th from the
/// end.
fn median_interval_rank(n: usize) -> Option<usize> {
    // 2^-1000 is still a normal f64; beyond, the normal approximation is exact to a rank.
    if n > 1000 {
        let n = n as f64;
        return Some((0.5 * n + normal_quantile(0.025) * 0.5 * n.sqrt() + 0.5).floor() as usize);
    }
    let mut term = 0.5_f64.powi(n as i32);
    let mut below = 0.0;
    let mut k = 0;
    while below + term <= 0.025 {
        below += term;
        term *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    (k > 0).then_some(k)
}

/// Arithmetic mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Standard deviation of the sample (divisor n - 1); `None` below two values.
pub fn sd(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Coefficient of variation, [`sd`] / |[`mean`]|; `None` below two values and around a mean of zero.
pub fn cv(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?.abs();
    (mean > 0.0).then_some(sd(values)? / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_the_example_of_rfc_2330() {
        // The six values of RFC 2330 section 11.3: F is 1/6 from -5, 2/6 from -2, 3/6 from 4, 5/6 from 7, 1
        // from 18.
        let delays = [-2.0, 7.0, 7.0, 4.0, 18.0, -5.0];
        for (p, want) in
            [(0.0, -5.0), (0.16, -5.0), (0.17, -2.0), (0.5, 4.0), (0.51, 7.0), (0.83, 7.0), (1.0, 18.0)]
        {
            assert_eq!(quantile(&delays, p), Some(want), "p = {p}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn rank_is_not_moved_by_rounding() {
        // 100 * 0.07 is 7.000000000000001 in binary.
        assert_eq!(rank(100, 0.07), 7);
        assert_eq!(rank(1000, 0.999), 999);
        assert_eq!(rank(20, 0.95), 19);
        assert_eq!(rank(3, 0.0), 1);
    }

    #[test]
    fn median_interval_has_the_ranks_of_the_binomial() {
        // scipy.stats.binom.cdf(k - 1, n, 0.5) <= 0.025 < binom.cdf(k, n, 0.5) (SciPy 1.17.1)
        for (n, k) in [
            (5, None),
            (6, Some(1)),
            (8, Some(1)),
            (10, Some(2)),
            (20, Some(6)),
            (50, Some(18)),
            (300, Some(133)),
            (5000, Some(2431)),
        ] {
            assert_eq!(median_interval_rank(n), k, "n = {n}");
        }
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(median_interval(&values), Some((2.0, 9.0)));
    }

    #[test]
    fn moments_as_numpy() {
        // numpy.mean, numpy.std(ddof=1), scipy.stats.variation(ddof=1)
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&values), Some(5.0));
        assert!((sd(&values).unwrap() - 2.138089935299395).abs() < 1e-14);
        assert!((cv(&values).unwrap() - 0.427617987059879).abs() < 1e-14);
        assert_eq!(median(&values), Some(4.5));
        assert_eq!((mean(&[]), sd(&[1.0]), cv(&[0.0, 0.0]), median(&[])), (None, None, None, None));
        assert_eq!((mean(&[]), sd(&[1.0]), cv(&[0.0, 0.0]), median(&[])), (None, None, None, None));
        assert_eq!((sd(&[1.0, 3.0]), cv(&[-1.0, -3.0])), (Some(2.0_f64.sqrt()), Some(2.0_f64.sqrt() / 2.0)));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[f64::NEG_INFINITY, f64::INFINITY]), Some(0.0));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX));
    }
}
