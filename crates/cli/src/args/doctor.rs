//! Options of `weir doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::shared::WatchArgs;
use super::time::{DAY, between};

/// Heading of the options about evidence.
const EVIDENCE: &str = "Evidence";

/// Shorter than 0.1 s, and nothing that happens now and then is seen.
fn window(text: &str) -> Result<Duration, String> {
    between(Duration::from_millis(100), DAY)(text)
}

/// `weir doctor`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DoctorArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DoctorCommand>,
    /// Watch for TIME (examples: 10, 90s, 2m, 500ms)
    #[arg(long = "for", default_value = "10s", value_name = "TIME", value_parser = window)]
    pub(crate) window: Duration,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// Watch only this network namespace: a name of `ip netns`, a process id, or a path such as /proc/PID/ns/net; may be repeated
    #[arg(long, value_name = "NAME|PID|PATH")]
    pub(crate) netns: Vec<String>,
    /// Watch only the current network namespace
    #[arg(long, conflicts_with = "netns")]
    pub(crate) own: bool,
    /// Run this load by the shell; its end also ends the window
    #[arg(long = "command", value_name = "COMMAND")]
    pub(crate) load: Option<String>,
    /// Compare with FILE, an earlier `weir doctor --json` report (- for standard input): better, worse, or not comparable
    #[arg(long, value_name = "FILE")]
    pub(crate) before: Option<String>,
    /// Explain the failing rows of FILE, a table of `weir nat check --json` or `weir nat lab --json` (- for standard input), by this host's settings and rules
    #[arg(long, value_name = "FILE")]
    pub(crate) nat: Option<String>,
    /// Exit with 3 on a finding of this severity or above
    #[arg(long, value_enum, default_value_t = FailOn::Never, value_name = "SEVERITY")]
    pub(crate) fail_on: FailOn,
    /// Print JSON instead of the page
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write the evidence to FILE
    #[arg(long, value_name = "FILE", help_heading = EVIDENCE)]
    pub(crate) save: Option<PathBuf>,
    /// Analyse the evidence of a file written by --save, instead of watching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["every", "netns", "own", "load", "save", "nat"], help_heading = EVIDENCE)]
    pub(crate) read: Option<PathBuf>,
    /// Skip this evidence source, by its name in the JSON (example: drops); may be repeated
    #[arg(long, value_name = "SOURCE", help_heading = EVIDENCE)]
    pub(crate) hide: Vec<String>,
}

/// Below which severity all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// Never fail
    Never,
    /// Fail on any finding
    Note,
    /// Fail on a warning or a critical finding
    Warning,
    /// Fail on a critical finding
    Critical,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DoctorCommand {
    /// Explain a cause, its look-alikes and its fix; without one, list all causes
    Explain {
        /// Id of the cause
        cause: Option<String>,
    },
    /// Make each cause in a lab, and check that the doctor finds it
    Selftest(SelftestArgs),
}

/// `weir doctor selftest`.
#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Run only cases with WORD in their names; may be repeated
    #[arg(long = "case", value_name = "WORD")]
    pub(crate) cases: Vec<String>,
    /// Number of runs of each case
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// Watch each case for TIME (examples: 3, 500ms)
    #[arg(long = "time", default_value = "3s", value_name = "TIME",
          value_parser = between(Duration::from_millis(500), Duration::from_secs(60)))]
    pub(crate) window: Duration,
    /// Also run cases that change settings of the whole machine, such as nf_conntrack_max; restored in every ending
    #[arg(long)]
    pub(crate) machine: bool,
    /// List the cases without running them
    #[arg(long)]
    pub(crate) list: bool,
    /// Print the matrix as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the evidence of each case into DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
}
