//! The scenario `docker-nat` with too small a table of connections: few requests end, and those that end are fast.

use serde_json::Value;
use weir_testkit::World;

use super::hops;
use super::impairment::Harm;

const VARIANT: &str = "nat-starved";
const BASELINE: &str = "host-network";
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Its workload as it is, for `make soak`.
pub(crate) const FULL: &[&str] = &["plan.max-steal=1.0"];

/// A tenth of clients, entries and time, for `make test`.
pub(crate) const SMALL: &[&str] = &[
    "plan.max-steal=1.0",
    "plan.diagnose=false",
    "plan.duration=400ms",
    "workload.clients-5000.connections=400",
    "workload.clients-5000.requests=2000",
    "variant.nat-starved.host-sysctls={ \"net.netfilter.nf_conntrack_max\" = \"100\" }",
];

/// Everything that weir said wrong about it; `None` where this machine's limit cannot be written.
pub(crate) fn wrong(world: &World, changes: &[&str]) -> Option<Vec<String>> {
    let limit = || world.sh(&format!("test -w {LIMIT} && cat {LIMIT} || true")).trim_end().to_owned();
    let before = limit();
    if before.is_empty() {
        println!("SKIP: needs a writable {LIMIT} (modprobe nf_conntrack)");
        return None;
    }
    let mut args =
        vec!["docker-nat", "--preset", "quick", "--variant", VARIANT, "--workload", "clients-5000"];
    args.extend(changes.iter().flat_map(|change| ["--set", change]));
    let run = hops::bench(world, "starved", &args).unwrap();
    let mut wrong = hops::wrong(world, "starved", &run, VARIANT, (Harm::Fails, 5));
    let (text, _) = hops::report(world, "starved", &[]);
    println!("{text}");
    let (page, _) = hops::report(world, "starved", &["--html"]);
    wrong.extend(contradictions(&run, &page));
    if limit() != before {
        wrong.push(format!("nf_conntrack_max was {before} and is {}", limit()));
    }
    Some(wrong)
}

/// Rows of the page, which has every metric, whose values and effect point in opposite directions, beyond what the effect's interval
/// allows, without a mark that says why.
fn contradictions(run: &Value, page: &str) -> Vec<String> {
    let cell = |metric: &Value, variant: &str| {
        let mut cells = run["results"]["cells"].as_array().unwrap().iter();
        cells.find(|c| c["metric"] == *metric && c["variant"] == variant).cloned()
    };
    let number = |v: &Value| if v == "infinite" { f64::INFINITY } else { v.as_f64().unwrap_or(f64::NAN) };
    let metrics = run["workloads"][0]["metrics"].as_array().unwrap().iter();
    let mut found = Vec::new();
    for metric in metrics.filter(|m| m["scale"] == "ratio") {
        let (Some(own), Some(base)) = (cell(&metric["name"], VARIANT), cell(&metric["name"], BASELINE))
        else {
            continue;
        };
        let (own_value, base_value) =
            (number(&own["estimate"]["center"]), number(&base["estimate"]["center"]));
        let effect = number(&own["comparison"]["estimate"]);
        let opposed = (own_value > base_value && effect < 1.0) || (own_value < base_value && effect > 1.0);
        let interval = own["comparison"]["interval"].as_array();
        let allowed =
            interval.is_some_and(|i| (number(&i[0])..=number(&i[1])).contains(&(own_value / base_value)));
        let label = metric["label"].as_str().unwrap();
        let head = format!(">{label}<");
        let mut rows = page.split("<tr>").filter(|row| row.contains(&head));
        if opposed && !allowed && !rows.any(|row| row.contains('†')) {
            found.push(format!("{label}: {own_value} against {base_value}, and an effect of {effect}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_greater_value_with_a_smaller_effect_needs_a_mark() {
        let run = |effect: f64, interval: [f64; 2]| {
            let metrics = json!([{ "name": "p99", "label": "latency p99", "scale": "ratio" }]);
            let cell = |variant, center: f64, effect: Value| {
                json!({ "metric": "p99", "variant": variant, "estimate": { "center": center },
                        "comparison": { "estimate": effect, "interval": interval } })
            };
            let cells = [cell(VARIANT, 4098.0, json!(effect)), cell(BASELINE, 219.0, Value::Null)];
            json!({ "workloads": [{ "metrics": metrics }], "results": { "cells": cells } })
        };
        let row = "<tr><th>latency p99</th><td>219 ms</td><td>4098 ms <span>faster by 82 %</span></td></tr>";
        let narrow = [0.1, 0.3];
        assert_eq!(contradictions(&run(0.18, narrow), row).len(), 1);
        assert_eq!(contradictions(&run(0.18, narrow), &row.replace(" %", " % †")), [""; 0]);
        let elsewhere = format!("{row}<tr><th>latency p90</th><td>faster by 3 % †</td></tr>");
        assert_eq!(contradictions(&run(0.18, narrow), &elsewhere).len(), 1);
        assert_eq!(contradictions(&run(18.7, [15.0, 20.0]), row), [""; 0]);
        assert_eq!(contradictions(&run(0.9, [0.5, 20.0]), row), [""; 0], "neither is known better");
    }
}
