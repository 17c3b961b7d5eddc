//! Do 95 % intervals contain the truth as often as they say?

mod simulated;

use simulated::{SHAPES, Shape, Source};
use weir_stats::compare::compare_ratio;
use weir_stats::loss::interval_over_trials;
use weir_stats::order::median_interval;
use weir_stats::quantiles::quantile_rounds;
use weir_stats::stop::{Decision, Progress, decide};
use weir_stats::{Comparison, Delays};

const RUNS: u32 = 2000;

/// The share of the runs in which the interval contains the truth.
fn coverage(runs: u32, mut contains: impl FnMut() -> bool) -> f64 {
    f64::from((0..runs).filter(|_| contains()).count() as u32) / f64::from(runs)
}

fn contains(interval: Option<(f64, f64)>, truth: f64) -> bool {
    let (low, high) = interval.expect("six rounds or more have an interval");
    low <= truth && truth <= high
}

/// One round in which the variant reaches `ratio` of the baseline, both under the luck of the round and
/// their own.
fn pair(source: &mut Source, ratio: f64, shape: Shape) -> (f64, f64) {
    let level = source.value(1e9, 0.3, Shape::Normal);
    (source.value(ratio * level, 0.05, shape), source.value(level, 0.05, shape))
}

fn compare(source: &mut Source, rounds: usize, ratio: f64, shape: Shape) -> Comparison {
    let pairs: Vec<_> = (0..rounds).map(|_| pair(source, ratio, shape)).collect();
    compare_ratio(&pairs).unwrap()
}

#[test]
fn ratio_intervals_cover_the_true_ratio() {
    // Exact coverage of the signed-rank interval: 1 - 2 P(W <= T), from the number of subsets of 1..=n with
    // a sum of at most T: 1 of 2^6 for T = 0, 5 of 2^8 for T = 3, 25 of 2^10 for T = 8, and 0.0242 for T =
    // 52 of n = 20.
    for (rounds, exact) in
        [(6, 1.0 - 2.0 / 64.0), (8, 1.0 - 10.0 / 256.0), (10, 1.0 - 50.0 / 1024.0), (20, 0.9516)]
    {
        assert!((0.93..=0.97).contains(&exact));
        for shape in SHAPES {
            let mut source = Source::new(rounds as u64);
            let got = coverage(RUNS, || contains(compare(&mut source, rounds, 0.88, shape).interval, 0.88));
            // Four standard errors of the simulation.
            let allowed = 4.0 * (exact * (1.0 - exact) / f64::from(RUNS)).sqrt();
            assert!((got - exact).abs() < allowed, "{rounds} rounds, {shape:?}: {got} instead of {exact}");
        }
    }
}

#[test]
fn intervals_survive_a_disturbance_in_half_of_the_rounds_and_widen() {
    for shape in SHAPES {
        let mut source = Source::new(11);
        let (mut calm, mut wide) = (0.0, 0.0);
        let got = coverage(RUNS, || {
            let pairs: Vec<_> = (0..10)
                .map(|round| {
                    let (level, spread) = if round % 2 == 0 { (1e9, 0.01) } else { (6e8, 0.1) };
                    (source.value(0.88 * level, spread, shape), source.value(level, spread, shape))
                })
                .collect();
            let comparison = compare_ratio(&pairs).unwrap();
            wide += comparison.half_width().unwrap();
            let quiet: Vec<_> =
                (0..10).map(|_| (source.value(0.88, 0.01, shape), source.value(1.0, 0.01, shape))).collect();
            calm += compare_ratio(&quiet).unwrap().half_width().unwrap();
            contains(comparison.interval, 0.88)
        });
        assert!((0.93..=0.97).contains(&got), "{shape:?}: {got}");
        assert!(wide > 2.0 * calm, "{shape:?}: {wide} {calm}");
    }
}

