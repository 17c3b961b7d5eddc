//! The summary of a record, with the money of its scenario.

use weir_bench::summary::conclude;
use weir_record::{Run, SCHEMA_VERSION};

const SCENARIO: &str = r#"
name = "priced"
title = "t"

[[variant]]
kind = "routed"

[[workload]]
name = "bulk"
kind = "tcp-stream"
"#;

const COST: &str = r#"
[cost]
gb-in = 10

[[cost.option]]
name = "vm"
title = "t"
region = "r"
currency = "USD"
as-of = "2026-11-02"
source = "s"
vm = { per-month = 3 }
"#;

/// A record without trials, whose scenario has this text.
fn run(scenario: &str) -> Run {
    let plan = serde_json::json!({ "min_rounds": 6, "max_rounds": 6, "budget_s": 60.0, "target_half_width": 0.02,
                                   "equivalence_margin": 0.03, "max_steal_ratio": 0.05 });
    serde_json::from_value(serde_json::json!({
        "schema": SCHEMA_VERSION, "weir": "0.1.0", "id": "x", "scenario": "priced", "title": "t",
        "scenario_toml": scenario, "seed": 1, "started": "2026-01-01T00:00:00Z", "ended": null,
        "status": { "state": "rounds-done" }, "plan": plan, "variants": [], "workloads": [], "testbed": "",
        "hosts": [], "trials": [], "results": null, "notes": [],
    }))
    .unwrap()
}

/// The sentence about money.
fn money(scenario: &str) -> Option<String> {
    let mut run = run(scenario);
    conclude(&mut run);
    assert!(run.results.is_some());
    run.summary.unwrap().money
}

#[test]
fn the_money_is_that_of_the_scenario() {
    let priced = format!("{SCENARIO}{COST}");
    // 730 h of a VM at 3 USD a month, whatever the traffic.
    let said = "Money: 0 GB out and 10 GB in over 730 h cost 3.00 USD with vm at the prices of 2026-11-02.";
    assert_eq!(money(&priced).as_deref(), Some(said));
    assert_eq!(money(SCENARIO), None);
}

#[test]
fn prices_that_cannot_be_read_are_named() {
    let unreadable = "Money: the prices of this run cannot be read; weir cost --run names the reason.";
    let lost =
        format!("{SCENARIO}{COST}").replace("gb-in = 10", "gb-in = 10\nprices = \"/nowhere/prices.toml\"");
    assert_eq!(money(&lost).as_deref(), Some(unreadable));
    // Another version's scenario.
    assert_eq!(money(&format!("{SCENARIO}{COST}more = 1\n")).as_deref(), Some(unreadable));
    assert_eq!(money("more = 1\n"), None);
}
