//! Commands and options: help, man page and completions come from here.

pub(crate) mod allow;
pub(crate) mod in_effect;
pub(crate) mod mtu;
pub(crate) mod probe;
pub(crate) mod publish;
pub(crate) mod tune;

mod bench;
mod conntrack;
mod cost;
mod doctor;
mod lab;
mod pages;
#[cfg(test)]
mod tests;
pub(crate) mod time;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::exit::{Failure, Outcome, USAGE};
use crate::output::{When, unwritten};

pub(crate) use bench::{BenchArgs, CompareArgs, ReportArgs, ScenarioArgs, ScenarioCommand};
pub(crate) use conntrack::ConntrackArgs;
pub(crate) use cost::CostArgs;
pub(crate) use doctor::{DoctorArgs, DoctorCommand, FailOn, SelftestArgs};
pub(crate) use lab::{LabArgs, LabCommand};

/// Place of options that every command has: behind its own, before `--help`.
const LAST: usize = 998;

/// What a hop in a network path costs, and why
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "What the hop in a network path costs: NAT instance, firewall, Docker host, gateway"
)]
pub(crate) struct Cli {
    /// Colour: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN", hide_possible_values = true,
          display_order = LAST)]
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
    /// Country and prefix lists: download, check, and filter this host's packets by them
    Allow(allow::AllowArgs),
    /// Published ports of containers without connection tracking: planned, on trial, confirmed, removed
    Publish(publish::PublishArgs),
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
    /// Print the man page (roff), or write one page for each command
    Man {
        /// Folder to write them to, made if it is not there
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
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
pub(crate) fn tell(error: &clap::Error) -> Outcome {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if error.use_stderr() => Err(Failure::Silent(USAGE)),
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(&e)),
        _ => Ok(()),
    }
}
