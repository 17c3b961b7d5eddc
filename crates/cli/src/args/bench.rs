//! Options of `weir bench`, and of what is done with scenarios and runs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Heading of the options that say what is done with results.
const RESULTS: &str = "Results";

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A built-in scenario (see `weir scenario list`) or a TOML file
    #[arg(default_value = "nat-instance")]
    pub(crate) scenario: String,
    /// Apply one of the scenario's presets
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Only these variants, and the baseline; may be repeated
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Only these workloads; may be repeated
    #[arg(long = "workload", value_name = "NAME")]
    pub(crate) workloads: Vec<String>,
    /// Rounds at least and at most, e.g. `8` or `6..20`
    #[arg(long, value_name = "N|MIN..MAX")]
    pub(crate) rounds: Option<String>,
    /// Time budget, e.g. `90s`, `10m`
    #[arg(long, value_name = "TIME")]
    pub(crate) budget: Option<String>,
    /// Set a value of the scenario, e.g. `plan.max-rounds=8`; may be repeated, in any order
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Seed of every random draw; by default a new one, kept in the record
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Say what would be run, and how long it would take, and end
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Folder for run.json and report.html; by default runs/SCENARIO-TIME-RANDOM
    #[arg(short, long, value_name = "DIR", help_heading = RESULTS)]
    pub(crate) output: Option<PathBuf>,
    /// Exit with 3 unless this holds, e.g. 'nft-masquerade.tcp-egress >= 0.9 x routed'; may be repeated
    #[arg(long = "require", value_name = "CONDITION", help_heading = RESULTS)]
    pub(crate) require: Vec<String>,
    /// Print the record as JSON instead of the table
    #[arg(long, help_heading = RESULTS)]
    pub(crate) json: bool,
    /// No progress on standard error
    #[arg(short, long, help_heading = RESULTS)]
    pub(crate) quiet: bool,
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
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a scenario's TOML: what to start from
    Show {
        /// Name or file
        scenario: String,
    },
    /// Check a scenario file without running it
    Check {
        /// Name or file
        scenario: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A run's folder or its run.json
    pub(crate) run: PathBuf,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Exit with 3 unless this holds, e.g. 'nft-masquerade.tcp-egress >= 0.9 x routed'; may be repeated
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
    /// Every trial's every metric, one per line
    #[arg(long)]
    pub(crate) csv: bool,
    /// The results, one per line
    #[arg(long)]
    pub(crate) csv_summary: bool,
    /// Ways to connect and what their labels do, one per line (scenarios with [patterns])
    #[arg(long)]
    pub(crate) csv_patterns: bool,
    /// The record with its results, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The earlier run
    pub(crate) before: PathBuf,
    /// The later run
    pub(crate) after: PathBuf,
    /// As Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
