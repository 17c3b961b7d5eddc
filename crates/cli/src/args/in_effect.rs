//! Commands that weir calls itself: its guard processes make and undo changes by them. They are hidden in help.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::shared::NetnsArgs;

/// Time to confirm, of every command that has a trial.
pub(crate) const CONFIRM_WITHIN: &str = "60s";

/// A command that has no option of its own.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options about what is loaded into one network namespace, of commands that print it.
#[derive(Debug, Args)]
pub(crate) struct LoadedArgs {
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Changes a command's state in the kernel without a trial.
#[derive(Debug, Subcommand)]
pub(crate) enum InEffect {
    /// Load a policy from its file or folder
    #[command(hide = true)]
    Load {
        /// The file or folder
        from: PathBuf,
        /// Remove what is loaded if that fails
        #[arg(long)]
        or_unload: bool,
        /// Load it for this many seconds, unless `keep` comes before
        #[arg(long)]
        trial: Option<u64>,
    },
    /// Make what is on trial last
    #[command(hide = true)]
    Keep,
    /// Remove what is loaded from the kernel
    #[command(hide = true)]
    Unload,
    /// Print what is in the kernel
    #[command(hide = true)]
    State,
}
