//! Simulated runs of which the truth is known.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_record::results::{Results, WorkloadComparison};
use weir_record::*;
use weir_stats::{Histogram, Verdict};

use super::analyse;

const VARIANTS: [&str; 4] = ["direct", "direct (A/A)", "routed", "nft"];

/// Truth of a simulated run.
#[derive(Clone, Copy)]
struct Truth {
    seed: u64,
    rounds: u32,
    /// True ratio of `routed` and of `nft` to `direct`, on every metric compared by ratio.
    factors: [f64; 2],
    /// Standard deviation of a trial's logarithm.
    spread: f64,
    /// Whether every second round has a tenth less speed and ten times the spread.
    disturbed: bool,
}

const CALM: Truth = Truth { seed: 1, rounds: 10, factors: [1.0, 1.0], spread: 0.01, disturbed: false };

struct Dice(ChaCha8Rng);

impl Dice {
    /// Normal with that standard deviation (Box and Muller 1958).
    fn normal(&mut self, sd: f64) -> f64 {
        let (u, v) = (1.0 - self.0.random::<f64>(), self.0.random::<f64>());
        sd * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

fn metrics() -> Vec<MetricDef> {
    vec![
        MetricDef::value("goodput_bps", "goodput", Unit::Bps, Better::Higher, ""),
        MetricDef::quantile("rtt_p50_ns", "RTT p50", "rtt", 0.5, ""),
        MetricDef::quantile("rtt_p99_ns", "RTT p99", "rtt", 0.99, ""),
        MetricDef { headline: true, ..MetricDef::failure("loss_ratio", "loss", ("lost", "sent"), "") },
        MetricDef::value("sent_pps", "sent", Unit::Pps, Better::Neither, "").detail(),
    ]
}

fn run(world: Truth) -> Run {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(world.seed));
    let mut trials = Vec::new();
    for round in 0..world.rounds {
        let bad = world.disturbed && round % 2 == 1;
        let (level, spread) = if bad { (0.9, 10.0 * world.spread) } else { (1.0, world.spread) };
        for workload in ["one", "two"] {
            for (position, variant) in VARIANTS.iter().enumerate() {
                let factor = [1.0, 1.0, world.factors[0], world.factors[1]][position];
                let luck = level * dice.normal(spread).exp();
                trials.push(trial(&mut dice, round, position as u32, variant, workload, factor * luck));
            }
        }
    }
    let variant = |name: &&str| VariantInfo {
        name: (*name).into(),
        kind: "direct".into(),
        description: String::new(),
        baseline: *name == "direct",
        twin_of: name.contains("A/A").then(|| "direct".into()),
        proof: Vec::new(),
        facts: Vec::new(),
        labels: BTreeMap::new(),
        point: None,
    };
    let workload = |name: &str| WorkloadInfo {
        name: name.into(),
        kind: "tcp-stream".into(),
        description: String::new(),
        metrics: metrics(),
        rounds: None,
        point: None,
    };
    Run {
        schema: SCHEMA_VERSION,
        weir: String::new(),
        id: "test".into(),
        scenario: "test".into(),
        title: String::new(),
        scenario_toml: String::new(),
        seed: world.seed,
        started: String::new(),
        ended: None,
        // Without the bootstrap, which only `Final` needs.
        status: Status::Running,
        plan: RunPlan {
            min_rounds: 6,
            max_rounds: 30,
            budget_s: 1.0,
            target_half_width: 0.02,
            equivalence_margin: 0.03,
            max_steal_ratio: 0.05,
        },
        variants: VARIANTS.iter().map(variant).collect(),
        workloads: vec![workload("one"), workload("two")],
        compare: Vec::new(),
        patterns: None,
        testbed: String::new(),
        hosts: Vec::new(),
        trials,
        results: None,
        summary: None,
        notes: Vec::new(),
    }
}

fn trial(dice: &mut Dice, round: u32, position: u32, variant: &str, workload: &str, factor: f64) -> Trial {
    let mut rtt = Histogram::new();
    // 1 % of 600 are the six beyond a p99.
    for _ in 0..600 {
        rtt.record((50_000.0 * factor * dice.normal(0.2).exp()) as u64);
    }
    let metrics = [
        ("goodput_bps", 1e9 * factor),
        ("sent_pps", 1e5 * factor),
        ("loss_ratio", 0.0),
        ("lost", 0.0),
        ("sent", 1e5),
    ];
    Trial {
        round,
        position,
        variant: variant.into(),
        workload: workload.into(),
        metrics: metrics.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        histograms: BTreeMap::from([("rtt".to_owned(), rtt.into())]),
        ..Trial::default()
    }
}

/// Cells that name a winner.
fn winners(results: &Results) -> Vec<String> {
    let won = |v: &Option<Verdict>| matches!(v, Some(Verdict::Higher | Verdict::Lower));
    let cells = results.cells.iter().filter(|c| won(&c.verdict));
    cells.map(|c| format!("{}/{}/{}", c.workload, c.metric, c.variant)).collect()
}

#[test]
fn equals_have_no_winner() {
    // 10 runs of 2 workloads x 3 ratio metrics x 3 variants. By Holm's correction each of the 60 families names a
    // false one with at most 5 %; the floor makes it rarer still. More than 9 of 60 would have p < 0.002.
    let false_ones: Vec<String> =
        (0..10).flat_map(|seed| winners(&analyse(&run(Truth { seed, ..CALM })))).collect();
    assert!(false_ones.len() <= 9, "{false_ones:?}");
    assert!(!false_ones.iter().any(|w| w.contains("A/A")), "{false_ones:?}");
}

#[test]
fn a_known_factor_is_found() {
    let results = analyse(&run(Truth { factors: [0.95, 0.7], ..CALM }));
    assert_eq!(results.complete_rounds, 10);
    for (variant, factor) in [("routed", 0.95), ("nft", 0.7)] {
        for metric in ["goodput_bps", "rtt_p50_ns", "rtt_p99_ns"] {
            let cell = results.cell("two", metric, variant).unwrap();
            let comparison = cell.comparison.unwrap();
            let (low, high) = comparison.interval.unwrap();
            assert!(low < factor && factor < high, "{metric} of {variant}: {low} to {high}");
            // 5 % at a p99 of 600 delays lie within the noise of these.
            if (variant, metric) != ("routed", "rtt_p99_ns") {
                assert_eq!(cell.verdict, Some(Verdict::Lower), "{metric} of {variant}");
            }
            assert_eq!((comparison.n, cell.per_round.len(), cell.void), (10, 10, 0));
            let estimate = cell.estimate.unwrap();
            let (low, high) = estimate.interval.unwrap();
            assert!(low <= estimate.center && estimate.center <= high);
            assert!(estimate.range.0 <= low && high <= estimate.range.1.max(high));
            assert_eq!(estimate.n, 10);
        }
    }
    let baseline = results.cell("one", "goodput_bps", "direct").unwrap();
    assert_eq!((baseline.comparison, baseline.verdict, baseline.per_round.len()), (None, None, 0));
    let neither = results.cell("one", "sent_pps", "nft").unwrap();
    assert!(neither.comparison.is_some() && neither.verdict.is_none());
    // A ratio of two values that spread by 1 % spreads by 1.4 %; over ten rounds +-1.4 % x t(9) / sqrt(10) = 1.0 %.
    let width =
        |metric, variant| results.cell("one", metric, variant).unwrap().comparison.unwrap().half_width();
    assert!((0.004..0.02).contains(&width("goodput_bps", "nft").unwrap()));
    // 600 delays give their p99 to about 3 %, so it is the widest; loss, by difference, has no say.
    let (widest, place) = results.widest.clone().unwrap();
    assert!(place.contains("/rtt_p99_ns/"), "{place}");
    assert!(widest >= width("rtt_p99_ns", "nft").unwrap() && widest < 0.2, "{widest}");
}

#[test]
fn nothing_lost_is_an_upper_bound_and_no_difference() {
    let results = analyse(&run(CALM));
    let cell = results.cell("one", "loss_ratio", "nft").unwrap();
    let estimate = cell.estimate.unwrap();
    // The rule of three: ten trials of 1e5 packets.
    assert_eq!((estimate.center, estimate.interval), (0.0, Some((0.0, 3.0 / 1e6))));
    let comparison = cell.comparison.unwrap();
    assert_eq!((comparison.estimate, comparison.ratio, comparison.p), (0.0, false, 1.0));
    assert_eq!(cell.verdict, Some(Verdict::NoDifferenceSeen { floor: 0.0 }));
}

#[test]
fn a_disturbed_half_widens_the_interval_and_names_no_winner() {
    let calm = analyse(&run(CALM));
    let disturbed = analyse(&run(Truth { disturbed: true, ..CALM }));
    for workload in ["one", "two"] {
        let of = |results: &Results| {
            results
                .cell(workload, "goodput_bps", "direct (A/A)")
                .unwrap()
                .comparison
                .unwrap()
                .half_width()
                .unwrap()
        };
        assert!(of(&disturbed) > 2.0 * of(&calm), "{} against {}", of(&disturbed), of(&calm));
    }
    assert!(disturbed.widest.as_ref().unwrap().0 > calm.widest.as_ref().unwrap().0);
    for seed in 0..10 {
        let results = analyse(&run(Truth { seed, disturbed: true, ..CALM }));
        assert!(!winners(&results).iter().any(|w| w.contains("A/A")), "{:?}", winners(&results));
    }
}

#[test]
fn void_trials_are_counted_and_never_used() {
    let world = Truth { rounds: 8, factors: [0.9, 0.9], ..CALM };
    let mut with_void = run(world);
    let mut without = with_void.clone();
    let hit = |t: &Trial| t.round < 2 && t.variant == "nft" && t.workload == "one";
    for trial in with_void.trials.iter_mut().filter(|t| hit(t)) {
        trial.metrics.insert("goodput_bps".into(), 1e15);
        trial.faults = vec![
            Fault::void(FaultCode::Steal, "gateway", "8 % stolen"),
            Fault::void(FaultCode::Steal, "responder", "9 % stolen"),
            Fault::noted(FaultCode::LateSends, "initiator", "late"),
        ];
    }
    without.trials.retain(|t| !hit(t));
    let (results, plain) = (analyse(&with_void), analyse(&without));
    for (cell, other) in results.cells.iter().zip(&plain.cells) {
        assert_eq!(cell.estimate, other.estimate);
        assert_eq!(cell.comparison, other.comparison);
        let voided = cell.variant == "nft" && cell.workload == "one";
        assert_eq!(cell.void, if voided { 2 } else { 0 });
    }
    assert_eq!(results.cell("one", "goodput_bps", "nft").unwrap().comparison.unwrap().n, 6);
    assert_eq!((results.complete_rounds, plain.complete_rounds), (8, 6));
    let counts: Vec<_> =
        results.faults.iter().map(|f| (f.code, f.trials, f.void, f.example.as_str())).collect();
    assert_eq!(counts, [(FaultCode::LateSends, 2, 0, "late"), (FaultCode::Steal, 2, 2, "8 % stolen")]);
}

#[test]
fn a_pair_with_a_missing_side_is_no_pair() {
    let mut run = run(Truth { rounds: 7, ..CALM });
    for trial in &mut run.trials {
        if trial.variant == "direct" && trial.round == 0 {
            trial.metrics.remove("goodput_bps");
        }
        if trial.variant == "nft" && trial.round == 1 {
            trial.metrics.insert("goodput_bps".into(), f64::NAN);
        }
        if trial.variant == "routed" {
            trial.histograms.clear();
        }
    }
    let results = analyse(&run);
    assert_eq!(results.cell("one", "goodput_bps", "nft").unwrap().comparison.unwrap().n, 5);
    assert_eq!(results.cell("one", "goodput_bps", "nft").unwrap().verdict, Some(Verdict::TooFewRounds));
    assert_eq!(results.cell("one", "goodput_bps", "routed").unwrap().comparison.unwrap().n, 6);
    let cell = results.cell("one", "rtt_p50_ns", "routed").unwrap();
    assert_eq!((cell.estimate, cell.comparison, cell.verdict), (None, None, None));
    assert_eq!(results.widest, None, "what has no interval yet is not precise");
    // Every value of the record can be read again: no figure is infinite or no number.
    let json = serde_json::to_string(&results).unwrap();
    assert_eq!(serde_json::from_str::<Results>(&json).unwrap().cells.len(), results.cells.len());
}

#[test]
fn nothing_measured_concludes_nothing() {
    let results = analyse(&Run { trials: Vec::new(), ..run(CALM) });
    assert_eq!((results.complete_rounds, &results.widest, results.faults.len()), (0, &None, 0));
    assert_eq!(results.cells.len(), 2 * 5 * 4);
    assert!(results.cells.iter().all(|c| c.estimate.is_none() && c.comparison.is_none()));
    assert!(results.floors.iter().all(|f| f.floor.is_none() && f.n == 0));
    let mut empty = run(CALM);
    empty.variants.clear();
    empty.workloads.clear();
    assert_eq!(analyse(&empty).complete_rounds, 0);
}

#[test]
fn workloads_are_compared_inside_a_variant() {
    let mut run = run(Truth { spread: 0.005, ..CALM });
    for trial in run.trials.iter_mut().filter(|t| t.workload == "one") {
        trial.metrics.entry("goodput_bps".into()).and_modify(|v| *v *= 2.0);
    }
    run.compare = vec![WorkloadPair { workload: "one".into(), with: "two".into() }];
    run.workloads[1].metrics.retain(|m| m.name != "sent_pps");
    let results = analyse(&run);
    let of = |metric: &str, variant: &str| {
        results.workload_comparisons.iter().find(|c| c.metric == metric && c.variant == variant)
    };
    for variant in ["direct", "routed", "nft"] {
        let found = of("goodput_bps", variant).unwrap();
        let (low, high) = found.comparison.unwrap().interval.unwrap();
        assert!(low < 2.0 && 2.0 < high, "{low} to {high}");
        assert_eq!((found.verdict, found.per_round.len()), (Some(Verdict::Higher), 10));
    }
    assert!(of("goodput_bps", "direct (A/A)").is_none());
    assert!(of("sent_pps", "direct").is_none(), "only one of them has it");
}

#[test]
fn a_running_run_has_the_same_comparisons() {
    let running = run(CALM);
    let done = Run { status: Status::RoundsDone, ..running.clone() };
    let (done, running) = (analyse(&done), analyse(&running));
    for (one, other) in done.cells.iter().zip(&running.cells) {
        assert_eq!((&one.comparison, &one.verdict), (&other.comparison, &other.verdict));
        let (one, other) = (one.estimate.unwrap(), other.estimate.unwrap());
        assert_eq!((one.center, one.n, one.range), (other.center, other.n, other.range));
        let ((low, high), (from, to)) = (one.interval.unwrap(), other.interval.unwrap());
        assert!(low <= from && to <= high, "the bootstrap only ever widens");
    }
    assert_eq!(done.widest, running.widest);
}

/// The points of a curve are one question, and what stands beside it another one.
#[test]
fn a_curve_is_corrected_by_itself() {
    let mut run = run(Truth { rounds: 12, factors: [0.99, 0.98], ..CALM });
    let plain = analyse(&run);
    let copy = |run: &mut Run, from: &str, to: &str, value: f64| {
        let mut info = run.variants.iter().find(|v| v.name == from).unwrap().clone();
        let family = "filled".to_owned();
        info.name = to.to_owned();
        info.point = Some(weir_record::run::Point { family, key: "extra.rules".into(), value });
        run.variants.push(info);
        let more: Vec<Trial> = run.trials.iter().filter(|t| t.variant == from).cloned().collect();
        run.trials.extend(more.into_iter().map(|t| Trial { variant: to.into(), ..t }));
    };
    for (i, name) in ["filled-1", "filled-10", "filled-100"].into_iter().enumerate() {
        copy(&mut run, "routed", name, 10f64.powi(i as i32));
    }
    let swept = analyse(&run);
    let p = |results: &Results, variant: &str| {
        let cell = results.cell("one", "goodput_bps", variant).unwrap();
        let comparison = cell.comparison.unwrap();
        (comparison.p, comparison.p_holm)
    };
    for variant in ["routed", "nft"] {
        assert_eq!(p(&swept, variant), p(&plain, variant), "{variant}: the curve takes nothing from it");
    }
    // Three equal points: Holm multiplies the least of three equal p by three, and the others may not fall below it.
    let (raw, holm) = p(&swept, "filled-1");
    assert_eq!(raw, p(&plain, "routed").0);
    assert!((holm - (3.0 * raw).min(1.0)).abs() < 1e-12, "{raw} {holm}");
    assert_eq!(p(&swept, "filled-100"), (raw, holm));
}

/// A run in which `a` is faster by far, and what becomes of that.
fn of_the_faster(change: impl Fn(&mut Trial)) -> (Run, Results) {
    let mut run = run(Truth { factors: [2.0, 1.0], rounds: 24, ..CALM });
    run.trials.iter_mut().filter(|t| t.variant == VARIANTS[2] && t.workload == "one").for_each(change);
    let results = analyse(&run);
    (run, results)
}

fn verdict_of(results: &Results, workload: &str, metric: &str, variant: &str) -> Verdict {
    results.cell(workload, metric, variant).unwrap().verdict.unwrap()
}

#[test]
fn a_variant_that_fails_more_is_better_in_nothing_of_that_workload() {
    let (_, sound) = of_the_faster(|_| {});
    assert_eq!(verdict_of(&sound, "one", "goodput_bps", VARIANTS[2]), Verdict::Higher);
    let (_, failing) = of_the_faster(|trial| {
        trial.metrics.extend([("lost".to_owned(), 2e4), ("loss_ratio".to_owned(), 0.2)]);
    });
    assert_eq!(verdict_of(&failing, "one", "goodput_bps", VARIANTS[2]), Verdict::FailsMore);
    // A worse figure stays worse, and so does the result of the other workload.
    assert_eq!(verdict_of(&failing, "one", "rtt_p50_ns", VARIANTS[2]), Verdict::Higher);
    assert_eq!(verdict_of(&failing, "one", "loss_ratio", VARIANTS[2]), Verdict::Higher);
    assert_eq!(verdict_of(&failing, "two", "goodput_bps", VARIANTS[2]), Verdict::Higher);
}

#[test]
fn a_variant_whose_trials_are_void_too_often_is_better_in_nothing() {
    let void = |code: FaultCode, modulus: u32| {
        of_the_faster(move |trial| {
            if trial.round.is_multiple_of(modulus) {
                trial.faults.push(Fault::void(code, "gateway", ""));
            }
        })
    };
    let (_, biased) = void(FaultCode::ConnectionFailed, 3);
    let [bias] = &biased.void_biases[..] else { panic!("{:?}", biased.void_biases) };
    assert_eq!((bias.workload.as_str(), bias.variant.as_str(), bias.baseline_void), ("one", VARIANTS[2], 0));
    assert_eq!(verdict_of(&biased, "one", "goodput_bps", VARIANTS[2]), Verdict::VoidMore);
    assert_eq!(verdict_of(&biased, "two", "goodput_bps", VARIANTS[2]), Verdict::Higher);
    // Stolen time says nothing about a hop.
    let (_, stolen) = void(FaultCode::Steal, 3);
    assert!(stolen.void_biases.is_empty(), "{:?}", stolen.void_biases);
    assert_eq!(verdict_of(&stolen, "one", "goodput_bps", VARIANTS[2]), Verdict::Higher);
}

/// Two workloads of one variant, of which the faster one fails or is void more.
#[test]
fn pairs_of_workloads_are_judged_as_variants_are() {
    let pair = |change: fn(&mut Trial)| {
        let mut run = run(Truth { factors: [2.0, 1.0], rounds: 24, ..CALM });
        let pair = |workload: &str, with: &str| WorkloadPair { workload: workload.into(), with: with.into() };
        run.compare = vec![pair("one", "two"), pair("two", "one")];
        for trial in run.trials.iter_mut().filter(|t| t.variant == VARIANTS[2]) {
            if trial.workload == "one" {
                change(trial);
            } else {
                trial.metrics.insert("goodput_bps".to_owned(), 1e8);
            }
        }
        let results = analyse(&run);
        let of = |c: &&WorkloadComparison| c.variant == VARIANTS[2] && c.metric == "goodput_bps";
        let found: Vec<_> = results.workload_comparisons.iter().filter(of).collect();
        // The other way round it is slower, which praises the first one as much.
        assert_eq!((found[1].verdict, found[0].reserve), (Some(Verdict::Lower), None));
        (found[0].verdict.unwrap(), found[1].reserve)
    };
    assert_eq!(pair(|_| {}), (Verdict::Higher, None));
    let lost = |trial: &mut Trial| {
        trial.metrics.extend([("lost".to_owned(), 2e4), ("loss_ratio".to_owned(), 0.2)]);
    };
    assert_eq!(pair(lost), (Verdict::FailsMore, Some(Reserve::FailsMore)));
    let void = |trial: &mut Trial| {
        if trial.round.is_multiple_of(3) {
            trial.faults.push(Fault::void(FaultCode::ConnectionFailed, "gateway", ""));
        }
    };
    assert_eq!(pair(void), (Verdict::VoidMore, Some(Reserve::VoidMore)));
}
