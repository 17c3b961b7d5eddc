//! Options of `weir flows`, and those that `weir export` shares with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use weir_flows::{Grouping, MOST_FLOWS, Options};

use super::shared::NetnsArgs;
use super::time::{DAY, between};

/// Heading of the options about what is tracked.
const TRACKING: &str = "Tracking";

/// Shorter than a second, and hardly any connection is seen.
fn window(text: &str) -> Result<Duration, String> {
    between(Duration::from_secs(1), DAY)(text)
}

/// `50%`, or `0.5`.
fn share(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|n| n / 100.0),
        None => text.parse(),
    };
    match number {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share is above 0 % and at most 100 %, such as 25% or 0.25".into()),
    }
}

/// Options about which flows are tracked, and how they are grouped.
#[derive(Debug, Args)]
pub(crate) struct TrackingArgs {
    /// Watch packets that come in by this interface; may be repeated (default: those that are up and forward)
    #[arg(short, long = "interface", value_name = "NAME")]
    interfaces: Vec<String>,
    /// Group by the networks of clients instead of servers
    #[arg(long, help_heading = TRACKING)]
    by_client: bool,
    /// Group IPv4 addresses by prefixes of this length
    #[arg(long, default_value_t = 24, value_name = "BITS", value_parser = clap::value_parser!(u8).range(0..=32), help_heading = TRACKING)]
    prefix: u8,
    /// Group IPv6 addresses by prefixes of this length
    #[arg(long, default_value_t = 48, value_name = "BITS", value_parser = clap::value_parser!(u8).range(0..=128), help_heading = TRACKING)]
    prefix6: u8,
    /// Group by the names in this file, where it has one: lines "PREFIX NAME", a registry's file (countries), or ranges with AS
    /// numbers; may be repeated
    #[arg(long, value_name = "FILE", help_heading = TRACKING)]
    pub(crate) names: Vec<PathBuf>,
    /// Track at most N flows of TCP at a time and half as many of UDP, 3 kB of memory for each N
    #[arg(long, default_value_t = 16_384, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FLOWS)), help_heading = TRACKING)]
    flows: u32,
    /// Track at most this share of all flows, each of them whole (examples: 10%, 0.1)
    #[arg(long, default_value = "100%", value_name = "SHARE", value_parser = share, help_heading = TRACKING)]
    share: f64,
    /// Take at most this share of one core for looking at packets and for reading what was seen: track a smaller share of the flows
    /// where it would be more (examples: 1%, 10%)
    #[arg(long, default_value = "2%", value_name = "SHARE", value_parser = share, help_heading = TRACKING)]
    budget: f64,
}

impl TrackingArgs {
    /// Without the names, which are read from files.
    pub(crate) fn options(&self) -> Options {
        Options {
            interfaces: self.interfaces.clone(),
            flows: self.flows,
            udp: true,
            share: self.share,
            budget: Some(self.budget),
            grouping: Grouping {
                by_client: self.by_client,
                prefix4: self.prefix,
                prefix6: self.prefix6,
                names: None,
            },
        }
    }
}

/// `weir flows`.
#[derive(Debug, Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) netns: NetnsArgs,
    #[command(flatten)]
    pub(crate) tracking: TrackingArgs,
    /// Watch for TIME (default: until Ctrl-C, with --once 10s; examples: 30, 5m)
    #[arg(long = "for", value_name = "TIME", value_parser = window)]
    pub(crate) window: Option<Duration>,
    /// Print once at the end, instead of every second
    #[arg(long)]
    pub(crate) once: bool,
    /// Number of networks, flows, and processes, of each, that are printed or recorded
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) top: usize,
    /// Record to this new file, a line of JSON per second; `weir report FILE` shows it
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Print JSON: one line per second, with --once one document
    #[arg(long)]
    pub(crate) json: bool,
}
