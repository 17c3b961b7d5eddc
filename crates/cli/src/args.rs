//! Commands and options: help, man page and completions come from here.

pub(crate) mod allow;
pub(crate) mod mtu;
pub(crate) mod probe;
pub(crate) mod tune;

mod doctor;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::output::When;

pub(crate) use doctor::{DoctorArgs, DoctorCommand, FailOn, SelftestArgs};

/// What a hop in a network path costs, and why
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "What the hop in a network path costs: NAT instance, firewall, Docker host, gateway",
    after_help = "Exit codes: 0 done; 1 the run failed; 2 wrong usage or bad input; 3 a threshold was not met;\n4 something \
                  weir needs is missing here (the message names it)."
)]
pub(crate) struct Cli {
    /// When to use colour; `auto` follows the terminal and NO_COLOR
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN")]
    pub(crate) color: When,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario and compare its variants
    Bench(BenchArgs),
    /// The built-in scenarios
    Scenario(ScenarioArgs),
    /// Render a stored run again
    Report(ReportArgs),
    /// Two runs of one scenario: what changed
    Compare(CompareArgs),
    /// What the hop costs a month, managed against self-run
    Cost(CostArgs),
    /// Country and prefix lists: download, build, check, compare, and put into effect on this host
    Allow(allow::AllowArgs),
    /// Measure towards a host that runs `weir serve`, an iperf3 server, any TCP port, or an HTTP server
    Probe(Box<probe::ProbeArgs>),
    /// Answer `weir probe` and stock iperf3 clients
    Serve(probe::ServeArgs),
    /// How large a packet the path carries, and what becomes of fragments
    Mtu(mtu::MtuArgs),
    /// The connection-tracking table: who fills it, how full it is, SNAT ports, memory
    Conntrack(ConntrackArgs),
    /// Watch this host under its own load: what loses or delays packets, and what to do
    Doctor(DoctorArgs),
    /// Settings for this host: planned, applied on trial, confirmed or taken back, proved
    Tune(tune::TuneArgs),
    /// The labs on this machine: list, enter, clean up
    Lab(LabArgs),
    /// Print the JSON schema of run.json
    Schema,
    /// Print a completion script
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the man page (roff)
    Man,
    /// The process that runs on each host, speaking on its standard input and output
    #[command(hide = true)]
    Agent,
    /// The process that takes a change set back unless it is confirmed
    #[command(hide = true)]
    Guard {
        /// The command whose set it is
        by: String,
        /// Name of the set
        id: String,
    },
}

#[derive(Debug, Args)]
#[command(
    long_about = "Run a scenario and compare its variants.\n\nBuilds the scenario's hosts (network namespaces on this machine, \
                  or agents on real hosts), proves that each variant is in effect, measures every workload on every variant \
                  in randomised rounds, and says what each variant costs against the baseline, with 95 % intervals.\n\nTraffic \
                  goes only between the hosts of the scenario."
)]
pub(crate) struct BenchArgs {
    /// A built-in scenario (see `weir scenario list`) or a TOML file
    #[arg(default_value = "nat-instance")]
    pub(crate) scenario: String,
    /// Apply one of the scenario's presets
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Set a value of the scenario, e.g. `plan.max-rounds=8`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
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
    /// Seed of every random draw; by default a new one, kept in the record
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Folder for run.json and report.html; by default runs/SCENARIO-TIME-RANDOM
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Exit with 3 unless this holds, e.g. 'nft-masquerade.tcp-egress >= 0.9 x routed'; may be repeated
    #[arg(long = "require", value_name = "CONDITION")]
    pub(crate) require: Vec<String>,
    /// Print the record as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Say what would be run, and how long it would take, and end
    #[arg(long)]
    pub(crate) dry_run: bool,
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
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A run's folder or its run.json
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) format: Format,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Exit with 3 unless this holds; may be repeated
    #[arg(long = "require", value_name = "CONDITION")]
    pub(crate) require: Vec<String>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
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

#[derive(Debug, Args)]
#[command(
    long_about = "What the hop costs a month, managed against self-run, with the break-even traffic.\n\nPrices are examples with \
                  source and date: check them against your provider's price list, and override them with --prices FILE."
)]
pub(crate) struct CostArgs {
    /// GB that leave the inside network in the period
    #[arg(long, default_value = "0", value_name = "GB")]
    pub(crate) gb_out: String,
    /// GB that come back in the period
    #[arg(long, default_value = "0", value_name = "GB")]
    pub(crate) gb_in: String,
    /// Hours in the period; a month has 730
    #[arg(long, default_value = "730")]
    pub(crate) hours: String,
    /// Options to compare; by default the managed gateway and the NAT instance; may be repeated
    #[arg(long = "option", value_name = "NAME")]
    pub(crate) options: Vec<String>,
    /// A TOML file with own prices, which go before the built-in ones of the same name
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// A run whose [cost] block and measured bit rates say what a Gbit/s costs
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<PathBuf>,
    /// List the known options with their prices and sources
    #[arg(long)]
    pub(crate) list: bool,
    /// As JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// As Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
}

#[derive(Debug, Args)]
#[command(
    long_about = "The connection-tracking table of a network namespace: how full it is, by protocol, state, address and port, \
                  SNAT ports against what NAT may give, and what it costs in memory.\n\nReads only. The entries need root; \
                  without it the rest is shown."
)]
pub(crate) struct ConntrackArgs {
    /// Another network namespace: a name of `ip netns`, a process id, or a path such as /proc/PID/ns/net
    #[arg(long, value_name = "NAME|PID|PATH")]
    pub(crate) netns: Option<String>,
    /// Lines of each ranking
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
    /// Only this protocol: a name or a number
    #[arg(long, value_name = "PROTOCOL")]
    pub(crate) protocol: Option<String>,
    /// Only TCP in this state, e.g. `established`, `time-wait`; may be repeated
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<String>,
    /// Only entries with this: assured, replied, unreplied, snat, dnat, expected, offload; may be repeated, all must hold
    #[arg(long = "flag", value_name = "FLAG")]
    pub(crate) flags: Vec<String>,
    /// Only connections opened from here: an address or a prefix
    #[arg(long, value_name = "PREFIX")]
    pub(crate) source: Option<String>,
    /// Only connections to here, as asked for or after translation: an address or a prefix
    #[arg(long, value_name = "PREFIX")]
    pub(crate) destination: Option<String>,
    /// Only this destination port, as asked for or after translation
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Only this zone
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<u16>,
    /// Only this mark, in decimal or as 0x...
    #[arg(long, value_name = "MARK[/MASK]")]
    pub(crate) mark: Option<String>,
    /// Stop after this many entries that match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// What would nf_conntrack_max = N cost?
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) max: Option<u64>,
    /// The port range of the SNAT rule, e.g. `10000-19999`; without it the nftables rules are read
    #[arg(long, value_name = "FIRST-LAST")]
    pub(crate) nat_ports: Option<String>,
    /// Again and again, every so many seconds, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    pub(crate) watch: Option<f64>,
    /// As JSON; with --watch one line each time
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Labs of running and of killed conductors
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop what killed conductors left behind
    Clean {
        /// Stop running conductors, too
        #[arg(long)]
        force: bool,
    },
    /// Run a command in a host of a running lab
    Exec {
        /// Identifier of the run (see `weir lab list`)
        run: String,
        /// Host as VARIANT/ROLE, e.g. `nft-masquerade/gateway`
        host: String,
        /// Command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
