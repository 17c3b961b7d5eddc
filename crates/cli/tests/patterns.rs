//! Two gateways behind one name, made by the lab's link, are found; a path that is what it is is not said to jump.

mod measure;

use measure::{bench, turn, world};
use weir_record::Patterns;
use weir_stats::repeats::Repeatability;
use weir_testkit::measured;

const IPTABLES: &str = "iptables";

const SCENARIO: &str = r#"name = "two"
title = "A test"
[testbed]
kind = "lab"
[plan]
baseline = "steady"
min-rounds = 8
max-rounds = 8
budget = "120s"
twin = false
warmup = "100ms"
duration = "750ms"
max-steal = 1.0
[patterns]
repeats = "repeats"
[[variant]]
name = "steady"
kind = "path"
link = { delay = "0.9ms" }
[[variant]]
name = "jumping"
kind = "path"
link = { delays = ["0.9ms", "1.5ms"] }
[[workload]]
name = "repeats"
kind = "tcp-rr"
window = 100
"#;

/// The delay that the link adds to a round trip of each path, ns: both directions.
const NEAR: f64 = 1.8e6;
const FAR: f64 = 3.0e6;

/// Eight connections meet one of two gateways only once in 128 runs; a busy machine makes delays late now and then.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 4;

#[test]
fn root_paced_a_gateway_chosen_per_connection_is_found_and_none_where_there_is_one() {
    let Some(world) = world(&[IPTABLES]) else { return };
    let _turn = turn();
    measured(NEEDED, ATTEMPTS, |_| {
        let measured = bench(&world, SCENARIO);
        let found = measured.run.results.as_ref().unwrap().patterns.as_ref().unwrap();
        println!("{found:#?}");
        is_right(found)
    });
}

/// The path through two gateways jumps between two levels that are as far apart as their delays, the lower one that of the path
/// through one, which does not jump. The hosts add their own time to a round trip, and more on a slow machine; no round trip is
/// shorter than the delays.
fn is_right(found: &Patterns) -> bool {
    let of = |name: &str| found.patterns.iter().find(|p| p.variant == name).unwrap();
    let (steady, jumping) = (of("steady"), of("jumping"));
    let near = |value: f64, truth: f64| (value / truth - 1.0).abs() < 0.1;
    let levels: Vec<f64> = jumping.levels.iter().map(|l| l.center).collect();
    let Some(one) = steady.components.map(|c| c.mean) else { return false };
    jumping.verdict == Repeatability::Jumps
        && steady.verdict != Repeatability::Jumps
        && one >= NEAR
        && matches!(levels[..], [low, high] if low >= NEAR && near(low, one) && near(high - low, FAR - NEAR))
}
