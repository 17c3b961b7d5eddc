//! Commands and options: help, man page and completions come from here.

pub(crate) mod allow;
pub(crate) mod fastpath;
pub(crate) mod in_effect;
pub(crate) mod mtu;
pub(crate) mod nat;
pub(crate) mod probe;
pub(crate) mod publish;
pub(crate) mod tune;

mod bench;
mod conntrack;
mod cost;
mod doctor;
mod export;
mod flows;
mod lab;
mod pages;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod time;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::documents::Kind;
use crate::exit::{CommandResult, Failure, USAGE};
use crate::output::{When, unwritten};

pub(crate) use bench::{BenchArgs, CompareArgs, ReportArgs, ScenarioArgs, ScenarioCommand};
pub(crate) use conntrack::ConntrackArgs;
pub(crate) use cost::CostArgs;
pub(crate) use doctor::{DoctorArgs, DoctorCommand, FailOn, SelftestArgs};
pub(crate) use export::{ExportArgs, Without};
pub(crate) use flows::{FlowsArgs, TrackingArgs};
pub(crate) use lab::{LabArgs, LabCommand};

/// Place of options that every command has: behind its own, before `--help`.
const LAST: usize = 998;

/// Measure a network hop, explain its losses, improve it safely
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "Find out why a Linux gateway drops packets, what it costs, and which setup is faster"
)]
pub(crate) struct Cli {
    /// Colour: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN", hide_possible_values = true,
          display_order = LAST)]
    pub(crate) color: When,
    /// Print no notes and no progress on standard error, only warnings and failures
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = LAST)]
    pub(crate) quiet: bool,
    /// Print each step on standard error, with the time since the start
    #[arg(short, long, global = true, display_order = LAST)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario and compare its variants
    Bench(BenchArgs),
    /// List, print and check scenarios
    Scenario(ScenarioArgs),
    /// Render a stored run again
    Report(ReportArgs),
    /// Compare two runs of one scenario
    Compare(CompareArgs),
    /// Price a managed gateway against your own, per month
    Cost(CostArgs),
    /// Download and check country and prefix lists, and filter this host's packets by them
    Allow(allow::AllowArgs),
    /// Forward published container ports by BPF, bypassing conntrack and firewall rules
    Publish(publish::PublishArgs),
    /// Carry established connections past the rules that decided about them: faster NAT and forwarding
    Fastpath(fastpath::FastpathArgs),
    /// Measure a path to `weir serve`, an iperf3 server, any TCP port, or an HTTP server
    Probe(Box<probe::ProbeArgs>),
    /// Answer `weir probe` and stock iperf3 clients
    Serve(probe::ServeArgs),
    /// Measure the path MTU and the fate of fragments
    Mtu(mtu::MtuArgs),
    /// Measure what a NAT does, and which requirements of the RFCs it meets
    Nat(nat::NatArgs),
    /// Show the connection-tracking table: fill level, top users, SNAT ports, memory
    Conntrack(ConntrackArgs),
    /// Show the traffic that passes this host: delay and loss on either side, by network and flow
    Flows(FlowsArgs),
    /// Serve metrics of flows and connection tracking to Prometheus, on loopback
    Export(ExportArgs),
    /// Watch this host and name the causes of lost or delayed packets, with fixes
    Doctor(DoctorArgs),
    /// Plan, apply on trial, confirm, roll back and prove kernel settings
    Tune(tune::TuneArgs),
    /// List, enter and clean up the labs on this machine
    Lab(LabArgs),
    /// List the kinds of JSON documents, or print the JSON Schema of one
    Schema {
        /// Kind of a document, such as doctor or tune-plan (default: list them)
        #[arg(value_enum, hide_possible_values = true)]
        kind: Option<Kind>,
    },
    /// Print a completion script
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print the man page (roff), or write one page for each command
    Man {
        /// Folder for the pages; created if missing
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Run on one host of a testbed, speaking on standard input and output
    #[command(hide = true)]
    Agent,
    /// Roll a change set back unless it is confirmed
    #[command(hide = true)]
    Guard {
        /// Command that owns the set
        by: String,
        /// Name of the set
        id: String,
        /// Started by its partner, which it restarts when that one dies
        #[arg(long, conflicts_with = "alone")]
        beside: bool,
        /// Started by a timer, without a partner
        #[arg(long)]
        alone: bool,
    },
}

/// All commands with all that help says of them: what help, man pages and completions are made from.
pub(crate) fn command() -> clap::Command {
    pages::put_into(Cli::command())
}

/// The command line of this process; help and wrong usage are clap's errors, see [`tell`].
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches))
}

/// Prints help, or what is wrong with the usage. Help that cannot be printed is a failure like that of any other output,
/// which clap's own way out would pass over.
pub(crate) fn tell(error: &clap::Error) -> CommandResult {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if error.use_stderr() => Err(Failure::Silent(USAGE)),
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(&e)),
        _ => Ok(()),
    }
}
