//! A record of the first layout is read, and concludes what the version of weir that wrote it concluded.

use std::path::Path;

use serde_json::Value;
use weir_bench::{analysis, store};
use weir_record::Source;

/// Written by `weir bench` of commit 20310f4: a hop in which nothing fails.
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/version-1.json");

/// Every value of the first that the second lacks or has differently, to the last bit.
fn differences(first: &Value, second: &Value, place: &str, found: &mut Vec<String>) -> usize {
    match (first, second) {
        (Value::Object(first), Value::Object(_)) => first
            .iter()
            .map(|(key, value)| differences(value, &second[key], &format!("{place}/{key}"), found))
            .sum(),
        (Value::Array(first), Value::Array(other)) if first.len() == other.len() => {
            let pairs = first.iter().zip(other).enumerate();
            pairs.map(|(n, (a, b))| differences(a, b, &format!("{place}/{n}"), found)).sum()
        }
        _ => {
            if first != second {
                found.push(format!("{place}: {first} and {second}"));
            }
            1
        }
    }
}

#[test]
fn where_nothing_fails_the_conclusions_are_the_same_to_the_last_bit() {
    let run = store::read(Path::new(RECORD)).unwrap();
    assert!(run.trials.iter().any(|trial| !trial.is_void()));
    let written: Value = serde_json::from_slice(&std::fs::read(RECORD).unwrap()).unwrap();
    let concluded = serde_json::to_value(analysis::analyse(&run)).unwrap();
    let mut found = Vec::new();
    let values = differences(&written["results"], &concluded, "", &mut found);
    println!("{values} values");
    assert!(values > 1000 && found.is_empty(), "{found:#?}");
}

#[test]
fn the_percentiles_of_an_old_record_are_marked() {
    let run = store::read(Path::new(RECORD)).unwrap();
    let defs = run.workloads.iter().flat_map(|w| &w.metrics);
    let quantiles: Vec<_> = defs.filter(|def| matches!(def.source, Source::Quantile { .. })).collect();
    assert!(quantiles.len() >= 4 && quantiles.iter().all(|def| def.label.ends_with("(of those answered)")));
    assert!(run.notes.iter().any(|note| note.contains("percentiles are of answered operations only")));
}

#[test]
fn the_failures_of_an_old_record_count() {
    let mut run = store::read(Path::new(RECORD)).unwrap();
    let defs = run.workloads.iter().flat_map(|w| &w.metrics).filter(|def| def.failure.is_some());
    let names: Vec<&str> = defs.map(|def| def.name.as_str()).collect();
    assert_eq!(names, ["unanswered_ratio", "connect_failed_ratio"]);
    let other = run.variants.iter().find(|v| !v.baseline && v.twin_of.is_none()).unwrap().name.clone();
    for trial in run.trials.iter_mut().filter(|t| t.variant == other && t.workload == "connect") {
        trial.metrics.insert("connect_failed_ratio".to_owned(), 0.5);
    }
    let results = analysis::analyse(&run);
    let share = results.cell("connect", "connect_failed_ratio", &other).unwrap();
    assert_eq!(share.estimate.unwrap().center, 0.5);
    run.results = Some(results);
    let text = weir_report::summary(&run, run.results.as_ref().unwrap(), None).result;
    assert!(text.contains(&format!("{other} fails 50 % of connect")), "{text}");
}