#[test]
fn stopping_by_width_costs_little_coverage() {
    // The run of a user: at least 6 rounds, at most 30, until the half-width is below 3 %.
    for shape in [Shape::Normal, Shape::Skewed] {
        let mut source = Source::new(5);
        let mut rounds_made = 0;
        let got = coverage(500, || {
            let mut pairs: Vec<_> = (0..6).map(|_| pair(&mut source, 0.88, shape)).collect();
            loop {
                let comparison = compare_ratio(&pairs).unwrap();
                let progress = Progress {
                    rounds: pairs.len() as u32,
                    min_rounds: 6,
                    max_rounds: 30,
                    widest_half_width: comparison.half_width(),
                    target_half_width: 0.03,
                    elapsed_s: 0.0,
                    budget_s: 1.0,
                    mean_round_s: 0.0,
                };
                if decide(&progress) != Decision::Continue {
                    rounds_made += pairs.len();
                    break contains(comparison.interval, 0.88);
                }
                pairs.push(pair(&mut source, 0.88, shape));
            }
        });
        let mean_rounds = rounds_made as f64 / 500.0;
        assert!((8.0..30.0).contains(&mean_rounds), "the rule must have work to do: {mean_rounds}");
        // 93 % less three standard errors of 500 runs.
        assert!(got >= 0.896, "{shape:?}: {got}");
    }
}

#[test]
fn quantile_intervals_cover_the_true_ratio() {
    for shape in SHAPES {
        let mut source = Source::new(21);
        let got = coverage(120, || {
            let rounds: Vec<(Delays, Delays)> = (0..8)
                .map(|_| (source.delays(100, 1.2e5, 0.05, shape), source.delays(100, 1e5, 0.05, shape)))
                .collect();
            let pairs: Vec<_> = rounds.iter().map(|(v, b)| (v, b)).collect();
            contains(compare_ratio(&quantile_rounds(&pairs, 0.9).unwrap()).unwrap().interval, 1.2)
        });
        // 1 - 10/256 = 0.961, less four standard errors of 120 runs.
        assert!(got >= 0.89, "{shape:?}: {got}");
    }
}

/// The share that failed, over trials of which each has its own luck.
#[test]
fn intervals_of_the_failed_share_cover_the_truth() {
    let mut source = Source::new(43);
    let got = coverage(RUNS, || {
        let failing = 0.01 + 0.59 * source.uniform();
        let trials: Vec<(u64, u64)> = (0..10)
            .map(|_| {
                let failed = (0..300).filter(|_| source.uniform() < failing).count();
                (failed as u64, 300)
            })
            .collect();
        contains(interval_over_trials(&trials).unwrap().1, failing)
    });
    eprintln!("failed share: {got}");
    assert!((0.93..=0.985).contains(&got), "{got}");
}

#[test]
fn median_intervals_cover_at_least_what_they_promise() {
    // Median of exp(normal) times a level is the level; the interval holds for every distribution.
    for rounds in [6, 10, 20] {
        let mut source = Source::new(31);
        let got = coverage(RUNS, || {
            let values: Vec<f64> = (0..rounds).map(|_| source.value(5.0, 1.0, Shape::Normal)).collect();
            contains(median_interval(&values), 5.0)
        });
        assert!(got >= 0.945, "{rounds}: {got}");
    }
}

#[test]
fn loss_intervals_cover_independent_and_bursty_losses() {
    // 10 trials of 10,000 packets, 1 % lost: one by one, or in bursts of 50 packets.
    for burst in [1, 50] {
        let mut source = Source::new(41);
        let got = coverage(RUNS, || {
            let trials: Vec<(u64, u64)> =
                (0..10).map(|_| (burst * source.poisson(100.0 / burst as f64), 10_000)).collect();
            contains(interval_over_trials(&trials).unwrap().1, 0.01)
        });
        assert!((0.93..=0.995).contains(&got), "bursts of {burst}: {got}");
        let (naive_low, naive_high) = weir_stats::loss::interval(1000, 100_000).unwrap();
        let (_, bursty) = interval_over_trials(&[
            (50, 10_000),
            (150, 10_000),
            (100, 10_000),
            (0, 10_000),
            (200, 10_000),
            (100, 10_000),
            (50, 10_000),
            (150, 10_000),
            (100, 10_000),
            (100, 10_000),
        ])
        .unwrap();
        let (low, high) = bursty.unwrap();
        assert!(low < naive_low && high > naive_high);
    }
}
