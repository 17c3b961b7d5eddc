//! Two runs of which one fails more: it is never the better one, whatever its survivors look like.

mod fixture;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_record::{Better, Fault, FaultCode, MetricDef, Run, Trial, Unit, WorkloadInfo};
use weir_report::{RunComparison, Terminal, compare_runs, comparison_terminal};
use weir_stats::{Delays, Verdict};

const TRIALS: u32 = 10;
const OPERATIONS: u64 = 150;
const VARIANT: &str = "nft-masquerade";

/// The impairment of the trials of one side.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// A share of the operations fails.
    Fails(f64),
    /// The same share never ends, and is under way when the window is over.
    Open(f64),
    /// Nothing comes through.
    Dead,
}

const HARMS: [Harm; 6] =
    [Harm::Fails(0.1), Harm::Fails(0.5), Harm::Fails(0.9), Harm::Open(0.1), Harm::Open(0.9), Harm::Dead];

fn workload() -> WorkloadInfo {
    WorkloadInfo {
        name: "connect".into(),
        kind: "tcp-connect".into(),
        description: "connections".into(),
        metrics: vec![
            MetricDef::quantile("connect_p50_ns", "connect p50", "connect", 0.5, ""),
            MetricDef::quantile("connect_p99_ns", "connect p99", "connect", 0.99, ""),
            MetricDef::value("ok_per_s", "connections", Unit::PerSecond, Better::Higher, ""),
            MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), ""),
        ],
        rounds: None,
        point: None,
    }
}

/// A trial of a good hop, whose survivors get faster where others fail: there is less to do then.
fn trial(dice: &mut ChaCha8Rng, round: u32, variant: &str, harm: Option<Harm>) -> Trial {
    let share = match harm {
        None => 0.0,
        Some(Harm::Fails(share) | Harm::Open(share)) => share,
        Some(Harm::Dead) => 1.0,
    };
    let speed = (1.0 - 1.5 * share).max(0.3);
    // Short times, so that the histograms are small and the test is quick.
    let level = 500.0 * speed * (1.0 + 0.04 * (dice.random::<f64>() - 0.5));
    let mut connect = Delays::new();
    let mut failed = 0;
    for _ in 0..OPERATIONS {
        let took = (level * (0.7 + 0.6 * dice.random::<f64>())) as u64;
        if dice.random::<f64>() >= share {
            connect.record(took);
            continue;
        }
        failed += 1;
        match harm {
            // They were begun at any time of a window of 100 µs.
            Some(Harm::Open(_)) => connect.record_open(dice.random_range(0..100_000)),
            _ => connect.fail(1),
        }
    }
    let mut t = Trial { round, variant: variant.into(), workload: "connect".into(), ..Trial::default() };
    t.metrics.insert("ok_per_s".into(), (OPERATIONS - failed) as f64 / speed);
    t.metrics.insert("failed".into(), failed as f64);
    t.metrics.insert("attempted".into(), OPERATIONS as f64);
    t.metrics.insert("failed_ratio".into(), failed as f64 / OPERATIONS as f64);
    t.histograms.insert("connect".into(), connect);
    t
}

/// A run in which one variant's trials may be impaired; the base is made once.
fn run(base: &Run, seed: u64, harmed: &str, harm: Option<Harm>) -> Run {
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let mut run = base.clone();
    for round in 0..TRIALS {
        for variant in ["routed", VARIANT] {
            let harm = harm.filter(|_| variant == harmed);
            run.trials.push(trial(&mut dice, round, variant, harm));
        }
    }
    run
}

fn base() -> Run {
    let mut base = fixture::run(1);
    base.variants.retain(|variant| ["routed", VARIANT].contains(&variant.name.as_str()));
    base.workloads = vec![workload()];
    base.trials.clear();
    base.results = None;
    base
}

/// Verdicts on that variant as the reader sees them: better, worse.
fn named(comparison: &RunComparison, variant: &str) -> (Vec<String>, Vec<String>) {
    let text = comparison_terminal(comparison, Terminal { width: 160, color: false });
    let rows = || text.lines().filter(|line| line.trim_start().starts_with(variant));
    let with = |symbol: char| rows().filter(|row| row.contains(symbol)).map(str::to_owned).collect();
    (with('▲'), with('▼'))
}

#[test]
fn the_impaired_run_is_never_better_and_is_worse_somewhere() {
    let base = base();
    for seed in 0..200 {
        let good = run(&base, 2 * seed, VARIANT, None);
        for harm in HARMS {
            let bad = run(&base, 2 * seed + 1, VARIANT, Some(harm));
            let (better, worse) = named(&compare_runs(&good, &bad), VARIANT);
            assert!(better.is_empty(), "seed {seed}, {harm:?}: {better:?}");
            assert!(!worse.is_empty(), "seed {seed}, {harm:?}");
            // The other way round the first run is the impaired one, and nothing makes it look better than the second.
            let (better, worse) = named(&compare_runs(&bad, &good), VARIANT);
            assert!(worse.is_empty(), "seed {seed}, {harm:?} before: {worse:?}");
            assert!(!better.is_empty(), "seed {seed}, {harm:?} before");
        }
    }
}

#[test]
fn a_baseline_that_fails_makes_no_variant_better() {
    let base = base();
    for seed in 0..50 {
        let good = run(&base, 2 * seed, VARIANT, None);
        for harm in HARMS {
            let bad = run(&base, 2 * seed + 1, "routed", Some(harm));
            let mut comparison = compare_runs(&good, &bad);
            // Its own values are no worse than before, and differ by chance now and then.
            comparison.values.clear();
            let (better, _) = named(&comparison, VARIANT);
            assert!(better.is_empty(), "seed {seed}, {harm:?}: {better:?}");
        }
    }
}

