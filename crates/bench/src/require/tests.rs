use std::collections::BTreeMap;

use weir_record::{Better, Fault, FaultCode, RunPlan, Status, Trial, Unit, VariantInfo, WorkloadInfo};
use weir_stats::Histogram;

use super::*;

/// Rounds in which `direct` shows 1000 Mbit/s and 1 lost packet, and `nft` so many times as much, with 1 % more or less
/// from round to round.
fn run(rounds: u32, factor: f64) -> Run {
    let metrics = vec![
        MetricDef::value("goodput_bps", "goodput", Unit::Bps, Better::Higher, ""),
        MetricDef::quantile("rtt_p50_ns", "RTT p50", "rtt", 0.5, ""),
        MetricDef::value("lost", "lost", Unit::Count, Better::Lower, "").by_difference(),
        MetricDef::value("errors", "errors", Unit::Count, Better::Lower, "").by_difference(),
        MetricDef::value("unseen_bps", "unseen", Unit::Bps, Better::Higher, ""),
    ];
    let variant = |name: &str| VariantInfo {
        name: name.into(),
        kind: "direct".into(),
        description: String::new(),
        baseline: name == "direct",
        twin_of: None,
        proof: Vec::new(),
        facts: Vec::new(),
        labels: BTreeMap::new(),
        point: None,
    };
    let workload = |name: &str| WorkloadInfo {
        name: name.into(),
        kind: "tcp-stream".into(),
        description: String::new(),
        metrics: metrics.clone(),
        rounds: None,
        point: None,
    };
    let mut trials = Vec::new();
    for round in 0..rounds {
        for (name, times, sign) in [("direct", 1.0, 1.0), ("nft", factor, -1.0)] {
            for workload in ["one", "two"] {
                let times = if workload == "two" { times / 2.0 } else { times };
                let luck = 1.0 + sign * 0.01 * (f64::from(round % 4) / 3.0 - 0.5);
                let mut rtt = Histogram::new();
                rtt.record_n((50_000.0 * times) as u64, 100);
                let metrics = [("goodput_bps", 1e9 * times * luck), ("lost", times), ("errors", 0.0)];
                trials.push(Trial {
                    round,
                    variant: name.into(),
                    workload: workload.into(),
                    metrics: metrics.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
                    histograms: BTreeMap::from([("rtt".to_owned(), rtt.into())]),
                    ..Trial::default()
                });
            }
        }
    }
    Run {
        schema: 1,
        weir: String::new(),
        id: String::new(),
        scenario: String::new(),
        title: String::new(),
        scenario_toml: String::new(),
        seed: 1,
        started: String::new(),
        ended: None,
        status: Status::RoundsDone,
        plan: RunPlan {
            min_rounds: 6,
            max_rounds: 30,
            budget_s: 1.0,
            target_half_width: 0.02,
            equivalence_margin: 0.03,
            max_steal_ratio: 0.05,
        },
        variants: vec![variant("direct"), variant("nft")],
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

fn judged(run: &Run, text: &str) -> Judgement {
    Requirement::parse(text, run).unwrap_or_else(|e| panic!("{e}")).judge(run)
}

#[test]
fn bounds_are_judged_by_the_whole_interval() {
    use Outcome::{Met, NotMet, Undecided};
    // Truth: goodput of nft is 0.9 x direct, 900 Mbit/s, within half a per cent; RTT 45 us; 0.9 lost against 1.
    let run = run(8, 0.9);
    for (text, outcome) in [
        ("nft.one >= 0.85 x direct", Met),
        ("nft.one>=0.85x direct", Met),
        ("nft.one >= 0.95 x direct", NotMet),
        ("nft.one >= 0.9 x direct", Undecided),
        ("nft.one.goodput_bps <= 0.95 x direct", Met),
        ("nft.one < 0.85 x direct", NotMet),
        ("nft.one == 0.9 x direct", Met),
        ("nft.one == 0.99 x direct", NotMet),
        ("direct.one >= 1.9 x direct.two", Met),
        ("direct.one >= 2.1 x direct.two", NotMet),
        ("direct.one >= 1.05 x nft", Met),
        ("nft.one >= 850 Mbit/s", Met),
        ("nft.one >= 850Mbps", Met),
        ("nft.one >= 0.95 Gbit/s", NotMet),
        ("nft.one > 9e8", Undecided),
        ("nft.one <= 910000000 bit/s", Met),
        ("nft.one.rtt_p50_ns <= 46 us", Met),
        ("nft.one.rtt_p50_ns <= 44µs", NotMet),
        ("nft.one.rtt_p50_ns < 0.95 x direct", Met),
        ("nft.one.lost <= 1 x direct", Met),
        ("nft.one.lost >= 1 x direct", NotMet),
        ("nft.one.lost <= 0.95", Met),
        ("nft.one.errors == 0", Met),
        ("nft.one.errors < 1 x direct", NotMet),
        ("nft.one.errors <= 1 x direct", Met),
        ("nft.one.lost == 0", NotMet),
        ("nft.one.unseen_bps >= 1", Undecided),
        ("nft.one.unseen_bps >= 1 x direct", Undecided),
    ] {
        let judgement = judged(&run, text);
        assert_eq!(judgement.outcome, outcome, "{judgement}");
        assert_eq!(judgement.is_met(), outcome == Met);
        assert!(judgement.to_string().contains(text), "{judgement}");
    }
}

#[test]
fn what_was_found_is_told_with_interval_and_rounds() {
    let run = run(8, 0.9);
    // Round by round nft / direct is 0.9 x (1 - e) / (1 + e) with e of +-0.005 and +-0.00167, twice each.
    let ratio = |e: f64| 0.9 * (1.0 - e) / (1.0 + e);
    let judgement = judged(&run, "nft.one >= 0.85 x direct");
    let found = format!(
        "goodput is 0.900 x direct [{:.3}, {:.3}] over 8 rounds",
        ratio(0.005 * 0.667),
        ratio(-0.005 * 0.667)
    );
    assert_eq!(judgement.found, found);
    assert_eq!(judgement.to_string(), format!("met: nft.one >= 0.85 x direct: {found}"));
    let judgement = judged(&run, "nft.one >= 2 Gbit/s");
    assert!(
        judgement.to_string().starts_with("NOT MET: nft.one >= 2 Gbit/s: goodput is 900 Mbit/s ["),
        "{judgement}"
    );
    let judgement = judged(&run, "nft.one >= 0.9 x direct");
    assert!(judgement.to_string().starts_with("NOT MET (undecided): "), "{judgement}");
    let judgement = judged(&run, "nft.one.lost <= 5 x direct");
    assert_eq!(judgement.found, "lost minus that of direct is −0.100 [−0.100, −0.100] over 8 rounds");
}

#[test]
fn too_few_rounds_and_void_trials_decide_nothing() {
    for text in ["nft.one >= 0.5 x direct", "nft.one >= 1 Mbit/s", "nft.one.errors == 0"] {
        let judgement = judged(&run(5, 0.9), text);
        assert_eq!(judgement.outcome, Outcome::Undecided, "{judgement}");
        assert!(judgement.found.contains("below 6 there is no interval"), "{judgement}");
        let mut all_void = run(8, 0.9);
        for trial in all_void.trials.iter_mut().filter(|t| t.variant == "nft") {
            trial.faults.push(Fault::void(FaultCode::Steal, "gateway", ""));
        }
        let judgement = judged(&all_void, text);
        assert_eq!(judgement.outcome, Outcome::Undecided, "{judgement}");
        assert!(judgement.found.starts_with("no round has a valid trial with "), "{judgement}");
    }
}

/// As [`run`] of twice the goodput, where half of the operations of `nft` fail.
fn half_failed(metric: &str) -> Run {
    let mut run = run(12, 2.0);
    for workload in &mut run.workloads {
        workload.metrics.push(MetricDef::failure(metric, "failed", ("broken", "tried"), ""));
    }
    for trial in &mut run.trials {
        let broken = if trial.variant == "nft" { 50.0 } else { 0.0 };
        trial.metrics.extend([
            ("broken".to_owned(), broken),
            ("tried".to_owned(), 100.0),
            (metric.to_owned(), broken / 100.0),
        ]);
    }
    run
}

#[test]
fn the_streams_that_stand_do_not_stand_in_for_those_that_fail() {
    let run = half_failed("failed_ratio");
    let judgement = judged(&run, "nft.one.goodput_bps >= 0.9 x direct");
    assert_eq!(judgement.outcome, Outcome::Undecided);
    assert!(judgement.found.contains("more operations fail"), "{judgement}");
    // The counts of what arrived stay, failures can be named, and the other way round nothing is left out.
    for met in [
        "nft.one.goodput_bps >= 1Gbit/s",
        "nft.one.failed_ratio <= 0.6",
        "direct.one.goodput_bps >= 0.4 x nft",
    ] {
        assert_eq!(judged(&run, met).outcome, Outcome::Met, "{met}");
    }
    // Lost datagrams are missing in the rate of those that arrive.
    let lossy = half_failed("loss_ratio");
    assert_eq!(judged(&lossy, "nft.one.goodput_bps >= 0.9 x direct").outcome, Outcome::Met);
}

/// Failures of each side of a bound are those of its own workload.
#[test]
fn a_bound_between_workloads_looks_at_the_failures_of_both() {
    let mut run = half_failed("failed_ratio");
    for trial in run.trials.iter_mut().filter(|t| t.workload == "two") {
        trial.metrics.extend([("broken".to_owned(), 0.0), ("failed_ratio".to_owned(), 0.0)]);
    }
    let judgement = judged(&run, "nft.one.goodput_bps >= 1.5 x nft.two");
    assert_eq!(judgement.outcome, Outcome::Undecided, "{judgement}");
    assert!(judgement.found.contains("more operations fail"), "{judgement}");
    assert_eq!(judged(&run, "nft.two.goodput_bps >= 0.4 x nft.one").outcome, Outcome::Met);
}

#[test]
fn trials_that_are_void_more_often_meet_no_bound() {
    let void = |code: FaultCode| {
        let mut run = run(12, 2.0);
        for trial in run.trials.iter_mut().filter(|t| t.variant == "nft" && t.round.is_multiple_of(3)) {
            trial.faults.push(Fault::void(code, "gateway", ""));
        }
        run
    };
    for text in ["nft.one >= 1.5 x direct", "nft.one >= 1 Gbit/s"] {
        let judgement = judged(&void(FaultCode::ConnectionFailed), text);
        assert_eq!(judgement.outcome, Outcome::Undecided, "{judgement}");
        assert!(judgement.found.contains("void more often"), "{judgement}");
        assert_eq!(judged(&void(FaultCode::Steal), text).outcome, Outcome::Met, "{text}");
    }
}

/// As [`run`], with a twin of `direct` whose goodput is `apart` times as large, and as small, in turn.
fn with_twin(factor: f64, apart: f64) -> Run {
    let mut run = run(12, factor);
    let twin = VariantInfo {
        name: "direct (A/A)".into(),
        baseline: false,
        twin_of: Some("direct".into()),
        ..run.variants[0].clone()
    };
    run.variants.push(twin);
    let mut twins: Vec<Trial> = run.trials.iter().filter(|t| t.variant == "direct").cloned().collect();
    for twin in &mut twins {
        twin.variant = "direct (A/A)".into();
        if let Some(goodput) = twin.metrics.get_mut("goodput_bps") {
            *goodput *= if twin.round % 2 == 0 { apart } else { 1.0 / apart };
        }
    }
    run.trials.extend(twins);
    run
}

#[test]
fn a_difference_that_the_baseline_has_from_itself_meets_no_bound() {
    use Outcome::{Met, NotMet, Undecided};
    for (factor, apart, text, outcome) in [
        (1.02, 1.03, "nft.one > 1 x direct", Undecided),
        (1.02, 1.03, "direct.one < 1 x nft", Undecided),
        (1.02, 1.03, "nft.one >= 1.005 x direct", Undecided),
        (0.98, 1.03, "nft.one <= 0.995 x direct", Undecided),
        (1.02, 1.03, "direct.one > 1.95 x direct.two", Met),
        // The twin's noise is smaller than the difference.
        (1.02, 1.001, "nft.one > 1 x direct", Met),
        (0.98, 1.001, "nft.one < 1 x direct", Met),
        // No difference is asked for.
        (1.02, 1.03, "nft.one >= 1 x direct", Met),
        (1.02, 1.03, "nft.one >= 0.9 x direct", Met),
        (1.02, 1.03, "nft.one == 1 x direct", Met),
        // A bound that is missed stays missed.
        (0.98, 1.03, "nft.one > 1 x direct", NotMet),
    ] {
        let judgement = judged(&with_twin(factor, apart), text);
        assert_eq!(judgement.outcome, outcome, "{factor}, {apart}: {judgement}");
        assert_eq!(judgement.found.contains("differs from itself"), outcome == Undecided, "{judgement}");
    }
}

#[test]
fn mistakes_are_named_with_the_nearest_valid_value() {
    let run = run(1, 1.0);
    for (text, part, nearest) in [
        ("", "no >=, <=, >, < or ==", None),
        ("nft.one", "no >=, <=, >, < or ==", None),
        ("nft.one = 3", "no >=, <=, >, < or ==", None),
        ("nft >= 3", "\"nft\" does not name a variant and a workload", None),
        ("nft.one.goodput_bps.x >= 3", "does not name a variant and a workload", None),
        ("ntf.one >= 3", "no variant \"ntf\"", Some("nft")),
        ("nft.won >= 3", "no workload \"won\"", Some("one")),
        ("nft.one.godput >= 3", "no metric of one \"godput\"", Some("lost")),
        ("nft.one.goodputbps >= 3", "no metric of one", Some("goodput_bps")),
        ("nft.one >=", "\"\" is not a number", None),
        ("nft.one >= much", "\"much\" is not a number", None),
        ("nft.one >= => 3", "\"=> 3\" is not a number", None),
        ("nft.one >= 1e999", "is not a number", None),
        ("nft.one >= 3 Gbits/s", "no unit of goodput_bps \"Gbits/s\"", Some("Gbit/s")),
        ("nft.one.lost >= 3 %", "lost is a count: \"%\" is no unit of it", None),
        ("nft.one >= 0.9 x diract", "no variant \"diract\"", Some("direct")),
        ("nft.one >= 0.9 x direct.on", "no workload \"on\"", Some("one")),
        ("nft.one >= 0.9 xdirect", "no unit of goodput_bps \"xdirect\"", Some("bit/s")),
        ("nft.one >= 0 x direct", "must be above 0", None),
        ("nft.one >= -1 x direct", "must be above 0", None),
        ("nft.one >= 0.9 x nft", "multiple of itself", None),
    ] {
        let message = Requirement::parse(text, &run).map(drop).unwrap_err();
        assert!(message.starts_with(&format!("\"{text}\": ")) && message.contains(part), "{message}");
        let end = nearest.map(|n| format!("; nearest valid value: \"{n}\""));
        assert_eq!(message.contains("nearest valid value"), end.is_some(), "{message}");
        assert!(end.is_none_or(|end| message.ends_with(&end)), "{message}");
    }
}

#[test]
fn a_scenario_knows_the_bounds_that_fit_it() {
    let scenario = Scenario::open("nat-instance").unwrap();
    for text in [
        "nft-masquerade.tcp-egress >= 0.9 x routed",
        "nft-masquerade.tcp-connect.connect_p99_ns <= 2 ms",
        "direct (A/A).udp64-egress.loss_ratio <= 1 %",
        "routed.tcp-rr.cpu_ns_per_skb <= 10 us",
    ] {
        assert_eq!(Requirement::check(text, &scenario), Ok(()));
    }
    let message = Requirement::check("nft-masquerade.tcp-egres >= 1", &scenario).unwrap_err();
    assert_eq!(
        message,
        "\"nft-masquerade.tcp-egres >= 1\": there is no workload \"tcp-egres\"; nearest valid value: \"tcp-egress\""
    );
}

mod mutated {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_never_panics(text in "(nft|direct)?[.a-z0-9_ ]{0,12}(>=|<=|==|<|>)?[ -~µ×]{0,12}") {
            let run = run(1, 1.0);
            if let Ok(bound) = Requirement::parse(&text, &run) {
                prop_assert!(!bound.judge(&run).is_met(), "one round meets nothing: {text}");
            }
        }
    }
}
