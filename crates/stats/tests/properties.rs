//! Properties that hold for all data.

use proptest::collection::vec;
use proptest::prelude::*;
use weir_stats::compare::{compare_difference, compare_ratio, holm_adjusted};
use weir_stats::quantiles::merged_quantile;
use weir_stats::{Delays, Histogram, loss, order, signed_rank};

fn histogram(values: &[u64]) -> Histogram {
    let mut h = Histogram::new();
    values.iter().for_each(|v| h.record(*v));
    h
}

/// Nothing is written next to the sources: the cases that failed are printed.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn merging_is_recording_everything_in_one(
        a in vec(1u64..1 << 39, 0..200),
        b in vec(1u64..1 << 39, 0..200),
    ) {
        let mut merged = histogram(&a);
        merged.merge(&histogram(&b));
        let all: Vec<u64> = a.into_iter().chain(b).collect();
        let direct = histogram(&all);
        prop_assert_eq!(merged.buckets().collect::<Vec<_>>(), direct.buckets().collect::<Vec<_>>());
        let ends = |h: &Histogram| (h.min(), h.max(), h.len());
        prop_assert_eq!(ends(&merged), ends(&direct));
    }

    #[test]
    fn histogram_quantiles_are_the_exact_ones_within_a_thousandth(
        values in vec(1u64..1 << 39, 1..300),
        q in 0.0f64..=1.0,
    ) {
        let exact = order::quantile(&values.iter().map(|v| *v as f64).collect::<Vec<_>>(), q).unwrap();
        let got = histogram(&values).quantile(q).unwrap() as f64;
        prop_assert!((got - exact).abs() <= 0.001 * exact, "{} instead of {}", got, exact);
    }

    #[test]
    fn histogram_quantiles_rise(values in vec(1u64..1 << 39, 1..100), a in 0.0f64..=1.0, b in 0.0f64..=1.0) {
        let h = histogram(&values);
        prop_assert!(h.quantile(a.min(b)) <= h.quantile(a.max(b)));
    }

    #[test]
    fn quantile_is_the_least_value_that_reaches_the_share(
        values in vec(-1e6f64..1e6, 1..60),
        p in 0.001f64..=1.0,
    ) {
        let x = order::quantile(&values, p).unwrap();
        let share = |bound: f64| values.iter().filter(|v| **v <= bound).count() as f64 / values.len() as f64;
        prop_assert!(values.contains(&x));
        prop_assert!(share(x) >= p - 1e-9);
        let below = values.iter().filter(|v| **v < x).count() as f64 / values.len() as f64;
        prop_assert!(below < p);
    }

    #[test]
    fn estimate_follows_shift_scale_and_sign(
        values in vec(-100.0f64..100.0, 6..30),
        shift in -50.0f64..50.0,
        scale in 0.01f64..100.0,
    ) {
        let estimate = signed_rank::hodges_lehmann(&values).unwrap();
        let moved: Vec<f64> = values.iter().map(|v| shift - scale * v).collect();
        let expected = shift - scale * estimate;
        let got = signed_rank::hodges_lehmann(&moved).unwrap();
        prop_assert!((got - expected).abs() <= 1e-9 * (1.0 + expected.abs() + scale * 100.0));
        // The mirror image swaps both tails.
        let mirrored: Vec<f64> = values.iter().map(|v| -v).collect();
        let (a, b) = (signed_rank::test(&values), signed_rank::test(&mirrored));
        prop_assert!((a.p_less - b.p_greater).abs() < 1e-12 && (a.p_greater - b.p_less).abs() < 1e-12);
    }

    #[test]
    fn ratios_do_not_depend_on_the_unit(
        pairs in vec((0.1f64..10.0, 0.1f64..10.0), 6..20),
        unit in 1e-6f64..1e9,
    ) {
        let one = compare_ratio(&pairs).unwrap();
        let scaled: Vec<_> = pairs.iter().map(|(v, b)| (v * unit, b * unit)).collect();
        let other = compare_ratio(&scaled).unwrap();
        prop_assert!((one.estimate / other.estimate - 1.0).abs() < 1e-9);
        let swapped: Vec<_> = pairs.iter().map(|(v, b)| (*b, *v)).collect();
        prop_assert!((one.estimate * compare_ratio(&swapped).unwrap().estimate - 1.0).abs() < 1e-9);
    }

    #[test]
    fn intervals_contain_their_estimate(pairs in vec((0.1f64..10.0, 0.1f64..10.0), 6..60)) {
        for comparison in [compare_ratio(&pairs).unwrap(), compare_difference(&pairs).unwrap()] {
            let (low, high) = comparison.interval.unwrap();
            prop_assert!(low <= comparison.estimate && comparison.estimate <= high);
            prop_assert!((0.0..=1.0).contains(&comparison.p));
        }
    }

    #[test]
    fn loss_intervals_contain_the_ratio(trials in vec((0u64..1000, 1000u64..2000), 6..20)) {
        let (ratio, interval) = loss::interval_over_trials(&trials).unwrap();
        let (low, high) = interval.unwrap();
        prop_assert!(0.0 <= low && low <= ratio && ratio <= high && high <= 1.0);
    }

    #[test]
    fn holm_is_between_the_raw_and_bonferroni(p in vec(0.0f64..=1.0, 1..10)) {
        for (raw, adjusted) in p.iter().zip(holm_adjusted(&p)) {
            prop_assert!(*raw <= adjusted && adjusted <= 1.0);
            let smallest = p.iter().copied().fold(1.0, f64::min);
            prop_assert!(adjusted >= (smallest * p.len() as f64).min(1.0));
        }
    }
}

proptest! {
    // A bootstrap each.
    #![proptest_config(cases(12))]

    #[test]
    fn merged_quantiles_contain_their_estimate(trials in vec(vec(1u64..1_000_000, 40..60), 6..10)) {
        let delays: Vec<Delays> = trials.iter().map(|t| histogram(t).into()).collect();
        let all: Vec<&Delays> = delays.iter().collect();
        let (estimate, interval) = merged_quantile(&all, 0.75, 1).unwrap();
        let values: Vec<f64> = trials.concat().iter().map(|v| *v as f64).collect();
        let exact = order::quantile(&values, 0.75).unwrap();
        prop_assert!((estimate.value - exact).abs() <= 0.001 * exact && estimate.known);
        let (low, high) = interval.unwrap();
        prop_assert!(low <= estimate.value && estimate.value <= high);
        prop_assert_eq!(merged_quantile(&all, 0.75, 1).unwrap().1, interval);
    }
}
