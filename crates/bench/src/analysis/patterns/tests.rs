//! Simulated paths of which it is known which ones jump, and what each label adds.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_record::*;
use weir_stats::Verdict;
use weir_stats::repeats::Repeatability;

use super::super::analyse;

/// One way to connect: name, labels, and the delay of each gateway behind it, ms.
struct Way {
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
    gateways: &'static [f64],
}

/// A bypass, two zones, and a name behind which there are two gateways; two sizes of it.
const WAYS: [Way; 5] = [
    Way { name: "fast", labels: &[("fastpath", "yes"), ("sku", "s2")], gateways: &[1.7] },
    Way {
        name: "s1-zone1",
        labels: &[("fastpath", "no"), ("placement", "zonal"), ("sku", "s1"), ("zone", "1")],
        gateways: &[2.0],
    },
    Way {
        name: "s1-zone2",
        labels: &[("fastpath", "no"), ("placement", "zonal"), ("sku", "s1"), ("zone", "2")],
        gateways: &[2.2],
    },
    Way {
        name: "s1-redundant",
        labels: &[("fastpath", "no"), ("placement", "redundant"), ("sku", "s1")],
        gateways: &[1.8, 3.0],
    },
    Way {
        name: "s2-redundant",
        labels: &[("fastpath", "no"), ("placement", "redundant"), ("sku", "s2")],
        gateways: &[1.8, 3.0],
    },
];

struct Dice(ChaCha8Rng);

impl Dice {
    fn uniform(&mut self) -> f64 {
        1.0 - self.0.random::<f64>()
    }

    /// Normal with that standard deviation (Box and Muller 1958).
    fn normal(&mut self, sd: f64) -> f64 {
        sd * (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// One trial: a gateway for its connection, windows with 1 % of noise, and what the place adds to the whole of it.
    fn trial(&mut self, way: &Way, name: &str, workload: &str, round: u32, place: f64) -> Trial {
        let gateway =
            way.gateways[(self.uniform() * way.gateways.len() as f64) as usize % way.gateways.len()];
        let met = gateway * 1e6 * (1.0 + self.normal(place));
        let points: Vec<(f64, f64)> =
            (0..8).map(|i| (f64::from(i), met * (1.0 + self.normal(0.01)))).collect();
        let mean = points.iter().map(|p| p.1).sum::<f64>() / points.len() as f64;
        let mut rtt = weir_stats::Histogram::new();
        rtt.record_n(mean as u64, 800);
        // The effect of a stall on the average is no jump.
        let stall = if self.uniform() < 0.3 { 0.2e6 * self.uniform() } else { 0.0 };
        Trial {
            round,
            variant: name.into(),
            workload: workload.into(),
            metrics: [("rtt_mean_ns".to_owned(), mean + stall)].into(),
            histograms: [("rtt".to_owned(), rtt.into())].into(),
            series: vec![Series { name: "window_p50_ns".into(), points }],
            ..Trial::default()
        }
    }
}

/// Which variant is the baseline, and how much each trial is moved by the place, as a share.
fn run(seed: u64, rounds: u32, baseline: &str, place: f64) -> Run {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let mut variants = Vec::new();
    let mut trials = Vec::new();
    for way in &WAYS {
        let info = VariantInfo {
            name: way.name.into(),
            kind: "path".into(),
            description: String::new(),
            baseline: way.name == baseline,
            twin_of: None,
            proof: Vec::new(),
            facts: Vec::new(),
            labels: way.labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            point: None,
        };
        let mut names = vec![way.name.to_owned()];
        variants.push(info.clone());
        if info.baseline {
            names.push(format!("{} (A/A)", way.name));
            let twin_of = Some(way.name.to_owned());
            variants.push(VariantInfo { name: names[1].clone(), baseline: false, twin_of, ..info });
        }
        for name in names {
            trials.push(dice.trial(way, &name, "once", 0, place));
            trials.extend((0..rounds).map(|round| dice.trial(way, &name, "repeats", round, place)));
        }
    }
    let workload = |name: &str, rounds| WorkloadInfo {
        name: name.into(),
        kind: "tcp-rr".into(),
        description: String::new(),
        metrics: vec![
            MetricDef::quantile("rtt_p50_ns", "RTT p50", "rtt", 0.5, ""),
            MetricDef::value("rtt_mean_ns", "RTT mean", Unit::Ns, Better::Lower, "").detail(),
        ],
        rounds,
        point: None,
    };
    let patterns = PatternPlan { repeats: "repeats".into(), once: Some("once".into()) };
    Run {
        schema: SCHEMA_VERSION,
        weir: String::new(),
        id: "test".into(),
        scenario: "test".into(),
        title: String::new(),
        scenario_toml: String::new(),
        seed,
        started: String::new(),
        ended: None,
        // Without the bootstrap, which only `Final` needs.
        status: Status::Running,
        plan: RunPlan {
            min_rounds: rounds,
            max_rounds: rounds,
            budget_s: 1.0,
            target_half_width: 0.02,
            equivalence_margin: 0.03,
            max_steal_ratio: 0.05,
        },
        variants,
        workloads: vec![workload("once", Some(1)), workload("repeats", None)],
        compare: Vec::new(),
        patterns: Some(patterns),
        testbed: String::new(),
        hosts: Vec::new(),
        trials,
        results: None,
        summary: None,
        notes: Vec::new(),
    }
}

fn patterns(run: &Run) -> Patterns {
    analyse(run).patterns.unwrap()
}

fn effect<'a>(patterns: &'a Patterns, level: &str, against: &str) -> &'a DimensionEffect {
    let found = patterns.dimensions.iter().find(|d| d.level == level && d.against == against);
    found.unwrap_or_else(|| panic!("no {level} against {against}"))
}

