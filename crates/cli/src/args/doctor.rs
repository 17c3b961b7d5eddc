//! Options of `weir doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::time::{DAY, between};

/// Heading of the options about what was seen.
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
    /// How long to watch: 10, 90s, 2m, 500ms
    #[arg(long = "for", alias = "time", default_value = "10s", value_name = "TIME", value_parser = window)]
    pub(crate) window: Duration,
    /// Look again and again until Ctrl-C, so often: 60, 5m; with --json one line each
    #[arg(long, alias = "watch", value_name = "TIME", value_parser = window)]
    pub(crate) every: Option<Duration>,
    /// Only this network namespace: a name of `ip netns`, a process id, or a path such as /proc/PID/ns/net; may be repeated
    #[arg(long, value_name = "NAME|PID|PATH")]
    pub(crate) netns: Vec<String>,
    /// Only the namespace that weir is started in
    #[arg(long, conflicts_with = "netns")]
    pub(crate) own: bool,
    /// Run this load through the shell; the window ends with it, if it does not end before
    #[arg(long = "command", value_name = "COMMAND")]
    pub(crate) load: Option<String>,
    /// Exit with 3 if there is a finding of this severity or above
    #[arg(long, value_enum, default_value_t = FailOn::Never, value_name = "SEVERITY")]
    pub(crate) fail_on: FailOn,
    /// Print JSON instead of the page
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the evidence to a file, too
    #[arg(long, value_name = "FILE", help_heading = EVIDENCE)]
    pub(crate) save: Option<PathBuf>,
    /// Read the evidence from a file of --save instead of watching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["every", "netns", "own", "load", "save"], help_heading = EVIDENCE)]
    pub(crate) read: Option<PathBuf>,
    /// Do not look at this plane, by its name in the JSON, e.g. `drops`; may be repeated
    #[arg(long, value_name = "PLANE", help_heading = EVIDENCE)]
    pub(crate) hide: Vec<String>,
}

/// Below which severity all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// Whatever is found.
    Never,
    /// Anything found.
    Note,
    /// A warning.
    Warning,
    /// Something critical.
    Critical,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DoctorCommand {
    /// What a cause is, how it is told from others, and what helps; without one, the list
    Explain {
        /// Id of the cause
        cause: Option<String>,
    },
    /// Make each cause in a lab of its own, and see whether the doctor finds it
    Selftest(SelftestArgs),
}

/// `weir doctor selftest`.
#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Only the case of this name, or all with this in their names; may be repeated
    #[arg(long = "case", value_name = "WORD")]
    pub(crate) cases: Vec<String>,
    /// How often each is tried
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
    /// How long the doctor watches in each case: 3, 500ms
    #[arg(long = "for", alias = "window", default_value = "3s", value_name = "TIME",
          value_parser = between(Duration::from_millis(500), Duration::from_secs(60)))]
    pub(crate) window: Duration,
    /// Also the cases that change settings of the whole machine, such as nf_conntrack_max; they are put back in every ending
    #[arg(long)]
    pub(crate) machine: bool,
    /// List the cases and end
    #[arg(long)]
    pub(crate) list: bool,
    /// Print the matrix as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress on standard error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Write the evidence of each case into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
}
