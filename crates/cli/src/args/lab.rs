//! Options of `weir lab`.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List labs of running and of killed runs
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop processes that killed runs left behind
    Clean {
        /// Also stop running ones
        #[arg(long)]
        force: bool,
    },
    /// Run a command in a host of a running lab
    Exec {
        /// Identifier of the run (see `weir lab list`)
        run: String,
        /// Host as VARIANT/ROLE (example: nft-masquerade/gateway)
        host: String,
        /// Command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}