/// On a quiet place, on one that moves every trial by 2 %, and on one that does so by 4 %, more than the margin: there the twin
/// tells, as long as the baseline itself is not taken to jump.
#[test]
fn what_jumps_is_found_and_nothing_else() {
    const RUNS: u64 = 60;
    for (place, baseline_holds) in [(0.0, 1.0), (0.02, 0.98), (0.04, 0.8)] {
        let (mut found, mut both_met, mut wrong, mut steady, mut held) = (0, 0, 0, 0, 0);
        for seed in 0..RUNS {
            let patterns = patterns(&run(seed, 10, "fast", place));
            if patterns.twin_spread_ns.is_none() {
                continue;
            }
            held += 1;
            let mut wrong_here = false;
            for pattern in patterns.patterns {
                let jumps = pattern.verdict == Repeatability::Jumps;
                let (low, high) = pattern.range_ns.unwrap();
                // Both gateways were met.
                if pattern.variant.ends_with("redundant") && high > 1.35 * low {
                    both_met += 1;
                    found += u32::from(jumps);
                } else {
                    steady += u32::from(matches!(pattern.verdict, Repeatability::Steady { .. }));
                    wrong_here |= jumps;
                }
            }
            wrong += u32::from(wrong_here);
        }
        println!("place {place}: {held} runs, {found} of {both_met} found, {wrong} wrong, {steady} steady");
        assert!(f64::from(held) >= baseline_holds * RUNS as f64, "{held}");
        assert!(f64::from(found) >= 0.99 * f64::from(both_met) && both_met > held, "{found} of {both_met}");
        // Errors are held to 5 % of the runs, over all their patterns; three standard errors more.
        let share = f64::from(wrong) / f64::from(held);
        assert!(share < 0.05 + 3.0 * (0.05 * 0.95 / f64::from(held)).sqrt(), "{share}");
        if place == 0.0 {
            assert_eq!(wrong, 0, "1 % of noise lies within the margin");
            assert!(f64::from(steady) > 0.99 * 3.0 * RUNS as f64, "{steady}");
        }
    }
}

#[test]
fn a_baseline_that_jumps_says_nothing_of_the_place() {
    let patterns = patterns(&run(7, 10, "s1-redundant", 0.0));
    assert_eq!(patterns.twin_spread_ns, None);
    let jumps: Vec<&str> = patterns
        .patterns
        .iter()
        .filter(|p| p.verdict == Repeatability::Jumps)
        .map(|p| p.variant.as_str())
        .collect();
    assert_eq!(jumps, ["s1-redundant", "s2-redundant"]);
}

