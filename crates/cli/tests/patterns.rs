//! Two gateways behind one name, made by the lab's link, are found; a path that is what it is is not said to jump.

mod measure;

use measure::{bench, turn, world};
use weir_stats::repeats::Repeatability;

const IPTABLES: (&str, &str) = ("iptables", "iptables");

const SCENARIO: &str = r#"name = "two"
title = "A test"
[testbed]
kind = "lab"
[plan]
baseline = "steady"
min-rounds = 8
max-rounds = 8
budget = "120s"
warmup = "100ms"
duration = "1500ms"
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

/// Eight connections meet one of two gateways only once in 128 runs; a busy machine makes delays late now and then.
const ATTEMPTS: usize = 3;

#[test]
fn root_a_gateway_chosen_per_connection_is_found_and_none_where_there_is_one() {
    let Some(world) = world(&[IPTABLES]) else { return };
    let _turn = turn();
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let measured = bench(&world, SCENARIO);
        let found = measured.run.results.as_ref().unwrap().patterns.as_ref().unwrap();
        let of = |name: &str| found.patterns.iter().find(|p| p.variant == name).unwrap();
        let (steady, jumping) = (of("steady"), of("jumping"));
        let near = |center: f64, truth: f64| (center / truth - 1.0).abs() < 0.1;
        let levels: Vec<f64> = jumping.levels.iter().map(|l| l.center).collect();
        let right = jumping.verdict == Repeatability::Jumps
            && steady.verdict != Repeatability::Jumps
            && matches!(levels[..], [low, high] if near(low, 1.9e6) && near(high, 3.1e6));
        if right {
            return;
        }
        seen.push(format!("{steady:?}\n{jumping:?}"));
    }
    panic!("{}", seen.join("\n\n"));
}
