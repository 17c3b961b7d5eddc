//! Two independent samples: by how much one is shifted against the other.
//!
//! For runs that were made at different times, where no trial of one belongs to a trial of the other. Within
//! one run the paired comparison ([`crate::compare`]) is the right one: it removes what a round's trials have
//! in common.
//!
//! The estimate is Hodges and Lehmann's (1963): the median of all pairwise differences. The interval inverts
//! the Mann-Whitney test (Hollander, Wolfe, Chicken, "Nonparametric Statistical Methods", 3rd ed., section
//! 4.3).

use crate::compare::{Comparison, difference};
use crate::order::median_of_sorted;
use crate::special::normal_cdf;

/// Samples up to this size (each) use the exact distribution of U; larger ones its normal approximation.
/// The same bound as R's `wilcox.test`; the approximation is good to three digits of p from there on.
const EXACT_BELOW: usize = 50;

/// 97.5th percentile of the standard normal distribution.
const Z_975: f64 = 1.959_963_984_540_054;

/// Level of the interval: 1 - 0.05.
const ALPHA: f64 = 0.05;

/// Least and greatest that a value may be: the same where it was seen.
pub type Bounds = (f64, f64);

/// Returns the shift of `b` against `a`, in their own unit: b - a. Both need at least one value; values that are no number are
/// left out. Values may be infinite (operations that failed); two of one sign differ by 0.
///
/// The interval is absent where 95 % cannot be reached: with fewer than 4 + 4 or 3 + 5 values.
/// `p` and `p_holm` are the two-sided p-value; correction over a family is the caller's.
pub fn shift(a: &[f64], b: &[f64]) -> Option<Comparison> {
    shift_between(&exact(a), &exact(b))
}

/// By which factor `b` is larger than `a`: [`shift`] of the logarithms. `None` if a value is below zero, since then there
/// is no ratio.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Comparison> {
    ratio_between(&exact(a), &exact(b))
}

fn exact(values: &[f64]) -> Vec<Bounds> {
    values.iter().map(|value| (*value, *value)).collect()
}

/// [`shift`] of values of which some are only known to lie between two bounds. Said is what is true of all that they may be, as in
/// [`crate::compare`]: the interval spans all of theirs, p is the largest, the estimate the one nearest to no effect.
pub fn shift_between(a: &[Bounds], b: &[Bounds]) -> Option<Comparison> {
    let numbers = |values: &[Bounds]| -> (Vec<f64>, Vec<f64>) {
        values.iter().filter(|(low, high)| !low.is_nan() && !high.is_nan()).copied().unzip()
    };
    let ((a_low, a_high), (b_low, b_high)) = (numbers(a), numbers(b));
    let (low, high) = (differences(&a_high, &b_low), differences(&a_low, &b_high));
    let (least, most) = (median_of_sorted(&low)?, median_of_sorted(&high)?);
    let interval =
        interval_rank(a_low.len(), b_low.len()).map(|rank| (low[rank - 1], high[high.len() - rank]));
    let half = a_low.len() as f64 * b_low.len() as f64 / 2.0;
    let p = if wins(&a_high, &b_low) >= half {
        p_value(&a_high, &b_low)
    } else if wins(&a_low, &b_high) <= half {
        p_value(&a_low, &b_high)
    } else {
        1.0
    };
    Some(Comparison {
        estimate: if least > 0.0 { least } else { most.min(0.0) },
        interval,
        n: a_low.len().min(b_low.len()),
        p,
        p_holm: p,
        ratio: false,
    })
}

/// [`ratio`] of values of which some are only known to lie between two bounds.
pub fn ratio_between(a: &[Bounds], b: &[Bounds]) -> Option<Comparison> {
    if a.iter().chain(b).any(|(low, _)| *low < 0.0) {
        return None;
    }
    let logs = |values: &[Bounds]| -> Vec<Bounds> {
        values.iter().map(|(low, high)| (low.ln(), high.ln())).collect()
    };
    shift_between(&logs(a), &logs(b)).map(|c| Comparison {
        estimate: c.estimate.exp(),
        interval: c.interval.map(|(low, high)| (low.exp(), high.exp())),
        ratio: true,
        ..c
    })
}