#[test]
fn dimensions_are_matched_as_far_as_the_variants_allow() {
    let patterns = patterns(&run(3, 10, "fast", 0.0));
    let of = |level, against| effect(&patterns, level, against);
    // The same but for the zone.
    let zones = of("2", "1");
    assert_eq!(
        (&zones.variants[..], &zones.against_variants[..]),
        (&["s1-zone2".into()][..], &["s1-zone1".into()][..])
    );
    assert_eq!(
        (&zones.matched[..], zones.averaged.len(), zones.confounded),
        (&["fastpath".into(), "placement".into(), "sku".into()][..], 0, false)
    );
    // 2.2 against 2.0 ms.
    let (low, high) = zones.difference.interval.unwrap();
    assert!(low < 0.2e6 && 0.2e6 < high && high - low < 0.1e6, "{zones:?}");
    assert_eq!(zones.verdict, Verdict::Higher);
    // A redundant gateway has no zone: those of the other side are averaged, and s2 has no zonal partner.
    let placement = of("redundant", "zonal");
    assert_eq!(placement.variants, ["s1-redundant"]);
    assert_eq!(placement.against_variants, ["s1-zone1", "s1-zone2"]);
    assert_eq!(
        (&placement.matched[..], &placement.averaged[..]),
        (&["fastpath".into(), "sku".into()][..], &["zone".into()][..])
    );
    // A bypass has neither placement nor zone.
    let fast = of("no", "yes");
    assert_eq!(
        (&fast.variants[..], &fast.averaged[..]),
        (&["s2-redundant".into()][..], &["placement".into(), "zone".into()][..])
    );
    assert!(!fast.confounded);
    // Only sizes of redundant gateways match.
    assert_eq!(of("s1", "s2").variants, ["s1-redundant"]);
}

#[test]
fn where_nothing_matches_that_is_said() {
    let mut run = run(3, 10, "fast", 0.0);
    run.variants.retain(|v| !v.name.starts_with("s2") && v.name != "s1-redundant");
    let patterns = patterns(&run);
    // The bypass is of another size than all that is left.
    let fast = effect(&patterns, "no", "yes");
    assert!(fast.confounded, "{fast:?}");
    assert_eq!(fast.averaged, ["placement", "sku", "zone"]);
    // 2.1 ms on average against 1.7.
    assert!((fast.difference.estimate - 0.4e6).abs() < 0.03e6, "{fast:?}");
}

/// Each round holds the difference of the two zones, moved by what the round has in common: 95 % intervals cover it.
#[test]
fn the_interval_of_a_difference_covers() {
    const RUNS: u64 = 150;
    let covered = (0..RUNS)
        .filter(|seed| {
            let patterns = patterns(&run(*seed, 8, "fast", 0.02));
            let (low, high) = effect(&patterns, "2", "1").difference.interval.unwrap();
            low <= 0.2e6 && 0.2e6 <= high
        })
        .count() as f64
        / RUNS as f64;
    println!("{:.1} %", 100.0 * covered);
    // Exactly 96.1 % with eight rounds (signed ranks), less three standard errors.
    assert!(covered > 0.961 - 0.047, "{covered}");
}

#[test]
fn a_workload_of_one_round_is_shown_and_not_judged() {
    let run = run(3, 10, "fast", 0.0);
    let results = analyse(&run);
    assert_eq!(results.complete_rounds, 10);
    let of = |workload: &str| {
        results
            .cells
            .iter()
            .filter(|c| c.workload == workload && c.metric == "rtt_p50_ns")
            .cloned()
            .collect::<Vec<_>>()
    };
    assert!(of("once").iter().all(|c| c.verdict.is_none() && c.estimate.is_some_and(|e| e.n == 1)));
    assert!(of("repeats").iter().any(|c| c.verdict.is_some()));
    assert!(results.widest.is_some_and(|(_, place)| place.starts_with("repeats/")));
    let once: BTreeMap<String, Option<f64>> =
        results.patterns.unwrap().patterns.into_iter().map(|p| (p.variant, p.once_ns)).collect();
    assert!((once["s1-zone1"].unwrap() - 2.1e6).abs() < 0.15e6);
}

