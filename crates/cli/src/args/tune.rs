//! Arguments of `weir tune`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use weir_tune::{Budget, Counter, Profile};

use super::in_effect::{CONFIRM_WITHIN, JsonArgs};
use super::shared::NetnsArgs;
use super::time::{DAY, between, seconds_to_a_day};

/// Heading of the options about the time until the confirmation.
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
    /// Show what should be changed, and why; changes nothing
    Plan(PlanArgs),
    /// Change it on trial, until it is confirmed
    Apply(ApplyArgs),
    /// Keep what was applied, also over a reboot
    Confirm(JsonArgs),
    /// Roll back the last apply, confirmed or not
    Rollback(JsonArgs),
    /// Show what was applied, and how things are now
    Status(JsonArgs),
    /// Remove everything `apply` changed, even partial state
    Remove(JsonArgs),
    /// Measure before and after in alternating windows, and roll everything back
    Prove(ProveArgs),
}

/// Which changes to propose or make.
#[derive(Debug, Args)]
#[command(next_help_heading = "Changes")]
pub(crate) struct WhatArgs {
    /// Kind of host: nat-gateway, rfc, throughput or published-ports; may be repeated (default without --from and --set:
    /// nat-gateway)
    #[arg(long = "profile", value_name = "PROFILE", value_parser = profile)]
    pub(crate) profiles: Vec<Profile>,
    /// Apply the fixes of a `weir doctor --json` report: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<String>,
    /// Change this setting, within weir's bounds; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Memory that all changes may take: a share of the machine's, or an amount such as 256M
    #[arg(long, default_value = "5%", value_name = "SHARE|AMOUNT")]
    pub(crate) memory: Budget,
    /// Expected number of simultaneous connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) peak: Option<u64>,
    /// Longest round trip over which one connection must fill a link, ms (throughput)
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) rtt: u64,
    /// Watch losses for TIME before nat-gateway and throughput make a proposal; see also --from
    #[arg(long = "for", default_value = "2s", value_name = "TIME",
          value_parser = between(Duration::from_secs(1), DAY))]
    pub(crate) window: Duration,
    /// The interface that clients come in by, for published-ports (default: where the default routes lead)
    #[arg(long = "interface", short = 'i', value_name = "NAME")]
    pub(crate) outer: Option<String>,
    /// Drop SYNs that come in by NAME and find no program listening, without an answer, for rfc (RFC 5382 REQ-4); may be repeated
    #[arg(long = "silent-syn", value_name = "NAME", value_parser = interface)]
    pub(crate) silent_syn: Vec<String>,
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
}

/// A name that nft reads between quotes: it knows no escape there, and takes a `*` for a pattern.
fn interface(name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_graphic() && !['"', '*', '\\', '/'].contains(&c);
    // 15 is IFNAMSIZ without the final zero.
    if (1..=15).contains(&name.len()) && name.chars().all(plain) {
        Ok(name.to_owned())
    } else {
        Err("not the name of an interface that nft can match".to_owned())
    }
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
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    /// Time to confirm, at most 24h (example: 2m)
    #[arg(long, default_value = CONFIRM_WITHIN, value_name = "TIME", value_parser = seconds_to_a_day, help_heading = TRIAL)]
    pub(crate) confirm_within: u64,
    /// Do not watch the counters that show whether it does harm
    #[arg(long, help_heading = TRIAL)]
    pub(crate) no_watch: bool,
    /// Also watch the number that this command prints; it runs every second
    #[arg(long = "watch-command", value_name = "COMMAND", requires = "watch_limit", help_heading = TRIAL)]
    pub(crate) watch: Option<String>,
    /// Roll back when that number is above this three times in a row
    #[arg(
        long,
        value_name = "NUMBER",
        group = "watch_limit",
        requires = "watch",
        allow_negative_numbers = true,
        help_heading = TRIAL
    )]
    pub(crate) above: Option<f64>,
    /// Roll back when that number is below this three times in a row
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
    /// The load of one window, run by sh; its result is the number that it prints, or the growth of --counter
    #[arg(long, value_name = "COMMAND", help_heading = PROOF)]
    pub(crate) command: String,
    /// Take the number that it prints after this text (default: its first number; example: 'Requests per second:')
    #[arg(long, value_name = "TEXT", conflicts_with = "counter", help_heading = PROOF)]
    pub(crate) number_after: Option<String>,
    /// Take the growth per second of this counter (example: conntrack-drops)
    #[arg(long, value_name = "COUNTER", help_heading = PROOF)]
    pub(crate) counter: Option<Counter>,
    /// Better direction (default: higher for a printed number, lower for a counter)
    #[arg(long, value_enum, value_name = "WAY", help_heading = PROOF)]
    pub(crate) better: Option<Direction>,
    /// Rounds of two windows, one without and one with the change
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000),
          help_heading = PROOF)]
    pub(crate) rounds: u16,
    /// Run this by sh before each window, for example to empty a table
    #[arg(long, value_name = "COMMAND", help_heading = PROOF)]
    pub(crate) between: Option<String>,
    /// Give up on one window after TIME
    #[arg(long, default_value = "10m", value_name = "TIME",
          value_parser = between(Duration::from_secs(1), DAY), help_heading = PROOF)]
    pub(crate) timeout: Duration,
    /// Seed of the order (default: a new one, which is printed)
    #[arg(long, value_name = "N", help_heading = PROOF)]
    pub(crate) seed: Option<u64>,
    /// Exit with 3 unless the change is shown to be better
    #[arg(long, help_heading = PROOF)]
    pub(crate) require_better: bool,
    /// As JSON
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}
