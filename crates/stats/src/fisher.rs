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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_scipy() {
        // scipy.stats.fisher_exact([[a, n - a], [b, m - b]], 'greater')[1] (SciPy 1.17.1), by its definition.
        for (first, second, want) in [
            ((8, 10), (1, 10), 0.0027387473208859254),
            ((3, 8), (0, 8), 0.1),
            ((5, 8), (0, 8), 0.01282051282051282),
            ((1, 8), (1, 8), 0.7666666666666667),
            ((8, 8), (0, 8), 7.77000777000777e-05),
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
