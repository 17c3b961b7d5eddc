//! Do 95 % intervals of percentiles over all operations contain the truth, if some never end?

mod simulated;

use simulated::{Shape, Source, WITHIN_TRIAL};
use weir_stats::Delays;
use weir_stats::compare::compare_ratio;
use weir_stats::quantiles::quantile_rounds;

const RUNS: u32 = 2000;
/// The signed-rank interval of ten rounds covers 0.951 of all runs (`tests/coverage.rs`); with four standard errors of so many runs
/// that is 0.932 to 0.970.
const ROUNDS: usize = 10;
const PROMISED: std::ops::RangeInclusive<f64> = 0.93..=0.97;
/// The interval of the order statistics covers more (`median_interval`): 0.979 with ten values.
const NEAR: std::ops::RangeInclusive<f64> = 0.93..=0.995;
/// A percentile that is infinite in every trial is covered always.
const AT_LEAST: std::ops::RangeInclusive<f64> = 0.93..=1.0;
/// Some of those intervals must begin beyond all delays but one in a thousand: without a lower end they would cover, too.
const BEYOND: f64 = 0.25;
const REMOTE: f64 = 3.1;

/// Delay of the good side, ns, and the factor of the other one.
const SCALE_NS: f64 = 1e5;
const FACTOR: f64 = 1.2;

/// The distribution function of the standard normal distribution: Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7.
fn normal_below(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs() / 2f64.sqrt());
    let poly = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let erf = 1.0 - poly.iter().rev().fold(0.0, |sum, a| (sum + a) * t) * (-x * x / 2.0).exp();
    0.5 * (1.0 + erf * x.signum())
}

/// The smallest x with `below(x) >= p`, by halving; infinite where there is none.
fn quantile(p: f64, below: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    if below(high) < p {
        return f64::INFINITY;
    }
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) < p { low = middle } else { high = middle }
    }
    low
}

/// Shares of the runs whose interval of the ratio contains the truth, and of those whose interval begins beyond the delays. A run
/// has its own share of failures.
fn coverage(
    (q, operations): (f64, u32),
    seed: u64,
    shape: Shape,
    run: impl Fn(&mut Source) -> (Failing, f64),
) -> (f64, f64) {
    let mut source = Source::new(seed);
    let remote = FACTOR * (WITHIN_TRIAL * REMOTE).exp() / Failing::Share(0.0).truth(q);
    let (mut covered, mut beyond) = (0, 0);
    for _ in 0..RUNS {
        let (failing, truth) = run(&mut source);
        let trials: Vec<(Delays, Delays)> = (0..ROUNDS)
            .map(|_| {
                let variant = failing.trial(&mut source, operations, shape);
                (variant, source.delays(operations, SCALE_NS, 0.05, shape))
            })
            .collect();
        let pairs: Vec<_> = trials.iter().map(|(v, b)| (v, b)).collect();
        let comparison =
            compare_ratio(&quantile_rounds(&pairs, q).expect("enough operations")).expect("a ratio");
        let (low, high) = comparison.interval.expect("ten rounds have an interval");
        covered += u32::from(low <= truth && truth <= high);
        beyond += u32::from(low > remote);
    }
    let share = |n| f64::from(n) / f64::from(RUNS);
    (share(covered), share(beyond))
}

/// How operations do not end.
#[derive(Clone, Copy)]
enum Failing {
    /// This share: half of them are refused, the others under way for long.
    Share(f64),
    /// Each is cut off at a time of its own, uniform up to this multiple of the scale.
    CutOff(f64),
}

impl Failing {
    fn trial(self, source: &mut Source, operations: u32, shape: Shape) -> Delays {
        let scale = FACTOR * SCALE_NS;
        let longest = match self {
            Failing::Share(share) => return source.censored_delays(operations, scale, (0.05, shape), share),
            Failing::CutOff(longest) => longest,
        };
        let luck = source.value(scale, 0.05, shape);
        let mut delays = Delays::new();
        for _ in 0..operations {
            let ns = luck * (WITHIN_TRIAL * source.normal()).exp();
            let cut = longest * luck * source.uniform();
            if ns <= cut { delays.record(ns as u64) } else { delays.record_open(cut as u64) }
        }
        delays
    }

    /// The quantile over all operations, as a ratio to the median of the good side.
    fn truth(self, q: f64) -> f64 {
        let x = match self {
            Failing::Share(share) => quantile(q, |x| (1.0 - share) * normal_below(x)),
            Failing::CutOff(longest) => quantile(q, |x| ended_before_cut(x, longest)),
        };
        (WITHIN_TRIAL * x).exp()
    }
}

