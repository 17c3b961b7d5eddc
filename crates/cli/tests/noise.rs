//! A machine that is disturbed on purpose makes intervals wider, and no winners.

mod measure;

use measure::{Busy, bench_heard, turn, world};
use weir_bench::analysis::analyse;
use weir_record::results::Results;
use weir_record::{Run, Scale};
use weir_stats::Verdict;
use weir_testkit::{holds, measured};

/// Rounds; every second one is disturbed, the first is not.
const ROUNDS: u32 = 16;

const SCENARIO: &str = r#"
name = "noise"
title = "A test"
[testbed]
kind = "lab"
[plan]
baseline = "routed"
twin = true
min-rounds = 16
max-rounds = 16
budget = "60s"
warmup = "20ms"
duration = "120ms"
max-steal = 1.0
[[variant]]
kind = "routed"
[[variant]]
kind = "nft-masquerade"
[[workload]]
name = "rr"
kind = "tcp-rr"
[[workload]]
name = "stream"
kind = "tcp-stream"
"#;

/// The conclusions of the product from some of the rounds alone.
fn conclude(run: &Run, rounds: impl Fn(u32) -> bool) -> Results {
    let mut part = run.clone();
    part.trials.retain(|t| rounds(t.round));
    analyse(&part)
}

/// Half-widths of all headline intervals, in one order; `None` where too few trials were left for one.
fn widths(run: &Run, results: &Results) -> Vec<Option<f64>> {
    let mut widths = Vec::new();
    for workload in &run.workloads {
        for metric in workload.metrics.iter().filter(|m| m.headline && m.scale == Scale::Ratio) {
            for variant in run.variants.iter().filter(|v| !v.baseline) {
                let cell = results.cell(&workload.name, &metric.name, &variant.name).unwrap();
                widths.push(cell.comparison.and_then(|c| c.half_width()));
            }
        }
    }
    widths
}

#[test]
fn root_measured_disturbance_widens_intervals_and_makes_no_winner() {
    measured(2, 3, |_| holds(disturbed_every_second_round));
}

fn disturbed_every_second_round() {
    let Some(world) = world(&["nft", "taskset"]) else { return };
    let _turn = turn();
    let mut busy = None;
    let noisy = bench_heard(&world, SCENARIO, |line| {
        let done = line.strip_prefix("round ").and_then(|l| l.split_once(':')?.0.parse::<u32>().ok());
        // The line says how many are done, so also the number, from 0, of the one that begins.
        if let Some(next) = done {
            busy = (next % 2 == 1 && next < ROUNDS).then(|| Busy::start(&world));
        }
    });
    drop(busy);
    let run = &noisy.run;
    let results = run.results.as_ref().unwrap();
    assert_eq!(results.complete_rounds, ROUNDS);

    let twin = run.variants.iter().find(|v| v.twin_of.is_some()).unwrap();
    let cells: Vec<_> = results.cells.iter().filter(|c| c.variant == twin.name).collect();
    assert!(cells.iter().filter(|c| c.verdict.is_some()).count() >= 3, "{cells:?}");
    for cell in cells {
        let winner = matches!(cell.verdict, Some(Verdict::Higher | Verdict::Lower));
        assert!(!winner, "the baseline wins against itself: {cell:?}");
    }

    // Rounds of both kinds take turns, so whatever else went on here is in all of these: eight rounds that were left alone,
    // and twice eight of which every second one was disturbed.
    let quiet = widths(run, &conclude(run, |round| round % 2 == 0));
    let halves = [conclude(run, |round| round < ROUNDS / 2), conclude(run, |round| round >= ROUNDS / 2)];
    let mut wider: Vec<f64> = Vec::new();
    for half in &halves {
        let both = widths(run, half).into_iter().zip(&quiet);
        wider.extend(both.filter_map(|(disturbed, quiet)| Some(disturbed? / (*quiet)?)));
    }
    assert!(wider.len() >= quiet.len(), "half of the intervals at least: {wider:?}");
    println!("quiet ±{quiet:.3?}; with every second round disturbed these times as wide: {wider:.2?}");
    let mean = (wider.iter().map(|w| w.ln()).sum::<f64>() / wider.len() as f64).exp();
    assert!(mean > 1.0, "intervals must be wider, in the (geometric) mean: {mean:.2} times, {wider:?}");
}
