//! Two Poisson rates (Przyborowski and Wilenski 1940): did events become more frequent, or is it chance?

use crate::special::beta_cdf;

/// P of at least `events` in `exposure` against the second count in its exposure by chance alone, one-sided: small when the first
/// rate is greater. 1 where an exposure is not above zero.
///
/// Given the sum of both counts, the first is binomial with the first exposure's share of both. The upper tail of the binomial is
/// an incomplete beta function (Abramowitz and Stegun 26.5.24).
pub fn greater((events, exposure): (u64, f64), (others, other_exposure): (u64, f64)) -> f64 {
    let share = exposure / (exposure + other_exposure);
    if events == 0 || !(exposure > 0.0 && other_exposure > 0.0 && share.is_finite()) {
        return 1.0;
    }
    beta_cdf(share, events as f64, others as f64 + 1.0).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_binomial_sum_in_exact_fractions() {
        // sum(comb(n, i) * q**i * (1 - q)**(n - i) for i in range(events, n + 1)) with Python's fractions, by the definition.
        for (first, second, want) in [
            ((11, 800.0), (21, 3011.0), 0.056_008_659_787_699_66),
            ((5, 10.0), (0, 10.0), 0.031_25),
            ((7, 10.0), (0, 10.0), 0.007_812_5),
            ((120, 10.0), (80, 10.0), 0.002_842_577_998_375_152_7),
            ((3, 1.0), (40, 10.0), 0.762_118_467_001_698_5),
            ((1000, 20.0), (900, 20.0), 0.011_554_422_554_450_536),
        ] {
            let got = greater(first, second);
            assert!((got - want).abs() < 1e-12, "{first:?} {second:?}: {got}");
        }
    }

    #[test]
    fn no_event_and_no_exposure_show_nothing() {
        assert_eq!(greater((0, 10.0), (9, 10.0)), 1.0);
        assert_eq!(greater((9, 0.0), (0, 10.0)), 1.0);
        assert_eq!(greater((9, 10.0), (0, 0.0)), 1.0);
        assert_eq!(greater((9, f64::NAN), (0, 1.0)), 1.0);
        // Counts of packets reach 1e10.
        assert!(greater((10_000_000_000, 1.0), (10_000_000_000, 1.0)) > 0.49);
        assert!(greater((10_001_000_000, 1.0), (10_000_000_000, 1.0)) < 1e-9);
    }
}
