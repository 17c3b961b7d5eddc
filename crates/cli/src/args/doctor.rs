//! Options of `weir doctor`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `weir doctor`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    long_about = "Watch this host under its own load, and say what loses or delays packets, how much of the loss that explains, \
                  what was seen, what it is not, and the commands that help.\n\nReads only: no rule, no setting, no kernel \
                  module is changed. Without root it says what it cannot see, and does the rest."
)]
pub(crate) struct DoctorArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DoctorCommand>,
    /// Length of the window, seconds
    #[arg(long = "for", default_value_t = 10.0, value_name = "SECONDS")]
    pub(crate) window: f64,
    /// Look again and again, every so many seconds, until Ctrl-C; with --json one line each
    #[arg(long, value_name = "SECONDS")]
    pub(crate) every: Option<f64>,
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
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Read the evidence from a file of --save instead of watching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["every", "netns", "own", "load", "save"])]
    pub(crate) read: Option<PathBuf>,
    /// Do not look at this plane, by its name in the JSON, e.g. `drops`; may be repeated
    #[arg(long, value_name = "PLANE")]
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
    /// Only cases with this in their name; may be repeated
    #[arg(long = "case", value_name = "WORD")]
    pub(crate) cases: Vec<String>,
    /// How often each is tried
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) repeat: u32,
    /// Length of the window, seconds
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    pub(crate) window: f64,
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