/// All differences of a value of `b` to one of `a`, in order.
fn differences(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> = b.iter().flat_map(|y| a.iter().map(|x| difference(*y, *x))).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Mann and Whitney's U: pairs in which the value of `b` is greater, of equal ones half.
fn wins(a: &[f64], b: &[f64]) -> f64 {
    let won = |x: &f64, y: &f64| if y > x { 1.0 } else { f64::from(u8::from(x == y)) / 2.0 };
    a.iter().map(|x| b.iter().map(|y| won(x, y)).sum::<f64>()).sum()
}

/// Which ordered difference, counted from 1 at both ends, bounds the 95 % interval; `None` where even the
/// extreme ones do not reach 95 %.
fn interval_rank(m: usize, n: usize) -> Option<usize> {
    if m < EXACT_BELOW && n < EXACT_BELOW {
        let counts = distribution(m, n);
        let total: f64 = counts.iter().sum();
        let mut below = 0.0;
        for (u, count) in counts.iter().enumerate() {
            below += count / total;
            if below > ALPHA / 2.0 {
                return (u > 0).then_some(u);
            }
        }
        None
    } else {
        let (m, n) = (m as f64, n as f64);
        let rank = (m * n / 2.0 - Z_975 * (m * n * (m + n + 1.0) / 12.0).sqrt()).floor();
        (rank >= 1.0).then_some(rank as usize)
    }
}

/// In how many of the equally likely orders of m + n values U takes each value 0..=mn: the coefficients of
/// the Gaussian binomial (m+n choose m) in q, by multiplying and dividing its factors (1 - q^(n+i)) / (1 -
/// q^i).
fn distribution(m: usize, n: usize) -> Vec<f64> {
    let size = m * n + 1;
    let mut counts = vec![0.0; size];
    counts[0] = 1.0;
    for i in 1..=m {
        for u in (n + i..size).rev() {
            counts[u] -= counts[u - n - i];
        }
        for u in i..size {
            counts[u] += counts[u - i];
        }
    }
    counts
}

/// Two-sided p-value of the Mann-Whitney test: exact for small samples without ties, else by the normal
/// approximation with corrections for ties and continuity (as R's `wilcox.test` does).
fn p_value(a: &[f64], b: &[f64]) -> f64 {
    let (m, n) = (a.len(), b.len());
    let u = wins(a, b);
    let tied = a.iter().any(|x| b.contains(x));
    let (mf, nf) = (m as f64, n as f64);
    if !tied && !has_ties(a) && !has_ties(b) && m < EXACT_BELOW && n < EXACT_BELOW {
        let counts = distribution(m, n);
        let total: f64 = counts.iter().sum();
        let extreme = u.min(mf * nf - u) as usize;
        let tail = counts[..=extreme].iter().sum::<f64>() / total;
        return (2.0 * tail).min(1.0);
    }
    let all = mf + nf;
    let ties: f64 = tie_sizes(a, b).into_iter().map(|t| t * t * t - t).sum();
    let sigma = (mf * nf / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)))).sqrt();
    if sigma == 0.0 || !sigma.is_finite() {
        return 1.0;
    }
    let z = ((u - mf * nf / 2.0).abs() - 0.5).max(0.0) / sigma;
    (2.0 * normal_cdf(-z)).min(1.0)
}

fn has_ties(values: &[f64]) -> bool {
    tie_sizes(values, &[]).into_iter().any(|t| t > 1.0)
}

