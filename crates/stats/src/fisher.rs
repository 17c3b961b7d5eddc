//! Fisher's exact test (Fisher 1935): do two shares differ by more than chance?

/// P of at least `a` of `n` against `b` of `m` by chance alone, one-sided: small when the first share is greater. 1 where either
/// count exceeds its number.
pub fn greater((a, n): (usize, usize), (b, m): (usize, usize)) -> f64 {
    if a > n || b > m || n == 0 || m == 0 {
        return 1.0;
    }
    let marked = a + b;
    // P(i of the n are marked): C(n, i) C(m, marked - i) / C(n + m, marked), by logarithms of factorials.
    let factorials: Vec<f64> = std::iter::once(0.0)
        .chain((1..=n + m).scan(0.0, |sum: &mut f64, k| {
            *sum += (k as f64).ln();
            Some(*sum)
        }))
        .collect();
    let choose = |n: usize, k: usize| factorials[n] - factorials[k] - factorials[n - k];
    let p = |i: usize| (choose(n, i) + choose(m, marked - i) - choose(n + m, marked)).exp();
    (a.max(marked.saturating_sub(m))..=marked.min(n)).map(p).sum::<f64>().min(1.0)
}

/// Void trials in excess of the other side's, as a share of the trials, that count without a test.
const MANY_VOID: f64 = 0.1;

/// Void trials of all, more often than on the other side: by a tenth of the trials, or shown by Fisher's exact test at 5 %. The
/// p-value of that test if so; the trials that are left are then no fair sample.
pub fn more_void((a, n): (usize, usize), (b, m): (usize, usize)) -> Option<f64> {
    let share = |of: usize, all: usize| if all > 0 { of as f64 / all as f64 } else { 0.0 };
    let p = greater((a, n), (b, m));
    (share(a, n) - share(b, m) > MANY_VOID || p < 0.05).then_some(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_more_void_trials_or_a_test_is_more() {
        assert_eq!(more_void((1, 12), (0, 12)), None);
        assert!(more_void((2, 12), (0, 12)).is_some_and(|p| p > 0.05), "a sixth, which no test shows");
        assert!(more_void((18, 200), (4, 200)).is_some_and(|p| p < 0.05), "7 %, which a test shows");
        assert_eq!(more_void((0, 12), (6, 12)), None);
        assert_eq!(more_void((0, 0), (0, 0)), None);
        // A tenth is not more than a tenth; no trials at all are no void ones.
        assert_eq!(more_void((1, 10), (0, 10)), None);
        assert_eq!(more_void((6, 12), (0, 0)), Some(1.0));
    }

    #[test]
    fn as_scipy() {
        // scipy.stats.fisher_exact([[a, n - a], [b, m - b]], 'greater')[1] (SciPy 1.17.1), by its definition.
        for (first, second, want) in [
            ((8, 10), (1, 10), 0.0027387473208859254),
            ((3, 8), (0, 8), 0.1),
            ((5, 8), (0, 8), 0.01282051282051282),
            ((1, 8), (1, 8), 0.7666666666666667),
            ((8, 8), (0, 8), 7.77000777000777e-05),
            ((1, 1), (0, 1), 0.5),
        ] {
            let got = greater(first, second);
            assert!((got - want).abs() < 1e-12, "{first:?} {second:?}: {got}");
        }
        assert!(greater((0, 8), (3, 8)) > 0.999);
        assert_eq!(greater((9, 8), (0, 8)), 1.0);
        for impossible in
            [((9, 8), (0, 8)), ((0, 8), (9, 8)), ((8, 8), (9, 8)), ((0, 0), (8, 8)), ((8, 8), (0, 0))]
        {
            assert_eq!(greater(impossible.0, impossible.1), 1.0, "{impossible:?}");
        }
    }
}
