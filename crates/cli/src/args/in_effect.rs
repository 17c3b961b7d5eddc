//! Commands that weir calls itself, as its guard process does to make and to take back: hidden from people.

use std::path::PathBuf;

use clap::Subcommand;

/// What is in the kernel of a command's, changed without a trial.
#[derive(Debug, Subcommand)]
pub(crate) enum InEffect {
    /// Load what is written down there
    #[command(hide = true)]
    Load {
        /// The file or folder
        from: PathBuf,
        /// Where that fails, take away what is loaded
        #[arg(long)]
        or_unload: bool,
    },
    /// Take what is loaded out of the kernel
    #[command(hide = true)]
    Unload,
    /// Print what is in the kernel
    #[command(hide = true)]
    State,
}
