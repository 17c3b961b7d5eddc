//! Options that several commands have: one spelling, one value, one meaning.

use std::time::Duration;

use clap::Args;

use super::time::{DAY, between};

/// Shortest time between two readings: a full connection-tracking table takes about that long.
const SHORTEST: Duration = Duration::from_millis(100);

/// `--watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Repeat every TIME until Ctrl-C (2s if no TIME is given; examples: 5, 500ms, 1m); with --json one line each
    #[arg(long = "watch", value_name = "TIME", num_args = 0..=1, default_missing_value = "2s",
          value_parser = between(SHORTEST, DAY))]
    pub(crate) every: Option<Duration>,
}

/// `--netns` of a command that works in one namespace.
#[derive(Debug, Args)]
pub(crate) struct NetnsArgs {
    /// Work in another network namespace: a name of `ip netns`, a process id, or a path such as /proc/PID/ns/net
    #[arg(long = "netns", value_name = "NAME|PID|PATH")]
    pub(crate) name: Option<String>,
}