/// The share of operations that end before their cut-off and within `x`, on the scale of the normal: its density times the chance
/// of a later cut-off, by Simpson's rule.
fn ended_before_cut(x: f64, longest: f64) -> f64 {
    const STEPS: usize = 200;
    let (from, width) = (-8.0, (x + 8.0) / STEPS as f64);
    let height = |n: usize| {
        let z = from + n as f64 * width;
        let later = (1.0 - (WITHIN_TRIAL * z).exp() / longest).max(0.0);
        later * (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    let weight = |n: usize| {
        if n == 0 || n == STEPS {
            1.0
        } else if n % 2 == 1 {
            4.0
        } else {
            2.0
        }
    };
    (0..=STEPS).map(|n| weight(n) * height(n)).sum::<f64>() * width / 3.0
}

/// The truth as a ratio of the same quantile of both sides.
fn ratio(failing: Failing, q: f64) -> f64 {
    FACTOR * failing.truth(q) / Failing::Share(0.0).truth(q)
}

/// Both shapes of luck, with shares of failures uniform between two.
fn shares(q: (f64, u32), (from, to): (f64, f64), expected: &std::ops::RangeInclusive<f64>) {
    for shape in [Shape::Normal, Shape::Skewed] {
        let (got, beyond) = coverage(q, 41, shape, |source| {
            let failing = Failing::Share(from + (to - from) * source.uniform());
            (failing, ratio(failing, q.0))
        });
        let case = format!("p{:.0}, {from:.2} to {to:.2} fail, {shape:?}", 100.0 * q.0);
        eprintln!("{case}: {got}, beyond: {beyond}");
        assert!(expected.contains(&got), "{case}: {got}");
        assert!(*expected != AT_LEAST || beyond > BEYOND, "{case}: {beyond}");
    }
}

/// From one half on the truth is infinite.
#[test]
fn the_median_is_covered_for_every_share_of_failures() {
    shares((0.5, 100), (0.0, 0.6), &PROMISED);
    for tenth in 0..4 {
        shares((0.5, 100), (0.1 * f64::from(tenth), 0.1 * f64::from(tenth + 1)), &PROMISED);
    }
    shares((0.5, 100), (0.5, 0.6), &AT_LEAST);
    // Just below, about half of the rounds are infinite, and the truth is not.
    for (from, to) in [(0.4, 0.5), (0.48, 0.48), (0.49, 0.49), (0.499, 0.499)] {
        shares((0.5, 100), (from, to), &NEAR);
    }
}

/// From a tenth on the truth is infinite.
#[test]
fn the_p90_is_covered() {
    shares((0.9, 200), (0.0, 0.08), &PROMISED);
    shares((0.9, 200), (0.0, 0.6), &AT_LEAST);
}

/// From one in a hundred on the truth is infinite.
#[test]
fn the_p99_is_covered() {
    shares((0.99, 700), (0.0, 0.02), &AT_LEAST);
}

/// Ages that lie among the delays of those that ended.
#[test]
fn a_quantile_of_operations_that_were_cut_off_is_covered() {
    for shape in [Shape::Normal, Shape::Skewed] {
        let (got, _) = coverage((0.5, 100), 43, shape, |source| {
            let failing = Failing::CutOff(2.5 + 8.0 * source.uniform());
            (failing, ratio(failing, 0.5))
        });
        eprintln!("p50, cut off, {shape:?}: {got}");
        assert!(PROMISED.contains(&got), "{shape:?}: {got}");
    }
}

/// A fifth is cut off, so the p90 lies among those: no more than its lower bound is known. The interval must span the ratio of
/// trials without a cut, and may not take what was cut off for failed.
#[test]
fn a_quantile_among_operations_that_were_cut_off_is_spanned() {
    assert!(Failing::CutOff(5.0).truth(0.9).is_infinite());
    for shape in [Shape::Normal, Shape::Skewed] {
        let (got, _) = coverage((0.9, 100), 44, shape, |_| (Failing::CutOff(5.0), FACTOR));
        eprintln!("p90, among those cut off, {shape:?}: {got}");
        assert!(AT_LEAST.contains(&got), "{shape:?}: {got}");
    }
}

/// The two ways to the truth agree where nothing is cut off.
#[test]
fn the_truth_is_right() {
    assert!((Failing::CutOff(1e9).truth(0.5) - 1.0).abs() < 1e-6);
    assert!((Failing::Share(0.0).truth(0.841_344_7).ln() / WITHIN_TRIAL - 1.0).abs() < 1e-4);
    assert_eq!(Failing::Share(0.51).truth(0.5), f64::INFINITY);
    assert!(Failing::CutOff(1.0).truth(0.5).is_infinite());
}