#[test]
fn what_fails_stands_first_and_what_failed_has_no_figure() {
    let base = base();
    let good = run(&base, 0, VARIANT, None);
    for (harm, words) in [
        (Harm::Fails(0.1), &["nft-masquerade fails more in connect", "◆ faster by", ", but fails more"][..]),
        (Harm::Fails(0.5), &["nft-masquerade fails more in connect", "→ failed ", "▼ fails more"]),
        (Harm::Open(0.9), &["> "]),
        (Harm::Dead, &["▼ slower: fails", "▼ slower: nothing comes through", "100 % failed"]),
    ] {
        let c = compare_runs(&good, &run(&base, 1, VARIANT, Some(harm)));
        let text = comparison_terminal(&c, Terminal { width: 120, color: false });
        println!("{text}");
        for word in words {
            assert!(text.contains(word), "{harm:?}, no {word}:\n{text}");
        }
        assert!(!text.replace("as infinite", "").contains("inf"), "{text}");
        assert_eq!(c.values[0].metric.name, "failed_ratio");
        // Infinite figures survive JSON.
        let json = serde_json::to_value(&c).unwrap();
        let figure = |name: &str| {
            let values = json["values"].as_array().unwrap();
            let of = |v: &&serde_json::Value| v["metric"]["name"] == name && v["variant"] == VARIANT;
            values.iter().find(of).unwrap()["after"].clone()
        };
        assert!(!figure("connect_p99_ns").is_null(), "{json}");
        if matches!(harm, Harm::Dead) {
            assert_eq!((figure("connect_p50_ns"), figure("ok_per_s")), ("infinite".into(), 0.0.into()));
        }
    }
    // Without failures there is no row of them.
    let c = compare_runs(&good, &run(&base, 1, VARIANT, None));
    assert!(c.values.iter().all(|change| change.metric.failure.is_none()));
    assert!(c.values.iter().all(|change| !matches!(change.verdict, Verdict::Higher | Verdict::Lower)));
}

/// Connections twice as fast in those trials that are left.
#[test]
fn a_run_with_more_void_trials_is_not_the_better_one() {
    let base = base();
    let good = run(&base, 0, VARIANT, None);
    let lucky = |code: FaultCode| {
        let mut run = run(&base, 1, VARIANT, None);
        for trial in run.trials.iter_mut().filter(|t| t.variant == VARIANT) {
            trial.metrics.entry("ok_per_s".into()).and_modify(|rate| *rate *= 2.0);
            if trial.round.is_multiple_of(3) {
                trial.faults.push(Fault::void(code, "gateway", ""));
            }
        }
        run
    };
    let (stolen, biased) = (lucky(FaultCode::Steal), lucky(FaultCode::ConnectionFailed));
    let named = |before: &Run, after: &Run| named(&compare_runs(before, after), VARIANT);
    assert_eq!(named(&good, &stolen).0.len(), 2, "its value, and its cost");
    assert!(named(&good, &biased).0.is_empty() && named(&biased, &good).1.is_empty());
    let text = comparison_terminal(&compare_runs(&good, &biased), Terminal { width: 160, color: false });
    assert!(text.contains(", but more of its trials are void"), "{text}");
}

#[test]
fn percentiles_of_version_1_are_marked_and_never_better_than_those_of_all() {
    let base = base();
    let (old, new) = (run(&base, 0, VARIANT, None), run(&base, 1, VARIANT, None));
    let mut old = Run { schema: 1, ..old };
    let text = |before: &Run, after: &Run| {
        comparison_terminal(&compare_runs(before, after), Terminal { width: 160, color: false })
    };
    let first = text(&old, &new);
    assert!(first.contains("percentiles are defined differently: the first run"), "{first}");
    assert!(first.contains("ns* → "), "{first}");
    assert!(first.contains("* percentile of those answered"), "{first}");
    assert!(text(&old, &old).contains("ns* → 496 ns*"), "{}", text(&old, &old));
    assert!(!text(&old, &old).contains("defined differently"));
    assert!(!text(&new, &new).contains("answered"));
    // The old run as the second one, whose survivors are twice as fast.
    for trial in &mut old.trials {
        let halved: Vec<(u64, u64)> =
            trial.histograms["connect"].answered().buckets().map(|(ns, n)| (ns / 2, n)).collect();
        let mut connect = Delays::new();
        halved.into_iter().for_each(|(ns, n)| connect.record_n(ns, n));
        trial.histograms.insert("connect".into(), connect);
    }
    let (better, _) = named(&compare_runs(&new, &old), VARIANT);
    assert!(better.is_empty(), "{better:?}");
}

#[test]
fn a_cell_of_which_all_trials_are_void_is_named() {
    let base = base();
    let good = run(&base, 0, VARIANT, None);
    let mut void = run(&base, 1, VARIANT, None);
    for trial in void.trials.iter_mut().filter(|trial| trial.variant == VARIANT) {
        let fault =
            weir_record::Fault::void(weir_record::FaultCode::ConnectionFailed, "responder", "all failed");
        trial.faults.push(fault);
    }
    let c = compare_runs(&good, &void);
    let named = "connect of nft-masquerade is not compared: all 10 trials of the second run are void";
    assert!(c.warnings.iter().any(|warning| warning == named), "{:?}", c.warnings);
}
