//! Options of `weir bench`, `scenario`, `report` and `compare`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Heading of the options about results.
const RESULTS: &str = "Results";

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Built-in scenario (see `weir scenario list`) or TOML file
    #[arg(default_value = "nat-instance")]
    pub(crate) scenario: String,
    /// Apply one of the scenario's presets
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Measure only this variant and the baseline; may be repeated
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Measure only this workload; may be repeated
    #[arg(long = "workload", value_name = "NAME")]
    pub(crate) workloads: Vec<String>,
    /// Number of rounds, or least and most (examples: 8, 6..20)
    #[arg(long, value_name = "N|MIN..MAX")]
    pub(crate) rounds: Option<String>,
    /// Start no new round after TIME (examples: 90s, 10m)
    #[arg(long, value_name = "TIME")]
    pub(crate) budget: Option<String>,
    /// Set a value of the scenario (example: plan.max-rounds=8); may be repeated, in any order
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Seed of every random draw (default: a new one, kept in the record)
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print the scenario and its expected time, without running it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Folder for run.json and report.html (default: runs/SCENARIO-TIME-RANDOM)
    #[arg(short, long, value_name = "DIR", help_heading = RESULTS)]
    pub(crate) output: Option<PathBuf>,
    /// Exit with 3 unless CONDITION holds (example: 'nft-masquerade.tcp-egress >= 0.9 x routed'); may be repeated
    #[arg(long = "require", value_name = "CONDITION", help_heading = RESULTS)]
    pub(crate) require: Vec<String>,
    /// Print the record as JSON instead of the table
    #[arg(long, help_heading = RESULTS)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ScenarioArgs {
    #[command(subcommand)]
    pub(crate) command: ScenarioCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScenarioCommand {
    /// List the built-in scenarios
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a scenario's TOML, as a start for your own
    Show {
        /// Name or file
        scenario: String,
    },
    /// Check a scenario file without running it
    Check {
        /// Name or file
        scenario: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Folder of a run, its run.json, or a recording of `weir flows --save`
    pub(crate) run: PathBuf,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Exit with 3 unless CONDITION holds (example: 'nft-masquerade.tcp-egress >= 0.9 x routed'); may be repeated
    #[arg(long = "require", value_name = "CONDITION")]
    pub(crate) require: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
#[command(next_help_heading = "Format, one of")]
pub(crate) struct Format {
    /// One self-contained HTML page
    #[arg(long)]
    pub(crate) html: bool,
    /// Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Every metric of every trial, one per line
    #[arg(long)]
    pub(crate) csv: bool,
    /// The results, one per line
    #[arg(long)]
    pub(crate) csv_summary: bool,
    /// Ways to connect and the effects of their labels, one per line (scenarios with [patterns])
    #[arg(long)]
    pub(crate) csv_patterns: bool,
    /// The record with its results, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Earlier run, or result of `weir nat`
    pub(crate) before: PathBuf,
    /// Later run
    pub(crate) after: PathBuf,
    /// Print Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
