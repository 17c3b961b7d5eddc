//! `[patterns]`: variants as ways to connect, and whether they jump between repeats.

use serde::Deserialize;
use toml_edit::{DocumentMut, Item, Table};
use weir_load::Workload;
use weir_record::PatternPlan;
use weir_stats::repeats::LEAST_REPEATS;

use super::problem::{Source, as_table};
use super::section::{Result, Section};
use super::{Load, WorkloadEntry, check};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPatterns {
    repeats: String,
    once: Option<String>,
}

/// Reads the section, if there is one.
pub(super) fn read(
    source: Source<'_>,
    root: &Table,
    workloads: &[WorkloadEntry],
) -> Result<Option<PatternPlan>> {
    let Some(item) = root.get("patterns") else { return Ok(None) };
    let Some(table) = as_table(item) else {
        let what = "`patterns` must be a table, begun by [patterns]".to_owned();
        return Err(source.error(item.span(), what, None));
    };
    let section = Section { source, table: &table, heading: "[patterns]" };
    let RawPatterns { repeats, once } = section.read(&table, &[], &|_| Ok(()))?;
    let known: Vec<&str> = workloads.iter().map(|w| w.name.as_str()).collect();
    for (key, name) in [("repeats", Some(&repeats)), ("once", once.as_ref())] {
        let Some(name) = name else { continue };
        check::chosen(&section, key, std::slice::from_ref(name), &known)?;
        let entry = workloads.iter().find(|w| w.name == *name);
        if let Some(what) = entry.and_then(|entry| unfit(key, entry)) {
            return Err(section.error(Some(key), format!("{key} = \"{name}\": {what}"), None));
        }
    }
    if once.as_ref() == Some(&repeats) {
        let what = format!("\"{repeats}\" cannot be in both columns");
        return Err(section.error(Some("once"), what, None));
    }
    Ok(Some(PatternPlan { repeats, once }))
}

/// Why a workload does not tell whether a path jumps.
fn unfit(key: &str, entry: &WorkloadEntry) -> Option<String> {
    let connections = match &entry.workload {
        Load::Sockets(Workload::TcpRr(w)) => w.connections,
        Load::Sockets(Workload::UdpRr(w)) => w.connections,
        other => {
            return Some(format!("it is {}, and repeats are of kind tcp-rr or udp-rr", other.kind()));
        }
    };
    // Each connection may take another path, and the windows of several are one series.
    if connections != 1 {
        return Some(format!("it has connections = {connections}; each repeat needs one of its own"));
    }
    match entry.rounds {
        Some(rounds) if key == "repeats" && (rounds as usize) < LEAST_REPEATS => {
            Some(format!("it has rounds = {rounds}; patterns need at least {LEAST_REPEATS} repeats"))
        }
        _ => None,
    }
}

/// Takes out what refers to workloads that are left out: a column, or with the repeats all of it.
pub(super) fn keep(document: &mut DocumentMut, patterns: Option<&PatternPlan>, kept: &dyn Fn(&str) -> bool) {
    let Some(patterns) = patterns else { return };
    if !kept(&patterns.repeats) {
        document.remove("patterns");
    } else if patterns.once.as_deref().is_some_and(|once| !kept(once))
        && let Some(table) = document.get_mut("patterns").and_then(Item::as_table_like_mut)
    {
        table.remove("once");
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    /// Every line has its place in the table below.
    const PATTERNS: &str = r#"name = "ways"
title = "Ways"
[patterns]
repeats = "short"
once = "long"
[preset.study]
plan = { min-rounds = 4, max-rounds = 4 }
set = ["workload.long.duration=60s", "workload.short.duration=10s"]
[[variant]]
kind = "path"
labels = { zone = "1" }
[[workload]]
name = "long"
kind = "tcp-rr"
rounds = 1
duration = "5s"
[[workload]]
name = "short"
kind = "tcp-rr"
connections = 1
rounds = 20
[[workload]]
name = "bulk"
kind = "tcp-stream"
"#;

    fn read(text: &str) -> Scenario {
        Scenario::load(text, "ways.toml").unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn rounds_of_a_workload_are_the_first_ones() {
        let scenario = read(PATTERNS);
        let in_round = |round| scenario.workloads.iter().filter(|w| w.is_in_round(round)).count();
        assert_eq!((in_round(0), in_round(1), in_round(19), in_round(20)), (3, 2, 2, 1));
        // Two variants (one is the twin); 0.3 s of warm-up and 0.05 s around each trial; 6 to 30 rounds.
        let (least, most) = scenario.expected_seconds();
        assert!((least - 2.0 * (5.35 + 6.0 * 1.35 + 6.0 * 1.35)).abs() < 1e-9, "{least}");
        assert!((most - 2.0 * (5.35 + 20.0 * 1.35 + 30.0 * 1.35)).abs() < 1e-9, "{most}");
        // The first round took twice as long as it should have: the next one has no long trial.
        assert!((scenario.next_round_s(1, 4.0 * 8.05) - 4.0 * 2.7).abs() < 1e-9);
    }

    #[test]
    fn a_preset_sets_what_it_names() {
        let mut scenario = read(PATTERNS);
        scenario.apply_preset("study").unwrap();
        let seconds: Vec<u64> = scenario.workloads.iter().map(|w| w.duration.as_secs()).collect();
        assert_eq!((seconds, scenario.plan.max_rounds), (vec![60, 10, 1], 4));
        assert_eq!(read(scenario.to_toml()), scenario, "what was run can be run again");
    }

    #[test]
    fn columns_go_with_their_workloads() {
        let left = |workload: &str| {
            let mut scenario = read(PATTERNS);
            scenario.select(&[], &[workload.to_owned()]).unwrap();
            scenario.patterns.map(|p| (p.repeats, p.once))
        };
        assert_eq!(left("short"), Some(("short".to_owned(), None)));
        assert_eq!(left("long"), None);
    }

    /// A text of [`PATTERNS`], its replacement, the line of the message, a part of it.
    const MISTAKES: &[(&str, &str, usize, &str)] = &[
        ("\"short\"\nonce", "\"shor\"\nonce", 4, "there is no \"shor\""),
        ("once = \"long\"", "once = \"short\"", 5, "cannot be in both columns"),
        ("once = \"long\"", "one = \"long\"", 5, "unknown key `one`"),
        ("once = \"long\"", "once = \"bulk\"", 5, "it is tcp-stream"),
        ("connections = 1", "connections = 2", 4, "connections = 2"),
        ("rounds = 20", "rounds = 3", 4, "at least 4 repeats"),
        ("rounds = 20", "rounds = 0", 21, "rounds = 0: valid is 1 to 1000"),
        ("long.duration=60s", "log.duration=60s", 8, "there is no workload \"log\""),
        ("long.duration=60s", "long.duration=60y", 8, "60y"),
    ];

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (here, instead, line, what) in MISTAKES {
            assert_eq!(PATTERNS.matches(here).count(), 1, "{here}");
            let error = Scenario::load(&PATTERNS.replace(here, instead), "ways.toml").unwrap_err();
            assert_eq!((error.line, error.what.contains(what)), (Some(*line), true), "{instead}: {error}");
        }
    }
}