/// A steady path whose every third repeat gets few answers, and a path that never gets any.
#[test]
fn a_way_whose_repeats_fail_is_not_steady_and_no_faster() {
    let mut run = run(5, 12, "s1-zone1", 0.0);
    for trial in run.trials.iter_mut().filter(|t| t.workload == "repeats") {
        let fails = match trial.variant.as_str() {
            "s1-zone2" => trial.round % 3 == 0,
            "fast" => true,
            _ => false,
        };
        if fails {
            trial.histograms.get_mut("rtt").unwrap().fail(1000);
        }
    }
    let found = analyse(&run).patterns.unwrap();
    let of = |name: &str| found.patterns.iter().find(|p| p.variant == name).unwrap();
    assert_eq!((of("s1-zone1").repeats, of("s1-zone1").failed), (12, 0));
    assert!(matches!(of("s1-zone1").verdict, Repeatability::Steady { .. }), "{:?}", of("s1-zone1").verdict);
    assert_eq!((of("s1-zone2").repeats, of("s1-zone2").failed), (8, 4));
    assert_eq!(of("s1-zone2").verdict, Repeatability::Open { more_repeats: None });
    assert_eq!((of("fast").repeats, of("fast").failed, of("fast").verdict), (0, 12, Repeatability::TooFew));
    let fast = found.dimensions.iter().find(|d| d.dimension == "fastpath").unwrap();
    assert_eq!((fast.level.as_str(), fast.against.as_str()), ("no", "yes"));
    // A failed operation takes infinitely long: the other ways are faster.
    assert_eq!((fast.verdict, fast.ratio.estimate), (Verdict::Lower, 0.0));
    assert_eq!(fast.per_round_ns, [0.0; 0]);
}

/// The faster zone fails a tenth of its transactions, which no median shows.
#[test]
fn a_value_that_fails_more_is_not_faster() {
    let mut run = run(3, 10, "fast", 0.0);
    let fast = run.trials.iter().filter(|t| t.variant == "fast").map(|t| t.histograms.clone());
    let fast: Vec<_> = fast.collect();
    let second = run.trials.iter_mut().filter(|t| t.variant == "s1-zone2");
    second.zip(fast).for_each(|(trial, histograms)| trial.histograms = histograms);
    for workload in &mut run.workloads {
        workload.metrics.push(MetricDef::failure("failed_ratio", "failed", ("failed", "attempted"), ""));
    }
    let verdict = |run: &mut Run, failing: &str| {
        for trial in &mut run.trials {
            let failed = if trial.variant == failing { 100.0 } else { 0.0 };
            let counts = [("failed", failed), ("attempted", 1000.0), ("failed_ratio", failed / 1000.0)];
            trial.metrics.extend(counts.map(|(name, value)| (name.to_owned(), value)));
        }
        let patterns = patterns(run);
        patterns.dimensions.iter().find(|d| d.dimension == "zone").unwrap().verdict
    };
    assert_eq!(verdict(&mut run, "none"), Verdict::Lower);
    assert_eq!(verdict(&mut run, "s1-zone2"), Verdict::FailsMore);
    assert_eq!(verdict(&mut run, "s1-zone1"), Verdict::Lower);
    // More void trials withhold it as well.
    let more_void = |run: &mut Run| {
        for trial in run.trials.iter_mut().filter(|t| t.variant == "s1-zone2" && t.round < 3) {
            trial.faults.push(Fault::void(FaultCode::ConnectionFailed, "gateway", ""));
        }
    };
    let mut void = run.clone();
    more_void(&mut void);
    assert_eq!(verdict(&mut void, "none"), Verdict::VoidMore);

    // Named last, it is the value that the other one is slower than.
    let is_fast = |name: &str| name == "s1-zone2";
    run.variants.sort_by_key(|v| !is_fast(&v.name));
    let judged = |run: &mut Run, failing: &str| {
        verdict(run, failing);
        let patterns = patterns(run);
        let found = effect(&patterns, "1", "2");
        (found.verdict, found.reserve)
    };
    assert_eq!(judged(&mut run, "none"), (Verdict::Higher, None));
    assert_eq!(judged(&mut run, "s1-zone1"), (Verdict::Higher, None));
    assert_eq!(judged(&mut run, "s1-zone2"), (Verdict::Higher, Some(Reserve::FailsMore)));
    more_void(&mut run);
    assert_eq!(judged(&mut run, "none"), (Verdict::Higher, Some(Reserve::VoidMore)));
}
