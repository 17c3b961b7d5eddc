//! `weir scenario`.

use serde_json::json;
use weir_bench::scenario::{Scenario, built_in};
use weir_report::units::duration;
use weir_report::words::plural;

use crate::args::{ScenarioArgs, ScenarioCommand};
use crate::commands::find_scenario;
use crate::exit::{Failure, Outcome};
use crate::output::{print, print_json, range};

pub(crate) fn run(args: &ScenarioArgs) -> Outcome {
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
                return print_json(&json!({
                    "origin": origin, "name": scenario.name, "trials_per_round": scenario.trials_per_round(),
                    "seconds_least": least, "seconds_most": most,
                }));
            }
            print(&format!(
                "{origin}: valid; {} a round, about {}\n",
                plural(scenario.trials_per_round(), "trial"),
                range(duration(least), duration(most))
            ))
        }
    }
}

fn list(json: bool) -> Outcome {
    let column = built_in().iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut rows = Vec::new();
    for (name, text) in built_in() {
        let scenario = Scenario::load(text, name).map_err(Failure::failed)?;
        let variants: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
        let presets: Vec<&str> = scenario.presets.keys().map(String::as_str).collect();
        rows.push(json!({
            "name": name, "title": scenario.title, "variants": variants, "presets": presets,
            "seconds": scenario.expected_seconds().1,
        }));
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
    }
    if json { print_json(&rows) } else { Ok(()) }
}
