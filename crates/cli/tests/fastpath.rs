//! Variants with a fast path in the lab: it carries the packets of their flows, of single frames and of sockets.

mod measure;

use measure::{bench, turn, world};
use weir_record::FaultCode;

const SCENARIO: &str = r#"name = "fast"
title = "A test"
[testbed]
kind = "lab"
[plan]
baseline = "plain"
twin = false
min-rounds = 1
max-rounds = 1
budget = "60s"
warmup = "200ms"
duration = "300ms"
max-steal = 1.0
[[variant]]
name = "plain"
kind = "nft-masquerade"
[[variant]]
name = "nft"
kind = "nft-masquerade"
fastpath = true
[[variant]]
name = "iptables"
kind = "iptables-masquerade"
fastpath = true
[[variant]]
name = "published"
kind = "docker-publish"
fastpath = true
[[workload]]
name = "one"
kind = "packets"
flows = 1
[[workload]]
name = "hundred"
kind = "packets"
flows = 100
[[workload]]
name = "stream"
kind = "tcp-stream"
[[workload]]
name = "connect"
kind = "tcp-connect"
"#;

#[test]
fn root_measured_the_fast_path_carries_long_flows_and_leaves_short_ones_to_the_rules() {
    let Some(world) = world(&["nft", "iptables-nft"]) else { return };
    let _turn = turn();
    let run = bench(&world, SCENARIO).run;
    let lost = run.trials.iter().flat_map(|t| &t.faults).find(|f| f.code == FaultCode::VariantLost);
    assert!(lost.is_none(), "{lost:?}");
    for trial in &run.trials {
        let share = trial.metrics.get("fastpath_carried_ratio").copied();
        let what = format!("{} {}: {share:?}", trial.variant, trial.workload);
        match (trial.variant.as_str(), trial.workload.as_str()) {
            ("plain", _) => assert_eq!(share, None, "{what}"),
            // Three segments there and two back: fewer than a flow needs to be learnt.
            (_, "connect") => assert!(share.is_some_and(|s| s < 0.01), "{what}"),
            (_, _) => assert!(share.is_some_and(|s| s > 0.9), "{what}"),
        }
    }
}
