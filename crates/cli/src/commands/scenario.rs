//! `weir scenario`.

use schemars::JsonSchema;
use serde::Serialize;
use weir_bench::scenario::{Scenario, built_in};
use weir_report::words::plural;
use weir_text::time::duration;

use crate::args::{ScenarioArgs, ScenarioCommand};
use crate::commands::find_scenario;
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, Failure};
use crate::output::{print, range};

/// `weir scenario check --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checked<'a> {
    /// Name of a built-in scenario, or the file.
    origin: &'a str,
    /// The scenario's own name.
    name: &'a str,
    /// Trials of one round.
    trials_per_round: usize,
    /// Shortest expected duration, s.
    seconds_least: f64,
    /// Longest expected duration, s.
    seconds_most: f64,
}

impl Document for Checked<'_> {
    const KIND: Kind = Kind::ScenarioCheck;
}

/// `weir scenario list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BuiltIn<'a> {
    /// The built-in scenarios.
    scenarios: Vec<Summary<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Summary<'a> {
    /// Name for `weir bench`.
    name: &'a str,
    /// Its question.
    title: String,
    /// Names of its variants.
    variants: Vec<String>,
    /// Names of its presets.
    presets: Vec<String>,
    /// Longest expected duration, s.
    seconds: f64,
}

impl Document for BuiltIn<'_> {
    const KIND: Kind = Kind::ScenarioList;
}

pub(crate) fn run(args: &ScenarioArgs) -> CommandResult {
    match &args.command {
        ScenarioCommand::List { json } => list(*json),
        ScenarioCommand::Show { scenario } => {
            let (text, _) = find_scenario(scenario)?;
            print(&text)
        }
        ScenarioCommand::Check { scenario, json } => {
            let (text, origin) = find_scenario(scenario)?;
            let scenario = Scenario::load(&text, &origin).map_err(Failure::usage)?;
            let (least, most) = scenario.expected_seconds();
            if *json {
                return print_json(&Checked {
                    origin: &origin,
                    name: &scenario.name,
                    trials_per_round: scenario.trials_per_round(),
                    seconds_least: least,
                    seconds_most: most,
                });
            }
            print(&format!(
                "{origin}: valid; {} a round, about {}\n",
                plural(scenario.trials_per_round(), "trial"),
                range(duration(least), duration(most))
            ))
        }
    }
}

fn list(json: bool) -> CommandResult {
    let column = built_in().iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut scenarios = Vec::new();
    for (name, text) in built_in() {
        let scenario = Scenario::load(text, name).map_err(Failure::failed)?;
        let presets: Vec<String> = scenario.presets.keys().cloned().collect();
        if !json {
            print(&format!(
                "{name:<column$} {}\n{:<column$} {}, {}, up to {}{}\n",
                scenario.title,
                "",
                plural(scenario.variants.len(), "variant"),
                plural(scenario.workloads.len(), "workload"),
                duration(scenario.expected_seconds().1),
                if presets.is_empty() { String::new() } else { format!("; presets: {}", presets.join(", ")) }
            ))?;
        }
        scenarios.push(Summary {
            name,
            variants: scenario.variants.iter().map(|v| v.name.clone()).collect(),
            presets,
            seconds: scenario.expected_seconds().1,
            title: scenario.title,
        });
    }
    if json { print_json(&BuiltIn { scenarios }) } else { Ok(()) }
}
