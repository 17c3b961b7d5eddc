//! Arguments of `weir tune`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weir_doctor::tune::{Budget, Counter, Profile};

use super::time::{DAY, between, seconds_to_a_day};

/// Heading of the options about the time until somebody confirms.
const TRIAL: &str = "The trial";
/// Heading of the options about the measurement.
const PROOF: &str = "The measurement";

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    #[command(subcommand)]
    pub(crate) command: TuneCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TuneCommand {
    /// What should be changed, and why; changes nothing
    Plan(PlanArgs),
    /// Change it on trial, until it is confirmed
    Apply(ApplyArgs),
    /// Keep what was applied, also over a reboot
    Confirm(JsonArgs),
    /// Take back what was applied, confirmed or not
    Rollback(JsonArgs),
    /// What was applied, and how things are now
    Status(JsonArgs),
    /// Measure before and after in alternating windows, and take everything back
    Prove(ProveArgs),
}

/// What to change.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to change")]
pub(crate) struct WhatArgs {
    /// For this kind of host: nat-gateway, rfc, throughput or published-ports; may be repeated. Without it, --from and --set:
    /// nat-gateway
    #[arg(long = "profile", value_name = "PROFILE", value_parser = profile)]
    pub(crate) profiles: Vec<Profile>,
    /// What heals these findings: a file of `weir doctor --json`, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<String>,
    /// This setting, within weir's bounds; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Memory that all of it may take: a share of the machine's, or an amount such as 256M
    #[arg(long, default_value = "5%", value_name = "SHARE|AMOUNT")]
    pub(crate) memory: Budget,
    /// Connections at once that are expected
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) peak: Option<u64>,
    /// Longest round trip that one connection shall fill a link over, ms (throughput)
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) rtt: u64,
    /// How long to watch what is lost, before nat-gateway or throughput say what is needed: seconds, or 1m; see also --from
    #[arg(long = "for", alias = "time", default_value = "2s", value_name = "TIME",
          value_parser = between(Duration::from_secs(1), DAY))]
    pub(crate) window: Duration,
    /// The interface that clients come in by (published-ports); by default the one that the default routes lead to
    #[arg(long, value_name = "NAME")]
    pub(crate) outer: Option<String>,
    /// In another network namespace: a name of `ip netns`, a process id, or a path such as /proc/PID/ns/net
    #[arg(long, value_name = "NAME|PID|PATH")]
    pub(crate) netns: Option<String>,
}

fn profile(text: &str) -> Result<Profile, String> {
    Profile::ALL.into_iter().find(|p| p.name() == text).ok_or_else(|| {
        let names: Vec<&str> = Profile::ALL.iter().map(|p| p.name()).collect();
        format!("none of {}", names.join(", "))
    })
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// As JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// Time to confirm: seconds, or with a unit as 90s, 2m, 1h; at most 24h
    #[arg(long, visible_alias = "timeout", default_value = "120s", value_name = "TIME",
          value_parser = seconds_to_a_day, help_heading = TRIAL)]
    pub(crate) confirm_within: u64,
    /// Do not watch the counters that show whether it does harm
    #[arg(long, help_heading = TRIAL)]
    pub(crate) no_watch: bool,
    /// Watch the number that this command prints, too; it is run every second
    #[arg(long, value_name = "COMMAND", requires = "watch_limit", help_heading = TRIAL)]
    pub(crate) watch: Option<String>,
    /// Take it back when that number is above this three times in a row
    #[arg(
        long,
        value_name = "NUMBER",
        group = "watch_limit",
        requires = "watch",
        allow_negative_numbers = true,
        help_heading = TRIAL
    )]
    pub(crate) above: Option<f64>,
    /// Take it back when that number is below this three times in a row
    #[arg(
        long,
        value_name = "NUMBER",
        group = "watch_limit",
        requires = "watch",
        allow_negative_numbers = true,
        help_heading = TRIAL
    )]
    pub(crate) below: Option<f64>,
    /// As JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// The load of one window, run by sh; what it prints or what a counter counts meanwhile is the result
    #[arg(long, alias = "run", value_name = "COMMAND", help_heading = PROOF)]
    pub(crate) command: String,
    /// The result is the number that it prints after this text, e.g. 'Requests per second:'; otherwise the first number
    #[arg(long, value_name = "TEXT", conflicts_with = "counter", help_heading = PROOF)]
    pub(crate) number_after: Option<String>,
    /// The result is the growth per second of this counter, e.g. conntrack-drops
    #[arg(long, value_name = "COUNTER", help_heading = PROOF)]
    pub(crate) counter: Option<Counter>,
    /// Which way is better; by default higher for what is printed, lower for a counter
    #[arg(long, value_enum, value_name = "WAY", help_heading = PROOF)]
    pub(crate) better: Option<Direction>,
    /// Rounds of two windows, one without and one with the change
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000),
          help_heading = PROOF)]
    pub(crate) rounds: u16,
    /// Run by sh before each window, e.g. to empty a table
    #[arg(long, value_name = "COMMAND", help_heading = PROOF)]
    pub(crate) between: Option<String>,
    /// Longest time for a window
    #[arg(long, alias = "limit", default_value = "10m", value_name = "TIME",
          value_parser = between(Duration::from_secs(1), DAY), help_heading = PROOF)]
    pub(crate) timeout: Duration,
    /// Seed of the order; by default a new one, which is printed
    #[arg(long, value_name = "N", help_heading = PROOF)]
    pub(crate) seed: Option<u64>,
    /// Exit with 3 unless it is shown to be better
    #[arg(long, help_heading = PROOF)]
    pub(crate) require_better: bool,
    /// As JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}
