//! The values of the record's own functions: exact values, worked out by hand.

use serde_json::json;
use weir_record::results::{Cell, Results};
use weir_record::{
    Better, CpuTime, FailureCounts, Fault, FaultCode, HostSample, MetricDef, Pattern, Role, Run, Scale,
    Source, Trial, Unit, WorkloadInfo,
};
use weir_stats::repeats::Repeatability;

fn metric() -> MetricDef {
    MetricDef {
        name: "rate_pps".into(),
        label: "rate".into(),
        unit: Unit::Pps,
        better: Better::Higher,
        scale: Scale::Ratio,
        source: Source::Value,
        headline: true,
        failure: None,
        help: "Help.".into(),
    }
}

#[test]
fn a_metric_is_defined_by_its_kind() {
    let value = MetricDef::value("rate_pps", "rate", Unit::Pps, Better::Higher, "Help.");
    assert_eq!(value, metric());
    assert_eq!(value.clone().detail(), MetricDef { headline: false, ..metric() });
    assert_eq!(value.by_difference(), MetricDef { scale: Scale::Difference, ..metric() });
    assert_eq!(
        MetricDef::quantile("rtt_p99_ns", "p99", "rtt", 0.99, "Help."),
        MetricDef {
            name: "rtt_p99_ns".into(),
            label: "p99".into(),
            unit: Unit::Ns,
            better: Better::Lower,
            source: Source::Quantile { histogram: "rtt".into(), q: 0.99 },
            ..metric()
        }
    );
    assert_eq!(
        MetricDef::failure("failed_ratio", "failed", ("failures", "attempts"), "Help."),
        MetricDef {
            name: "failed_ratio".into(),
            label: "failed".into(),
            unit: Unit::Ratio,
            better: Better::Lower,
            scale: Scale::Difference,
            headline: false,
            failure: Some(FailureCounts { failed: "failures".into(), of: "attempts".into() }),
            ..metric()
        }
    );
}

#[test]
fn only_a_void_fault_voids_its_trial() {
    let fault =
        Fault { code: FaultCode::Steal, host: "gateway".into(), detail: "3 % stolen".into(), void: true };
    assert_eq!(Fault::void(FaultCode::Steal, "gateway", "3 % stolen"), fault);
    let noted = Fault::noted(FaultCode::Steal, "gateway", "3 % stolen");
    assert_eq!(noted, Fault { void: false, ..fault.clone() });
    let trial =
        |faults: &[&Fault]| Trial { faults: faults.iter().copied().cloned().collect(), ..Trial::default() };
    assert!(!trial(&[]).is_void());
    assert!(!trial(&[&noted]).is_void());
    assert!(trial(&[&noted, &fault]).is_void());
}

#[test]
fn roles_are_named_as_they_are_written() {
    for (role, name) in Role::ALL.into_iter().zip(["initiator", "gateway", "responder"]) {
        assert_eq!(role.name(), name);
        assert_eq!(serde_json::to_value(role).unwrap(), name);
    }
}

#[test]
fn cpu_time_is_busy_stolen_or_idle() {
    let core =
        CpuTime { user_s: 1.0, system_s: 2.0, irq_s: 4.0, softirq_s: 8.0, steal_s: 16.0, idle_s: 33.0 };
    assert_eq!((core.busy_s(), core.total_s()), (15.0, 64.0));
    let idle = CpuTime { idle_s: 64.0, ..CpuTime::default() };
    let host = HostSample { window_s: 10.0, cpu: vec![core, idle], ..HostSample::default() };
    assert_eq!((host.steal_ratio(), host.busy_cores()), (0.125, 1.5));
    // No figures, and no window: no division by zero.
    let none = HostSample::default();
    assert_eq!((none.steal_ratio(), none.busy_cores()), (0.0, 0.0));
    assert_eq!(HostSample { window_s: 0.0, ..host }.busy_cores(), 0.0);
}

#[test]
fn a_workload_takes_part_in_its_first_rounds() {
    let of = |rounds| WorkloadInfo {
        name: "w".into(),
        kind: "tcp-stream".into(),
        description: String::new(),
        metrics: Vec::new(),
        rounds,
        point: None,
    };
    assert_eq!([0, 1, 2, 3].map(|round| of(Some(2)).is_in_round(round)), [true, true, false, false]);
    assert!(of(None).is_in_round(u32::MAX));
}

#[test]
fn a_run_has_the_baseline_that_it_names() {
    let variant = |name: &str, baseline: bool| {
        json!({ "name": name, "kind": "routed", "description": "", "baseline": baseline, "twin_of": null, "proof": [],
                "labels": {} })
    };
    let run = |variants: serde_json::Value| -> Run {
        serde_json::from_value(json!({
            "schema": weir_record::SCHEMA_VERSION, "weir": "0.1.0", "id": "i", "scenario": "s", "title": "t",
            "scenario_toml": "", "seed": 1, "started": "2026-01-01T00:00:00Z", "ended": null,
            "status": { "state": "running" },
            "plan": { "min_rounds": 6, "max_rounds": 6, "budget_s": 1.0, "target_half_width": 0.02,
                      "equivalence_margin": 0.02, "max_steal_ratio": 0.1 },
            "variants": variants, "workloads": [], "testbed": "lab", "hosts": [], "trials": [], "results": null,
            "notes": []
        }))
        .unwrap()
    };
    assert_eq!(run(json!([variant("a", false), variant("b", true)])).baseline(), Some("b"));
    assert_eq!(run(json!([variant("a", false)])).baseline(), None);
}

#[test]
fn a_cell_is_found_by_all_three_names() {
    let cell = |workload: &str, metric: &str, variant: &str| Cell {
        workload: workload.into(),
        metric: metric.into(),
        variant: variant.into(),
        estimate: None,
        void: 0,
        comparison: None,
        verdict: None,
        per_round: Vec::new(),
    };
    // Each differs from the one that is looked for in one name only.
    let cells = vec![cell("x", "m", "v"), cell("w", "x", "v"), cell("w", "m", "x"), cell("w", "m", "v")];
    let results = Results { cells, ..Results::default() };
    assert_eq!(results.cell("w", "m", "v"), Some(&results.cells[3]));
    assert_eq!(results.cell("w", "m", "y"), None);
}

#[test]
fn failed_repeats_are_written_only_where_some_failed() {
    let pattern = |failed| Pattern {
        variant: "v".into(),
        once_ns: None,
        repeats: 4,
        void: 0,
        failed,
        mean_ns: None,
        range_ns: None,
        components: None,
        p: None,
        p_holm: None,
        verdict: Repeatability::TooFew,
        levels: Vec::new(),
    };
    assert_eq!(serde_json::to_value(pattern(0)).unwrap().get("failed"), None);
    assert_eq!(serde_json::to_value(pattern(2)).unwrap()["failed"], 2);
}

#[test]
fn the_schema_names_the_keys_of_a_run() {
    let schema = weir_record::json_schema();
    assert_eq!(schema["title"], "Run");
    for key in ["schema", "variants", "trials", "results"] {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
}