fn tie_sizes(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    all.chunk_by(|x, y| x == y).map(|group| group.len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance, "{a} is not {b}");
    }

    /// Hollander and Wolfe, example 4.1 (permeability of the chorioamnion), the data of R's help of `wilcox.test`.
    /// p from scipy 1.17.1: mannwhitneyu(y, x, method="exact"); the interval ends at the 9th of the sorted
    /// differences from either end, 9 being the rank that the enumeration below gives for 5 and 10.
    #[test]
    fn textbook_example() {
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        let c = shift(&early, &term).unwrap();
        close(c.estimate, 0.305, 1e-12);
        let (low, high) = c.interval.unwrap();
        close(low, -0.15, 1e-12);
        close(high, 0.76, 1e-12);
        close(c.p, 0.254_412_254_412_254_4, 1e-12);
        assert_eq!(c.n, 5);
    }

    /// p from scipy 1.17.1, mannwhitneyu(a, b, method="exact"); the estimate from numpy's median of all
    /// differences.
    #[test]
    fn exact_without_ties() {
        let a = [10.1, 10.4, 9.8, 10.0, 10.9, 10.3, 9.9];
        let b = [11.2, 10.8, 11.5, 11.0, 10.6, 12.0, 11.1, 10.7];
        let c = shift(&a, &b).unwrap();
        close(c.p, 0.002_175_602_175_602_175_6, 1e-12);
        close(c.estimate, 0.9, 1e-9);
    }

    /// p from scipy 1.17.1, mannwhitneyu(a, b, method="asymptotic", use_continuity=True).
    #[test]
    fn ties_and_large_samples_use_the_approximation() {
        let c = shift(&[0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 5.0], &[2.0, 3.0, 4.0, 4.0, 6.0, 7.0]).unwrap();
        close(c.p, 0.060_756_722_323_612_4, 1e-12);
        close(c.estimate, 2.0, 1e-12);
        let a: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 101) + f64::from(i) * 0.001).collect();
        let b: Vec<f64> = (0..70).map(|i| f64::from(i * 53 % 103 + 7) + f64::from(i) * 0.001).collect();
        let c = shift(&a, &b).unwrap();
        close(c.p, 0.116_065_703_475_728_75, 1e-12);
        close(c.estimate, 8.504, 1e-9);
        // Ties inside of one sample count as well.
        let (tied, other) = ([1.0, 1.0, 2.0, 3.0, 4.0], [2.5, 6.0, 7.0, 8.0, 9.0]);
        close(shift(&tied, &other).unwrap().p, 0.036_145_142_046_562_28, 1e-12);
        close(shift(&other, &tied).unwrap().p, 0.036_145_142_046_562_28, 1e-12);
        // From 50 values of one sample on; below by method="exact".
        let few: Vec<f64> = (30..36).map(|n| f64::from(n) + 0.5).collect();
        for (n, p) in [(49, 0.205_287_641_203_290_52), (50, 0.238_464_363_313_082_85)] {
            let many: Vec<f64> = (1..=n).map(f64::from).collect();
            close(shift(&many, &few).unwrap().p, p, 1e-12);
            close(shift(&few, &many).unwrap().p, p, 1e-12);
        }
    }

    /// Ranks from the full enumeration of all orders (an independent program), as R's `qwilcox(0.025, m, n)`.
    #[test]
    fn ranks_of_the_interval() {
        for (m, n, rank) in [
            (3, 3, None),
            (3, 5, Some(1)),
            (4, 4, Some(1)),
            (5, 10, Some(9)),
            (6, 6, Some(6)),
            (8, 8, Some(14)),
        ] {
            assert_eq!(interval_rank(m, n), rank, "{m} and {n}");
            assert_eq!(interval_rank(n, m), rank, "{n} and {m}");
        }
        // One of 40 equally likely orders is the tail that 95 % leaves on either side, and no more.
        assert_eq!([38, 39].map(|n| interval_rank(1, n)), [None, Some(1)]);
        // The approximation, by Python. Exact ranks are at most two greater: 945, 966, 1174, 2009, 41, 10 and 1.
        for (m, n, rank) in [
            (49, 50, Some(944)),
            (50, 50, Some(965)),
            (50, 60, Some(1173)),
            (100, 50, Some(2008)),
            (50, 4, Some(40)),
            (50, 2, Some(8)),
            (50, 1, None),
        ] {
            assert_eq!(interval_rank(m, n), rank, "{m} and {n}");
            assert_eq!(interval_rank(n, m), rank, "{n} and {m}");
        }
        // At the border both ways must agree but for rounding.
        let exact = interval_rank(49, 49).unwrap() as f64;
        close(exact, (49.0 * 49.0 / 2.0) - Z_975 * (49.0 * 49.0 * 99.0 / 12.0_f64).sqrt(), 2.0);
    }

    #[test]
    fn a_factor_is_found_and_nothing_below_zero_has_one() {
        let a = [9.0, 10.0, 11.0, 10.5];
        let b: Vec<f64> = a.iter().map(|v| v * 1.5).collect();
        let c = ratio(&a, &b).unwrap();
        assert!(c.ratio);
        close(c.estimate, 1.5, 1e-12);
        assert_eq!(ratio(&a, &[1.0, -1.0]), None);
        // Nothing came through in any trial of one side: p as for any two samples that do not overlap.
        let dead = ratio(&a, &[0.0; 4]).unwrap();
        assert_eq!((dead.estimate, dead.interval), (0.0, Some((0.0, 0.0))));
        assert!(dead.p < 0.05, "{}", dead.p);
        assert_eq!(ratio(&[f64::INFINITY; 4], &[f64::INFINITY; 4]).unwrap().estimate, 1.0);
        assert_eq!(shift(&a, &[]), None);
        assert_eq!(shift(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]).unwrap().interval, None);
        assert_eq!(shift(&[2.0; 8], &[2.0; 8]).unwrap().p, 1.0);
    }

    #[test]
    fn bounds_on_both_sides_of_no_effect_have_a_p_of_one() {
        let a: Vec<Bounds> = (1..=6).map(|n| f64::from(10 * n)).map(|value| (value, value)).collect();
        // Twelve of 36 pairs are won for certain, and 24 at most: half is between.
        let seen = shift_between(&a, &[(25.0, 45.0); 6]).unwrap();
        assert_eq!((seen.p, seen.estimate), (1.0, 0.0));
        // Values that are no number, by either bound, are left out.
        let more = [&a[..], &[(f64::NAN, 5.0), (5.0, f64::NAN)]].concat();
        assert_eq!(shift_between(&more, &[(25.0, 45.0); 6]).unwrap(), seen);
    }

    #[test]
    fn what_is_known_from_below_is_claimed_no_further() {
        let known = exact(&[10.0, 11.0, 12.0, 13.0, 14.0]);
        let above = |from: f64| vec![(from, f64::INFINITY); 5];
        let slower = ratio_between(&known, &above(24.0)).unwrap();
        assert!((slower.estimate - 2.0).abs() < 1e-12 && slower.p < 0.02, "{slower:?}");
        assert_eq!(slower.interval.unwrap().1, f64::INFINITY);
        let faster = ratio_between(&above(24.0), &known).unwrap();
        assert!((faster.estimate - 0.5).abs() < 1e-12 && faster.p == slower.p, "{faster:?}");
        // It may be anything above five, so no claim is made.
        let open = ratio_between(&known, &above(5.0)).unwrap();
        assert_eq!((open.estimate, open.p), (1.0, 1.0));
        // A failed value is not less than one that is still under way.
        let failed = shift_between(&above(5.0), &exact(&[f64::INFINITY; 5])).unwrap();
        assert_eq!((failed.estimate, failed.interval), (0.0, Some((0.0, f64::INFINITY))));
        assert_eq!(shift_between(&known, &[(f64::NAN, f64::NAN)]), None);
    }

    /// For 2,000 pairs of samples from distributions shifted by 1, 93 to 97 % of the intervals must hold the 1
    /// (8 against 8: the exact level is 95.0 to 96.0 %; three standard errors of the simulation are 1.5
    /// points).
    #[test]
    fn coverage() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut draw = |by: f64| -> Vec<f64> {
            (0..8).map(|_| by + (0..3).map(|_| rng.random::<f64>()).sum::<f64>().powi(3)).collect()
        };
        let mut held = 0;
        for _ in 0..2000 {
            let (a, b) = (draw(0.0), draw(1.0));
            let (low, high) = shift(&a, &b).unwrap().interval.unwrap();
            held += usize::from(low <= 1.0 && 1.0 <= high);
        }
        assert!((1860..=1940).contains(&held), "{held} of 2000");
    }
}
